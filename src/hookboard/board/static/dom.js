/** Makes elements and formats text. Names of layers are untrusted: nothing here takes HTML. */

/**
 * Make an HTML element.
 * @param {string} tag its tag.
 * @param {Object} options `text`, `on` (event to listener) and `style` (property to value); all others are attributes. An
 *   attribute that is false, null or undefined is left out.
 * @param {(Node|string|null)[]} children its children; strings become text, null is left out.
 * @returns {HTMLElement}
 */
export function element(tag, options = {}, children = []) {
  const made = document.createElement(tag);
  const { text, on = {}, style = {}, ...attributes } = options;
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  if (text !== undefined) made.textContent = text;
  for (const [event, listener] of Object.entries(on)) made.addEventListener(event, listener);
  for (const [name, value] of Object.entries(style)) made.style.setProperty(name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Make a button; screen readers also read `title`, unless it is the text. */
export function button(text, title, click) {
  return element("button", { type: "button", text, title, "aria-label": title === text ? null : title, on: { click } });
}

/** Return the name of a row or layer to display. */
export function named(name) {
  return name || "the model itself"; // it may own parameters
}

/** Escape a text for plotly, which interprets some HTML (`<b>`, `<br>`, `<a href>`) and entities. */
export function forPlotly(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/**
 * Shorten a dotted name from its front. Numbers and the last part are left out last: they tell layers apart.
 * `shortened("net.encoder.layers.7.norm", (text) => text.length <= 14)` is "…layers.7.norm"; with 8 it is "…7.norm".
 * @param {string} name the name.
 * @param {(text: string) => boolean} fits whether a text is short enough.
 * @returns {string}
 */
export function shortened(name, fits) {
  const parts = name.split(".");
  const isKept = parts.map(() => true);
  const piece = (part, i) => (isKept[i] ? (i && isKept[i - 1] ? `.${part}` : part) : i && !isKept[i - 1] ? "" : "…");
  const text = () => parts.map(piece).join("");
  for (let i = 0; i < parts.length - 1 && !fits(text()); i++) isKept[i] = /^\d+$/.test(parts[i]);
  for (let i = 0; i < parts.length - 1 && !fits(text()); i++) isKept[i] = false;
  const letters = [...text()]; // code points, so that no emoji is cut in half
  let left = letters.length;
  const end = () => (left === letters.length ? letters.join("") : `…${letters.slice(-left).join("")}`);
  while (left > 3 && !fits(end())) left--;
  return end();
}

/** Shorten a name to a width in pixels, in the page's font of this size. */
export function fitted(name, width, size = 12) {
  pen.font = `${size}px Roboto, "Helvetica Neue", Arial, sans-serif`;
  return shortened(name, (text) => pen.measureText(text).width <= width);
}

/** Return the parts that all dotted names begin with, with a dot at the end; "" if there are none, or only one name. */
export function commonStart(names) {
  const parts = names.map((name) => name.split(".").slice(0, -1));
  let same = 0;
  while (parts.length > 1 && parts.every((some) => some.length > same && some[same] === parts[0][same])) same++;
  return same ? `${parts[0].slice(0, same).join(".")}.` : "";
}

const pen = document.createElement("canvas").getContext("2d");

/**
 * Format a number: "0.0123", "12.5", "3.4e-7", "NaN", "+Inf".
 * @param {number} value any number.
 * @param {number} digits number of significant digits.
 * @returns {string}
 */
export function written(value, digits = 3) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+Inf" : "−Inf";
  const size = Math.abs(value);
  const isPlain = size === 0 || (size >= 0.00095 && size < 99_950);
  const text = isPlain ? String(Number(value.toPrecision(digits))) : Number(value.toPrecision(digits)).toExponential();
  return text.replace("e+", "e").replace(/^-/, "−");
}

/** Capitalize the acronyms in a label: "activation RMS". */
export function titled(label) {
  return label.replace(/\b(rms|l1|l2|nan|fp16)\b/g, (word) => ({ nan: "NaN" })[word] ?? word.toUpperCase());
}

/** Format a whole number with thin spaces between thousands. */
export function counted(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, "\u2009");
}

/** Return a count with its noun: "1 layer", "3 layers". */
export function several(count, noun) {
  return `${counted(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Run a script that is no module: plotly, which sets `window.Plotly`. */
export function runScript(url) {
  return new Promise((done, failed) => {
    const fail = () => failed(new Error("plotly could not be started"));
    document.head.append(element("script", { src: url, on: { load: done, error: fail } }));
  });
}

/** Return a function that calls `action` once, `wait` milliseconds after its last call. */
export function later(wait, action) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), wait);
  };
}
