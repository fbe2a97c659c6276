/** The entry point: TensorBoard imports this file into an empty page and calls `render`. */

import { runScript } from "./dom.js";
import { startPage } from "./page.js";

/** Load style and plotly, then start the page. */
export async function render() {
  document.title = "Hookboard";
  document.documentElement.lang = "en";
  const [style, root] = [document.createElement("link"), document.createElement("div")];
  const loaded = new Promise((done) => (style.onload = style.onerror = done));
  style.rel = "stylesheet";
  style.href = new URL("style.css", import.meta.url).href;
  document.head.append(style);
  root.className = "app";
  root.textContent = "Loading…";
  document.body.append(root);
  try {
    await Promise.all([loaded, runScript(new URL("plotly.js", import.meta.url).href)]);
  } catch (error) {
    root.textContent = `${error.message}. Reload the page to try again.`;
    return;
  }
  root.replaceChildren();
  startPage(root);
}
