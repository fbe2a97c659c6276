/** The page around ours: TensorBoard's, or nobody's if the tab is opened by itself. */

const BOOTSTRAP = "experimental.bootstrap";
const RELOADED = "experimental.DataReloaded";

/** The window whose address people copy: TensorBoard's, if it lets us. */
export function hostWindow() {
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
