/** The entry point of a report: the page that is the tab in TensorBoard, with its answers inside instead of a server. */

import { answerFrom } from "./data.js";
import { startPage } from "./page.js";

const UNSAID = ["columns", "band"]; // parameters for which a report has one answer only

/** Return the text of an element that holds gzipped text in base64. */
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/** Run a script that is no module: plotly sets `window.Plotly`. */
function run(text) {
  return new Promise((done, failed) => {
    const tag = document.createElement("script");
    tag.src = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    tag.onload = done;
    tag.onerror = () => failed(new Error("plotly could not be started"));
    document.head.append(tag);
  });
}

/** Return the request as a key: the route and its parameters, in order. */
function keyOf(route, parameters) {
  const said = Object.entries(parameters).filter(([name, value]) => value !== null && !UNSAID.includes(name));
  return JSON.stringify([route, ...said.map(([, value]) => value)]);
}

/** Return the function that answers a request. Lists are stored apart, once each: `{"$": 7}` stands for the eighth. */
function answererOf(lists, answers) {
  const stored = (_, value) => (Number.isInteger(value?.$) ? lists[value.$] : value);
  const known = new Map(JSON.parse(answers, stored).map(([request, answer]) => [JSON.stringify(request), answer]));
  return async (route, parameters = {}) => {
    if (route === "select") return { names: selected(known.get(keyOf("run", { run: parameters.run })).layers, parameters) };
    const answer = known.get(keyOf(route, parameters));
    if (answer === undefined) throw new Error(`This report holds no ${route} of ${Object.values(parameters).filter(Boolean)[0]} for that.`);
    return answer;
  };
}

/** Return the names of the layers that patterns and types select, as the server does. */
function selected(layers, { modules = [], types = [] }) {
  const byPattern = chosen(layers, modules, (pattern) => {
    const expression = expressionOf(pattern);
    return ({ name }) => (name || pattern !== "*") && expression.test(name);
  }, "layers: the pattern", "matches no layer's whole name"); // prettier-ignore
  return chosen(byPattern, types, (given) => (layer) => layer.types.some((full) => isCalled(full, given)), "types: no layer is a", "")
    .map(({ name }) => name); // prettier-ignore
}

/** Return the layers that any of some texts selects, or all if there are only texts that exclude with a leading "!". */
function chosen(layers, texts, testOf, before, after) {
  const found = (text) => {
    const names = layers.filter(testOf(text));
    if (!names.length) throw new Error(`${before} '${text}' ${after}`.trimEnd() + ".");
    return names;
  };
  const wanted = texts.filter((text) => !text.startsWith("!")).flatMap(found);
  const dropped = texts.filter((text) => text.startsWith("!")).flatMap((text) => found(text.slice(1)));
  return layers.filter((layer) => (!wanted.length || wanted.includes(layer)) && !dropped.includes(layer));
}

/** Return the regular expression of a pattern: `*` stays within one name, `**` crosses dots, `re:` is one itself. */
function expressionOf(pattern) {
  if (pattern.startsWith("re:")) return new RegExp(`^(?:${pattern.slice(3)})$`, "s");
  const STARS = { "**.": "(?:.+\\.)?", "**": ".*", "*": "[^.]*" };
  const parts = pattern.split(/(\*\*\.|\*\*|\*)/);
  return new RegExp(`^${parts.map((part) => STARS[part] ?? part.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&")).join("")}$`, "s");
}

/** Return whether a class has this name: short, full, or as a package re-exports it. */
function isCalled(full, given) {
  const split = (name) => [name.slice(0, Math.max(name.lastIndexOf("."), 0)), name.slice(name.lastIndexOf(".") + 1)];
  const [[module, name], [where, last]] = [split(full), split(given)];
  return name === last && (!where || `${module}.`.startsWith(`${where}.`));
}

const PAPER_WIDTH = 700; // in pixels: A4 and US letter, upright, without margins

/** Tell the style how wide the map is on the screen: on paper it is drawn smaller, and not drawn again. */
function fitToPaper() {
  const [view, field] = [document.querySelector(".view"), document.querySelector(".field")];
  if (!view) return;
  const { style } = document.documentElement;
  style.setProperty("--view", `${view.offsetWidth}px`);
  style.setProperty("--names", `${field.offsetLeft}px`);
  style.setProperty("--paper-zoom", Math.min(PAPER_WIDTH / view.offsetWidth, 1));
}

async function start(root) {
  try {
    const [lists, answers, plotly] = await Promise.all(["lists", "answers", "plotly"].map(unpacked));
    answerFrom({ answer: answererOf(JSON.parse(lists), answers), pictureUrl: (key) => key });
    await run(plotly);
  } catch (error) {
    root.textContent = `This report cannot be shown here: ${error.message}. It needs a browser of 2023 or later.`;
    return;
  }
  root.replaceChildren();
  startPage(root);
  window.addEventListener("beforeprint", fitToPaper);
}

start(document.querySelector(".app"));
