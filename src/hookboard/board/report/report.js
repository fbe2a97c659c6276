/** The entry point of a report: the page that is the tab in TensorBoard, with its answers inside instead of a server. */

import { answerFrom } from "./data.js";
import { runScript } from "./dom.js";
import { startPage } from "./page.js";

const UNSAID = ["columns"]; // parameters for which a report has one answer only

/** Return the text of an element that holds gzipped text in base64. */
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
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
    const answer = known.get(keyOf(route, parameters));
    if (answer === undefined) throw new Error(`This report holds no ${route} of ${Object.values(parameters).filter(Boolean)[0]} for that.`);
    return answer;
  };
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
    answerFrom({ isLive: false, answer: answererOf(JSON.parse(lists), answers), pictureUrl: (key) => key });
    await runScript(URL.createObjectURL(new Blob([plotly], { type: "text/javascript" })));
  } catch (error) {
    root.textContent = `This report cannot be shown here: ${error.message}. It needs a browser of 2023 or later.`;
    return;
  }
  root.replaceChildren();
  startPage(root);
  window.addEventListener("beforeprint", fitToPaper);
}

start(document.querySelector(".app"));
