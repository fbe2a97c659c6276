/** Draws the heat map: colours, the grid of rows that both views share, legend, marks of verdicts, and the tooltip. */

import { element, fitted, several, titled, written } from "./dom.js";
import { gravest, markOf, rowAt, saidOf } from "./model.js";
import { isBroken, place, rounded, share, ticks } from "./scale.js";

/** Viridis without its darkest end, because 0 is black. `images/picture.py` has the same colours. */
const VALUES = [
  [0, "#472c7a"], [0.125, "#3b518b"], [0.25, "#2c718e"], [0.375, "#21908d"], [0.5, "#27ad81"],
  [0.65, "#5cc863"], [0.8, "#aadc32"], [1, "#fde725"],
]; // prettier-ignore

const AROUND = {
  light: [[0, "#08439c"], [0.25, "#5f9bd6"], [0.45, "#e3ebf2"], [0.5, "#f4f4f4"], [0.55, "#f6eadf"], [0.75, "#ee9d4f"], [1, "#a63d00"]],
  dark: [[0, "#7cc0ff"], [0.25, "#2f6db3"], [0.45, "#3b4652"], [0.5, "#414141"], [0.55, "#50453b"], [0.75, "#c46f1e"], [1, "#ffc68a"]],
}; // prettier-ignore

/** Return the colours of plots in a theme; those of the page are in style.css. */
export function coloursOf(isDark) {
  const theme = isDark ? "dark" : "light";
  return {
    values: VALUES,
    around: AROUND[theme],
    zero: isDark ? "#000000" : "#14101c",
    broken: "#ff00b8",
    ink: isDark ? "#f1f1f1" : "#212121",
    faint: isDark ? "#a8a8a8" : "#616161",
    line: isDark ? "#5a5a5a" : "#d5d5d5",
    paper: isDark ? "#303030" : "#ffffff",
    band: isDark ? "rgba(190,190,190,0.22)" : "rgba(100,110,130,0.18)",
    usual: isDark ? "#bdbdbd" : "#757575",
    own: isDark ? "#ffb04d" : "#e65100",
    forward: isDark ? "#6fc3ff" : "#1565c0",
    backward: isDark ? "#ffb04d" : "#c75300",
    alarm: isDark ? "#ff6b6b" : "#c5162e",
    note: isDark ? "#ffca4d" : "#9a6200",
  };
}

/** Return a colour scale as a CSS gradient from left to right. */
function gradient(colours) {
  return `linear-gradient(to right, ${colours.map(([at, colour]) => `${colour} ${at * 100}%`).join(", ")})`;
}

/** Key to the number of rows and columns by which it moves the cursor. */
const MOVES = {
  ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
  PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -Infinity], End: [0, Infinity],
}; // prettier-ignore

/**
 * Make the grid of names and cells.
 * @param {Object} handlers `toggle(row)`, `choose(row)` (to open its layer), `move(rows, columns)`, `enter()`.
 * @returns {Object} its parts: `root`, `names`, `plot` (for plotly), `over` (for marks), `axis`, `loss`, and `draw`.
 */
