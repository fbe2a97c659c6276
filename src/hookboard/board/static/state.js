/**
 * Keeps the state of the page in the address, so that a link shows what you see; and follows TensorBoard's page.
 * The address is `#hookboard&p.hookboard.<name>=<value>`; TensorBoard keeps the parts that it does not know.
 */

const BOOTSTRAP = "experimental.bootstrap";
const RELOADED = "experimental.DataReloaded";

/** Return the window whose address people copy: TensorBoard's, or ours if that is not accessible. */
function hostWindow() {
  try {
    if (window.parent !== window && window.parent.location.href) return window.parent;
  } catch {
    // The page around ours is of another origin.
  }
  return window;
}

/**
 * Follow TensorBoard's dark mode.
 * @param {(isDark: boolean) => void} changed is called at once, and at each change.
 */
export function watchDarkness(changed) {
  const host = hostWindow();
  if (host !== window) {
    const { body } = host.document;
    const tell = () => changed(body.classList.contains("dark-mode"));
    new MutationObserver(tell).observe(body, { attributes: true, attributeFilter: ["class"] });
    tell();
    return;
  }
  const wish = window.matchMedia("(prefers-color-scheme: dark)");
  wish.addEventListener("change", () => changed(wish.matches));
  changed(wish.matches);
}

/**
 * Call a function after each reload of TensorBoard, by its button or its timer.
 * The messages are those of TensorBoard's library for plugins, which it does not serve to plugins like ours.
 * @param {() => void} reloaded the function.
 */
export function watchReloads(reloaded) {
  if (hostWindow() === window) return;
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = (event) => {
    const { type, id, isReply } = JSON.parse(event.data);
    if (isReply) return;
    port1.postMessage(JSON.stringify({ type, id, payload: null, error: null, isReply: true }));
    if (type === RELOADED) reloaded();
  };
  window.parent.postMessage(BOOTSTRAP, window.location.origin, [port2]);
}

/** Return whether the tab is visible: TensorBoard keeps the pages of other tabs, without a size. */
export function isSeen() {
  return !document.hidden && document.documentElement.clientWidth > 0;
}

const PREFIX = "p.hookboard.";

/** Stands for "", the name of the model itself, in the address. No layer's name is a dot. */
const MODEL = ".";

const CURSOR = ["row", "step"];
const TYPED = ["modules", "types"];

/** Return whether a change of state gets an entry in the browser's history: not moves of the cursor, nor each letter typed. */
export function isUndoneByBack(before, after) {
  const isStart = TYPED.some((key) => (before[key] === "") !== (after[key] === ""));
  return isStart || Object.keys(DEFAULTS).some((key) => ![...CURSOR, ...TYPED].includes(key) && before[key] !== after[key]);
}

/** All that the address can hold, with the defaults. Values are strings. */
const DEFAULTS = {
  run: "",
  series: "", // "" is the server's choice
  how: "", // log, linear or deviation; "" is the series' own scale
  against: "", // the run to compare with
  stage: "", // the stage to compare with
  sort: "order", // order, name, worst or change
  rows: "", // all, or "" for as many as fit, merged into bands
  modules: "", // patterns, separated by spaces
  types: "",
  view: "map", // map or depth
  row: "", // of the cursor
  step: "", // of the cursor
  layer: "", // the layer that is open
  from: "", // the first and last step that are shown, after zooming
  to: "",
  open: "[]", // blocks that the user opened, as JSON
  closed: "[]",
};

/** Read the state from the address. */
export function readState() {
  const state = { ...DEFAULTS };
  for (const part of parts()) {
    const [name, value] = part.split("=").map(decoded);
    if (value !== undefined && name.startsWith(PREFIX)) {
      const key = name.slice(PREFIX.length);
      if (Object.hasOwn(DEFAULTS, key)) state[key] = value;
    }
  }
  return state;
}

/**
 * Write the state into the address.
 * @param {Object} state of the page.
 * @param {boolean} isNew whether to add an entry to the browser's history, instead of replacing the current one.
 */
export function writeState(state, isNew = false) {
  const host = hostWindow();
  const others = parts().filter((part) => part && !decoded(part).startsWith(PREFIX));
  const own = Object.keys(DEFAULTS)
    .filter((key) => state[key] !== DEFAULTS[key])
    .map((key) => `${encodeURIComponent(PREFIX + key)}=${encodeURIComponent(state[key])}`);
  const hash = `#${[...others, ...own].join("&")}`;
  if (hash === host.location.hash) return;
  if (isNew) host.history.pushState(host.history.state, "", hash);
  else host.history.replaceState(host.history.state, "", hash);
}

/** Call a function when the address changes from outside: a pasted link, the browser's Back. */
export function watchAddress(changed) {
  hostWindow().addEventListener("hashchange", changed);
}

/** Encode the name of a row or layer for the address. */
export function addressOf(name) {
  return name === "" ? MODEL : name;
}

/** Decode the name of a row or layer from the address. */
export function nameAt(address) {
  return address === MODEL ? "" : address;
}

/** Parse a list of names from the address; [] if it is malformed. */
export function namesIn(list) {
  try {
    const names = JSON.parse(list);
    return Array.isArray(names) ? names.filter((name) => typeof name === "string") : [];
  } catch {
    return [];
  }
}

function parts() {
  return hostWindow().location.hash.slice(1).split("&");
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
