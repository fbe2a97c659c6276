/**
 * What the map and the depth view share: a list of rows with their names, beside a plot that is as high as all of
 * them; an axis that stays in sight; a cursor that arrows move.
 */

import { element, fitted, named, several } from "./dom.js";
import { gravest } from "./model.js";

export const SYMBOLS = { alarm: "▲", note: "●" };

/** How many rows and columns a key moves the cursor. */
const MOVES = {
  ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
  PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -Infinity], End: [0, Infinity],
}; // prettier-ignore

/**
 * Make the grid.
 * @param {Object} handlers `toggle(row)`, `choose(row)` (its layer is to open), `move(rows, columns)`, `enter()`.
 * @returns {Object} its parts: `root`, `names`, `plot` (for plotly), `over` (for marks), `axis`, and `draw`.
 */
export function makeGrid(handlers) {
  const names = element("div", { class: "names" });
  const plot = element("div", { class: "plot", id: "hookboard-plot" });
  const over = element("div", { class: "over" });
  const field = element("div", { class: "field" }, [plot, over]);
  const axis = element("div", { class: "axis" });
  const said = element("div", { class: "said", "aria-live": "polite" });
  const body = element("div", { class: "grid-body" }, [names, field]);
  const root = element("div", { class: "grid", role: "grid", tabindex: "0", on: { keydown } }, [body, axis, said]);
  let rows = [];

  function keydown(event) {
    const by = MOVES[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (by) handlers.move(...by);
    else if (event.key === "Enter" || event.key === " ") handlers.enter();
    else return; // Escape is the page's
    event.preventDefault();
  }

  /**
   * Write the names.
   * @param {Object[]} given the rows of `rowsSeen`.
   * @param {number} height of a row, in pixels.
   * @param {string} label what the grid shows, for those who hear it.
   */
  function draw(given, height, label) {
    rows = given;
    root.style.setProperty("--row", `${height}px`);
    root.setAttribute("aria-label", label);
    root.setAttribute("aria-rowcount", rows.length);
    const width = names.clientWidth;
    names.replaceChildren(...rows.map((row, i) => nameOf(row, i, width, handlers)));
  }

  /** Show the cursor on a row, and say what is there. */
  function point(at, text) {
    [...names.children].forEach((name, i) => name.classList.toggle("here", i === at));
    if (names.children[at]) root.setAttribute("aria-activedescendant", names.children[at].id);
    else root.removeAttribute("aria-activedescendant");
    if (said.textContent !== text) said.textContent = text;
  }

  /** Bring a row into sight. */
  function reveal(at) {
    names.children[at]?.scrollIntoView({ block: "nearest" });
  }

  return { root, names, plot, over, field, axis, draw, point, reveal };
}

function nameOf(row, i, width, handlers) {
  const severity = gravest(row.verdicts);
  const type = row.isBlock ? (row.isOpen ? "" : several(row.rows.length, "row")) : (row.layer?.type ?? "");
  const isNarrow = width < 240; // then there is no room for types
  const room = width - row.depth * 12 - (severity ? 60 : 38) - (isNarrow || !type ? 0 : Math.min(type.length * 6 + 10, 100));
  const rules = row.verdicts.map(({ severity: how, rule }) => `${how}: ${rule}`).join(", ");
  const count = row.isBlock ? several(row.rows.length, "row") : "";
  const name = named(row.name);
  const act = () => (row.isBlock ? handlers.toggle(row) : handlers.choose(row));
  return element(
    "div",
    {
      class: `name ${severity} ${row.isBlock ? "block" : "leaf"}`, id: `hookboard-row-${i}`, role: "row",
      "aria-expanded": row.isBlock ? String(row.isOpen) : null, "aria-level": row.depth + 1,
      "aria-label": [name, row.layer?.type, count, rules].filter(Boolean).join(", "),
      title: [name, row.layer?.type, count, rules].filter(Boolean).join("\n"),
      style: { "--depth": row.depth }, on: { click: act },
    }, // prettier-ignore
    [
      element("span", { class: "fold", text: row.isBlock ? (row.isOpen ? "▾" : "▸") : "" }),
      severity ? element("span", { class: "mark", text: SYMBOLS[severity] }) : null,
      element("span", { class: "label", text: fitted(row.label || name, room) }),
      isNarrow ? null : element("span", { class: "type", text: type }),
    ],
  );
}

/**
 * Write the ticks of an axis below the field.
 * @param {HTMLElement} axis the place.
 * @param {{share: number, text: string}[]} marks `share` from 0 at the left to 1.
 * @param {string} title what the axis shows.
 */
export function drawAxis(axis, marks, title) {
  axis.replaceChildren(
    ...marks.map(({ share, text }) => {
      const place = share > 0.97 ? "tick end" : "tick"; // the last one stays within the axis
      return element("span", { class: place, text, style: { left: `${share * 100}%` } });
    }),
    element("span", { class: "title", text: title }),
  );
}
