/**
 * What the page shows, kept in the address: a link shows a colleague what you see. And the page around ours.
 * TensorBoard's address is `#hookboard&p.hookboard.<name>=<value>`; it keeps what it does not know.
 */

const BOOTSTRAP = "experimental.bootstrap";
const RELOADED = "experimental.DataReloaded";

/** The window whose address people copy: TensorBoard's, if it lets us. */
function hostWindow() {
  try {
    if (window.parent !== window && window.parent.location.href) return window.parent;
  } catch {
    // A page of another origin shows us: its address is none of ours.
  }
  return window;
}

/**
 * Follow TensorBoard's dark mode.
 * @param {(isDark: boolean) => void} changed is called at once, and with each change.
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
 * Hear of TensorBoard's reloads: those of its button and those of its clock.
 * The messages are those of TensorBoard's own library for plugins, which it does not serve to us.
 * @param {() => void} reloaded is called after each.
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

/** Whether somebody can see the tab: TensorBoard keeps the page of a tab that is left, without a size. */
export function isSeen() {
  return !document.hidden && document.documentElement.clientWidth > 0;
}

const PREFIX = "p.hookboard.";

/** The name of the model itself is "", which is nothing in the address. No layer's name is a dot. */
const MODEL = ".";

/** All that can be in the address, and what holds without it. Values are strings. */
const DEFAULTS = {
  run: "",
  series: "", // what is shown; "" is the server's choice
  how: "", // log, linear or deviation; "" is what suits the series
  against: "", // the other run
  sort: "order", // order, name or worst
  modules: "", // patterns, between spaces
  types: "",
  view: "map", // map or depth
  row: "", // where the cursor is: a row,
  step: "", // and a step
  layer: "", // the layer that is open
  from: "", // the steps that are shown
  to: "",
  open: "[]", // blocks that somebody opened, as JSON
  closed: "[]",
};

/** The state that the address says. */
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

/** Write the state into the address, without a new entry in the history for each move of the cursor. */
export function writeState(state) {
  const host = hostWindow();
  const others = parts().filter((part) => part && !decoded(part).startsWith(PREFIX));
  const own = Object.keys(DEFAULTS)
    .filter((key) => state[key] !== DEFAULTS[key])
    .map((key) => `${encodeURIComponent(PREFIX + key)}=${encodeURIComponent(state[key])}`);
  const hash = `#${[...others, ...own].join("&")}`;
  if (hash !== host.location.hash) host.history.replaceState(host.history.state, "", hash);
}

/** Call a function when somebody else changes the address: a link that is pasted, the button "back". */
export function watchAddress(changed) {
  hostWindow().addEventListener("hashchange", changed);
}

/** The name of a row or a layer as it stands in the address. */
export function addressOf(name) {
  return name === "" ? MODEL : name;
}

/** The name that stands in the address. */
export function nameAt(address) {
  return address === MODEL ? "" : address;
}

/** The names in a list of the address; none if somebody has garbled it. */
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
