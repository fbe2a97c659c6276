/** Elements and text. Names of layers are foreign text: nothing here takes HTML. */

/**
 * Make an element.
 * @param {string} tag its tag; "svg" elements are not made here.
 * @param {Object} options `text` is its text, `on` its listeners by event, `style` its styles, `class` its classes;
 *   all others are attributes. An attribute that is false, null or undefined is left out.
 * @param {(Node|string|null)[]} children what it holds; strings become text.
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

/** A button; what it does is also said to those who only hear its text. */
export function button(text, title, click) {
  return element("button", { type: "button", text, title, "aria-label": title === text ? null : title, on: { click } });
}

/** The name of a row or a layer for people. */
export function named(name) {
  return name || "the model itself"; // which may have parameters of its own
}

/** Plotly reads some HTML (`<b>`, `<br>`, `<a href>`) and entities in its texts: this makes them plain text. */
export function forPlotly(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Shorten a name in its middle: names of layers differ at both ends. */
export function shortened(name, length) {
  const letters = [...name]; // by characters: half an emoji is none
  if (letters.length <= length) return name;
  const end = Math.ceil((length - 1) * 0.6);
  return `${letters.slice(0, length - 1 - end).join("")}…${letters.slice(-end).join("")}`;
}

/** Shorten a name in its middle to a width in pixels, in the page's font of this size. */
export function fitted(name, width, size = 12) {
  pen.font = `${size}px Roboto, "Helvetica Neue", Arial, sans-serif`;
  let length = [...name].length;
  let text = name;
  while (length > 4 && pen.measureText(text).width > width) text = shortened(name, --length);
  return text;
}

const pen = document.createElement("canvas").getContext("2d");

/**
 * A number as people write it: "0.0123", "12.5", "3.4e-7".
 * @param {number} value any number.
 * @param {number} digits how many significant digits.
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

/** The label of a series, with the field's own capitals. */
export function titled(label) {
  return label.replace(/\b(rms|l1|l2|nan|fp16)\b/g, (word) => ({ nan: "NaN" })[word] ?? word.toUpperCase());
}

/** A whole number with thin spaces between thousands. */
export function counted(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, "\u2009");
}

/** "1 layer", "3 layers". */
export function several(count, noun) {
  return `${counted(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Call a function some time after the last of several calls. */
export function later(wait, action) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), wait);
  };
}
