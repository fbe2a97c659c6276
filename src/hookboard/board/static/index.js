/** The entry point: TensorBoard imports this file into an empty page and calls `render`. */

import { element, runScript } from "./dom.js";
import { startPage } from "./page.js";

/** Load style and plotly, then start the page. */
export async function render() {
  document.title = "Hookboard";
  document.documentElement.lang = "en";
  const urlOf = (name) => new URL(name, import.meta.url).href;
  const root = element("div", { class: "app", text: "Loading…" });
  document.body.append(root);
  const styled = new Promise((done) => {
    document.head.append(element("link", { rel: "stylesheet", href: urlOf("style.css"), on: { load: done, error: done } }));
  });
  try {
    await Promise.all([styled, runScript(urlOf("plotly.js"))]);
  } catch (error) {
    root.textContent = `${error.message}. Reload the page to try again.`;
    return;
  }
  root.replaceChildren();
  startPage(root);
}