export function makeGrid(handlers) {
  const names = element("div", { class: "names" });
  const plot = element("div", { class: "plot", id: "hookboard-plot" });
  const over = element("div", { class: "over" });
  const field = element("div", { class: "field" }, [plot, over]);
  const axis = element("div", { class: "axis" });
  const said = element("div", { class: "said", "aria-live": "polite" });
  const body = element("div", { class: "grid-body" }, [names, field]);
  const loss = element("div", { class: "loss", hidden: true });
  const root = element("div", { class: "grid", role: "grid", tabindex: "0", on: { keydown } }, [loss, body, axis, said]);
  let rows = [];

  function keydown(event) {
    const by = MOVES[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (by) handlers.move(...by);
    else if (event.key === "Enter" || event.key === " ") handlers.enter();
    else return; // the page handles Escape
    event.preventDefault();
  }

  /**
   * Draw the names of the rows.
   * @param {Object[]} given the rows of `rowsSeen`.
   * @param {number} height of a row, in pixels.
   * @param {string} label what the grid shows, for screen readers.
   */
  function draw(given, height, label) {
    rows = given;
    root.style.setProperty("--row", `${height}px`);
    root.setAttribute("aria-label", label);
    root.setAttribute("aria-rowcount", rows.length);
    const width = names.clientWidth;
    names.replaceChildren(...rows.map((row, i) => nameOf(row, i, width, handlers)));
  }

  /** Move the cursor to a row; screen readers read the text. */
  function point(at, text) {
    [...names.children].forEach((name, i) => name.classList.toggle("here", i === at));
    if (names.children[at]) root.setAttribute("aria-activedescendant", names.children[at].id);
    else root.removeAttribute("aria-activedescendant");
    if (said.textContent !== text) said.textContent = text;
  }

  /** Scroll a row into view. */
  function reveal(at) {
    names.children[at]?.scrollIntoView({ block: "nearest" });
  }

  /** Scroll the grid, but not the page, until a row is seen between the loss and the axis. */
  function bring(at) {
    if (!names.children[at]) return;
    const [own, row] = [root.getBoundingClientRect(), names.children[at].getBoundingClientRect()];
    const [top, bottom] = [own.top + loss.offsetHeight, own.bottom - axis.offsetHeight];
    if (row.top < top || row.bottom > bottom) root.scrollTop += (row.top + row.bottom - top - bottom) / 2;
  }

  return { root, names, plot, over, field, axis, loss, draw, point, reveal, bring };
}

function nameOf(row, i, width, handlers) {
  const severity = gravest(row.verdicts) || gravest(row.mentions);
  const kind = [row.frozen, row.layer?.type].filter(Boolean).join(" ");
  const inside = [row.frozen, several(row.rows.length, "row")].filter(Boolean).join(", ");
  const type = row.isBlock ? (row.isOpen ? "" : inside) : kind;
  const isNarrow = width < 240; // too narrow for types
  const room = width - row.depth * 12 - (severity ? 60 : 38) - (isNarrow || !type ? 0 : Math.min(type.length * 6 + 10, 100));
  const rules = saidOf(row).map(({ text }) => text).join(", "); // prettier-ignore
  const count = row.isBlock ? inside : "";
  const name = row.title;
  const act = () => (row.isBlock ? handlers.toggle(row) : handlers.choose(row));
  return element(
    "div",
    {
      class: `name ${severity} ${row.isBlock ? "block" : "leaf"}`, id: `hookboard-row-${i}`, role: "row",
      "aria-expanded": row.isBlock ? String(row.isOpen) : null, "aria-level": row.depth + 1,
      "aria-label": [name, row.isBlock ? row.layer?.type : kind, count, rules].filter(Boolean).join(", "),
      title: [name, row.isBlock ? row.layer?.type : kind, count, rules].filter(Boolean).join("\n"),
      style: { "--depth": row.depth }, on: { click: act },
    }, // prettier-ignore
    [
      element("span", { class: "fold", text: row.isBlock ? (row.isOpen ? "▾" : "▸") : "" }),
      severity ? element("span", { class: "mark", text: markOf(row) }) : null,
      element("span", { class: "label", text: fitted(row.label || name, room) }),
      isNarrow ? null : element("span", { class: "type", text: type }),
    ],
  );
}

/**
 * Draw the ticks of the axis below the cells.
 * @param {HTMLElement} axis the element to draw into.
 * @param {{share: number, text: string}[]} marks `share` from 0 at the left to 1.
 * @param {string} title what the axis shows.
 */
export function drawAxis(axis, marks, title) {
  axis.replaceChildren(
    ...marks.map(({ share, text }) => {
      const place = share > 0.97 ? "tick end" : "tick"; // keeps the last one within the axis
      return element("span", { class: place, text, style: { left: `${share * 100}%` } });
    }),
    element("span", { class: "title", text: title }),
  );
}

/** Give the plot of a grid the height of its rows, and return the layout that both views share. */
export function layoutOf(grid, count, row) {
  const height = count * row;
  grid.plot.style.height = `${height}px`; // before its width is read: a higher plot may need a scroll bar
  return {
    width: grid.field.clientWidth, height, margin: { l: 0, r: 0, t: 0, b: 0, pad: 0 }, showlegend: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", yaxis: { visible: false, range: [count - 0.5, -0.5], fixedrange: true },
  }; // prettier-ignore
}

/**
 * Draw the map.
 * @param {Object} grid of `makeGrid`.
 * @param {Object} picture `numbers`, `rows`, `columns` (the first and last one that is shown), `height` of a row.
 * @param {Object} colours of the theme.
 */
export function drawMap(grid, picture, colours) {
  const { numbers, rows, columns, height } = picture;
  const layout = {
    ...layoutOf(grid, rows.length, height),
    xaxis: { visible: false, range: [columns[0] - 0.5, columns[1] + 0.5], fixedrange: true },
  };
  drawAxis(grid.axis, stepMarks(numbers.steps, columns, grid.field.clientWidth / 70), "step · drag to zoom");
  return window.Plotly.react(grid.plot, tracesOf(numbers, rows, colours), layout, { staticPlot: true });
}

/** Return the traces of a heat map: values, zeros (if the scale is logarithmic), and cells that are not finite. */
export function tracesOf(numbers, rows, colours) {
  const { shown, scale, steps } = numbers;
  const cells = rows.map((row) => steps.map((_, column) => (row.at(column) < 0 ? null : shown[row.at(column)][column])));
  const isZero = (cell) => scale.isLog && !scale.isAround && cell !== null && cell <= 0;
  const isGone = isBrokenIn(scale);
  const number = (cell) => {
    if (cell === null || isGone(cell) || isZero(cell)) return null;
    return Math.min(Math.max(place(cell, scale), scale.low), scale.high);
  };
  const trace = (name, z, colorscale, [zmin, zmax]) => ({
    type: "heatmap", name, z, zmin, zmax, colorscale, x0: 0, dx: 1, y0: 0, dy: 1,
    showscale: false, hoverinfo: "skip", zsmooth: false,
  }); // prettier-ignore
  const part = (name, test, colour) => {
    const z = cells.map((row) => row.map((cell) => (test(cell) ? 1 : null)));
    return z.some((row) => row.includes(1)) ? [trace(name, z, [[0, colour], [1, colour]], [0, 1])] : []; // prettier-ignore
  };
  const palette = scale.isAround ? colours.around : colours.values;
  return [
    trace("values", cells.map((row) => row.map(number)), palette, [scale.low, scale.high]),
    ...part("zero", isZero, colours.zero),
    ...part("not finite", isGone, colours.broken),
  ]; // prettier-ignore
}

/** Return the labels of the axis of steps: column, position from 0 to 1, and text of each. */
export function stepMarks(steps, [first, last], most) {
  const count = last - first + 1;
  const columns = rounded(first, last, Math.min(most, count - 1)); // not steps: they may be far from evenly spaced
  return columns.map((column) => ({ column, share: (column - first + 0.5) / count, text: String(steps[column]) }));
}

/**
 * Draw the legend.
 * @param {HTMLElement} legend the element to draw into.
 * @param {Object} numbers of `numbersOf`.
 * @param {Object} colours of the theme.
 * @param {Object} words of `wordsOf`.
 */
export function drawLegend(legend, numbers, colours, words) {
  const { scale, values, shown } = numbers;
  const any = (cells, test) => cells.some((row) => row.some(test));
  const hasZero = scale.isLog && !scale.isAround && any(values, (cell) => cell !== null && cell <= 0);
  const hasBelow = hasZero && any(values, (cell) => cell !== null && cell < 0);
  const swatch = (colour, text) => element("span", { class: "swatch" }, [element("i", { style: { background: colour } }), text]);
  const palette = scale.isAround ? colours.around : colours.values;
  const marks = ticks(scale, 6).map(({ at, text }) => ({ share: share(at, scale), text }));
  legend.replaceChildren(
    any(shown, isBrokenIn(scale)) ? swatch(colours.broken, "NaN or Inf") : "",
    hasZero ? swatch(colours.zero, hasBelow ? "0 or less" : "0") : "",
    element("span", { class: "scale", title: words.scale }, [
      element("span", { class: "cut", text: scale.isCut[0] ? "less ◂" : "" }),
      element("span", { class: "bar" }, [
        element("i", { style: { background: gradient(palette) } }),
        ...marks.map(({ share: at, text }) => element("span", { class: "tick", text, style: { left: `${at * 100}%` } })),
      ]),
      element("span", { class: "cut", text: scale.isCut[1] ? "▸ more" : "" }),
    ]),
  );
}

function isBrokenIn(scale) {
  return scale.isAround ? (cell) => cell !== null && Number.isNaN(cell) : isBroken;
}

/** Draw a frame around the steps of each verdict, and the cursor: a cell, or without a row its step in all rows. */
export function drawMarks(grid, picture, verdicts, cursor) {
  const { numbers, rows, columns, height } = picture;
  const count = columns[1] - columns[0] + 1;
  const frame = (name, at, [first, last], many = 1) => {
    const [from, to] = [Math.max(first, columns[0]), Math.min(last, columns[1])];
    if (from > to) return null;
    const left = (from - columns[0]) / count;
    const width = (to - from + 1) / count;
    return element("div", {
      class: name,
      style: { top: `${at * height}px`, height: `${many * height}px`, left: `${left * 100}%`, width: `${width * 100}%` },
    });
  };
  const frames = framesOf(rows, numbers.steps).map(({ at, severity, span }) => frame(`frame ${severity}`, at, span));
  const at = rowAt(rows, cursor.row);
  const [top, many] = cursor.isOfAll ? [0, rows.length] : [at, 1];
  const cross = top < 0 ? [] : [frame("cursor", top, [cursor.column, cursor.column], many)];
  grid.over.replaceChildren(...[...frames, ...cross].filter(Boolean));
}

/** Return the frames of verdicts: `at` (index of the row), `span` (first and last column) and `severity`. */
export function framesOf(rows, steps) {
  return rows.flatMap((row, at) => spans(row.verdicts, steps).map((frame) => ({ at, ...frame })));
}

/** Return severity and columns of each of the gravest verdicts of one row. */
function spans(verdicts, steps) {
  const severity = gravest(verdicts);
  const those = verdicts.filter((verdict) => verdict.severity === severity);
  const last = steps.length - 1;
  return those.map(({ since, until }) => {
    const begin = steps.findIndex((step) => step >= since);
    const after = until === null ? -1 : steps.findIndex((step) => step > until);
    const first = begin < 0 ? last : begin;
    return { severity, span: [first, after < 0 ? last : Math.max(after - 1, first)] };
  });
}

const SORTED = new Map([["name", "by name"], ["worst", "worst first"], ["change", "most changed first"]]); // prettier-ignore

/** Return the texts around a map: `title`, `what` is compared, `facts`, and the tooltip of the `scale`. */
export function wordsOf(run, numbers, state, rows, hidden) {
  const { series, scale, steps, pair } = numbers;
  const what = pair
    ? `${pair[0]} ${scale.isLog ? "as a multiple of" : "minus"} ${pair[1]}`
    : scale.isAround ? (scale.isLog ? "as a multiple of the median of its type" : "minus the median of its type") : "";
  const [from, to] = state.view === "depth" || state.from === "" ? ["", ""] : [state.from, state.to];
  const span = steps.length ? `steps ${from || steps[0]} to ${to || steps[steps.length - 1]}` : "no steps";
  const order = run.is_ordered ? "in the order they run" : "in the order of their names";
  const shown = rows.filter((row) => !row.isOpen || row.row >= 0).length;
  const folded = shown < numbers.names.length - hidden ? `, folded into ${several(shown, "line")}` : "";
  return {
    title: titled(series.label), what,
    facts: `${several(numbers.names.length - hidden, "row")}${folded}; ${span}; ${SORTED.get(state.sort) ?? order}`,
    scale: scale.isCut.some(Boolean) ? "Values beyond the ends are drawn in the color of the end." : "One scale for the whole run.",
  }; // prettier-ignore
}

/**
 * Return what the tooltip shows for a cell.
 * @param {Object} picture `numbers` and `rows`.
 * @param {number} at the index of the row in `rows`.
 * @param {number} column its column.
 * @returns {{name: string, type: string, lines: string[], said: Object[]}|null} null where there is no row.
 */
export function cellOf({ numbers, rows }, at, column) {
  const row = rows[at];
  if (!row || column < 0 || column >= numbers.steps.length) return null;
  const step = numbers.steps[column];
  const index = row.at(column);
  const lines = [`step ${step}`];
  if (index < 0) lines.push(row.isOpen ? "opened: its rows are below" : "no value");
  else lines.push(...valueLines(numbers, index, column));
  const isFolded = row.isBlock && !row.isOpen;
  if (isFolded && index >= 0) lines.push(`the worst of its ${row.rows.length} rows: ${numbers.names[index]}`);
  const holds = ({ since, until }) => since <= step && (until === null || step <= until);
  const said = saidOf({ verdicts: row.verdicts.filter(holds), mentions: row.mentions.filter(holds) });
  return { name: row.title, type: index >= 0 ? numbers.owners[index].type : "", lines: [...lines, ...membersOf(row)], said };
}

const MAX_NAMED = 12;

/** Return the names of the rows that a band merges. */
function membersOf({ members }) {
  const rest = members.length - MAX_NAMED;
  if (members.length < 2) return [];
  return ["", ...members.slice(0, MAX_NAMED).map(({ title }) => title), ...(rest > 0 ? [`and ${rest} more`] : [])];
}

function valueLines(numbers, index, column) {
  const { values, others, usual, series, shown, scale, kinds, owners } = numbers;
  const value = values[index][column];
  if (value === null) return ["no value"];
  const health = series.source === "health" && !Number.isFinite(value);
  const lines = [`${titled(series.label)}: ${health ? "not finite (NaN or Inf)" : written(value, 4)}`];
  if (others) {
    const other = others[index][column];
    lines.push(`in ${numbers.pair[1]}: ${other === null ? "no value" : written(other, 4)}`);
    const far = shown[index][column];
    if (far !== null && Number.isFinite(far)) lines.push(scale.isLog ? `ratio ${written(10 ** far)}` : `difference ${written(far)}`);
    return lines;
  }
  const middle = usual[index][column];
  if (Number.isFinite(value) && middle !== null) {
    const same = kinds.filter((kind) => kind === kinds[index]).length;
    const kind = same >= 3 ? owners[index].type || "like rows" : "all rows";
    const ratio = series.scale === "log" && middle > 0 ? ` (${written(value / middle)} × it)` : "";
    lines.push(`median of ${kind}: ${written(middle)}${ratio}`);
  }
  return lines;
}

/** Return the content of a tooltip as one line, for screen readers. */
export function heard(cell) {
  if (!cell) return "";
  return [cell.name, cell.type, ...cell.lines, ...cell.said.map(({ text }) => text)].filter(Boolean).join(", ");
}

/** Make the tooltip. */
export function makeTip() {
  const box = element("div", { class: "tip", role: "tooltip", hidden: true });

  function show(cell, x, y) {
    box.hidden = !cell;
    if (!cell) return;
    box.replaceChildren(
      element("div", { class: "tip-name", text: cell.name }),
      cell.type ? element("div", { class: "tip-type", text: cell.type }) : "",
      ...cell.lines.map((text) => element("div", { text })),
      ...cell.said.map(({ severity, text }) => element("div", { class: severity, text })),
    );
    const { innerWidth, innerHeight } = window;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(Math.min(x + 16, innerWidth - width - 8), 8)}px`;
    box.style.top = `${y + 20 + height > innerHeight ? Math.max(y - height - 12, 4) : y + 20}px`;
  }

  return { box, show, hide: () => show(null) };
}
