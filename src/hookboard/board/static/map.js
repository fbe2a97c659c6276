/** The heat map: a row for each layer, a column for each step. */

import { gradient } from "./colours.js";
import { element, several, titled } from "./dom.js";
import { drawAxis } from "./grid.js";
import { gravest } from "./model.js";
import { place, rounded, share, ticks } from "./scale.js";
import { addressOf } from "./state.js";
import { isBroken } from "./values.js";

/**
 * Draw the map.
 * @param {Object} grid of `makeGrid`.
 * @param {Object} picture `numbers`, `rows`, `columns` (the first and last one that is shown), `height` of a row.
 * @param {Object} colours of the theme.
 */
export function drawMap(grid, picture, colours) {
  const { numbers, rows, columns, height } = picture;
  const layout = {
    width: grid.field.clientWidth, height: rows.length * height, margin: { l: 0, r: 0, t: 0, b: 0, pad: 0 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    xaxis: { visible: false, range: [columns[0] - 0.5, columns[1] + 0.5], fixedrange: true },
    yaxis: { visible: false, range: [rows.length - 0.5, -0.5], fixedrange: true },
  }; // prettier-ignore
  grid.plot.style.height = `${layout.height}px`;
  drawAxis(grid.axis, stepMarks(numbers.steps, columns, grid.field.clientWidth / 70), "step · drag to zoom");
  return window.Plotly.react(grid.plot, tracesOf(numbers, rows, colours), layout, { staticPlot: true });
}

/** The traces of a heat map: values, and apart from them zeros on a logarithmic scale and what is not finite. */
export function tracesOf(numbers, rows, colours) {
  const { shown, scale, steps } = numbers;
  const cells = rows.map((row) => steps.map((_, column) => (row.at(column) < 0 ? null : shown[row.at(column)][column])));
  const isZero = (cell) => scale.isLog && !scale.isAround && cell !== null && cell <= 0;
  const isGone = (cell) => (scale.isAround ? cell !== null && Number.isNaN(cell) : isBroken(cell));
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

/** Where the steps stand that are written below the columns. */
export function stepMarks(steps, [first, last], most) {
  const count = last - first + 1;
  const columns = new Set();
  for (const round of rounded(steps[first] ?? 0, steps[last] ?? 0, Math.min(most, count))) {
    const column = steps.findIndex((step) => step >= round);
    if (column >= first && column <= last) columns.add(column);
  }
  return [...columns].map((column) => ({ column, share: (column - first + 0.5) / count, text: String(steps[column]) }));
}

/**
 * Write the legend.
 * @param {HTMLElement} legend the place.
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

/** Frame the steps of each verdict on its row, and show the cursor: a cell, or without a row its step in all rows. */
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
  const frames = rows.flatMap((row, at) =>
    spans(row.verdicts, numbers.steps).map(({ severity, span }) => frame(`frame ${severity}`, at, span)),
  );
  const at = rows.findIndex((row) => addressOf(row.name) === cursor.row);
  const [top, many] = cursor.isOfAll ? [0, rows.length] : [at, 1];
  const cross = top < 0 ? [] : [frame("cursor", top, [cursor.column, cursor.column], many)];
  grid.over.replaceChildren(...[...frames, ...cross].filter(Boolean));
}

/** The columns of verdicts of one row, joined: the gravest over all their steps. */
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

/** What a map shows, in words. */
export function wordsOf(run, numbers, state, rows, hidden) {
  const { series, scale, steps } = numbers;
  const what = state.against
    ? scale.isLog ? `${run.run} as a multiple of ${state.against}` : `${run.run} minus ${state.against}`
    : scale.isAround ? (scale.isLog ? "as a multiple of the median of its kind" : "minus the median of its kind") : "";
  const [from, to] = state.view === "depth" || state.from === "" ? ["", ""] : [state.from, state.to];
  const span = steps.length ? `steps ${from || steps[0]} to ${to || steps[steps.length - 1]}` : "no steps";
  const order = run.is_ordered ? "in the order they run" : "in the order of their names";
  const shown = rows.filter((row) => !row.isOpen || row.row >= 0).length;
  const folded = shown < numbers.names.length - hidden ? `, folded into ${several(shown, "line")}` : "";
  return {
    title: titled(series.label), what,
    facts: `${several(numbers.names.length - hidden, "row")}${folded}; ${span}; ${state.sort === "worst" ? "worst first" : state.sort === "name" ? "by name" : order}`,
    scale: scale.isCut.some(Boolean) ? "Values beyond the ends are drawn in the colour of the end." : "One scale for the whole run.",
  }; // prettier-ignore
}
