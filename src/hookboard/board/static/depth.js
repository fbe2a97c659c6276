/** The depth view: how a signal travels through the layers at one step, forward and backward beside each other. */

import { drawAxis } from "./grid.js";
import { gravest } from "./model.js";
import { place, share, ticks } from "./scale.js";
import { isBroken, isFinite } from "./values.js";

const GAP = 0.03; // between both halves, as a share of the width

/** The other direction of a series: gradients for activations, and the reverse; null if there is none. */
export function partnerOf(series, all) {
  const swap = (id) =>
    /(^|[/_])activation/.test(id) ? id.replace(/(^|[/_])activation/, "$1gradient") : id.replace(/(^|[/_])gradient/, "$1activation");
  const other = swap(series.id);
  return (other !== series.id && all.find(({ id }) => id === other)) || null;
}

/** Whether a series is one of the backward pass. */
export function isBackward(series) {
  return /gradient/.test(series.id);
}

/** The halves from left to right: the forward pass first. */
export function halvesOf(numbers, other) {
  return other ? [numbers, other].sort((a, b) => isBackward(a.series) - isBackward(b.series)) : [numbers];
}

/**
 * Draw the view.
 * @param {Object} grid of `makeGrid`.
 * @param {Object} picture `halves` (each with `numbers` and `column`), `rows`, `height` of a row.
 * @param {Object} colours of the theme.
 */
export function drawDepth(grid, picture, colours) {
  const { halves, rows, height } = picture;
  const layout = {
    width: grid.field.clientWidth, height: rows.length * height, margin: { l: 0, r: 0, t: 0, b: 0, pad: 0 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
    yaxis: { visible: false, range: [rows.length - 0.5, -0.5], fixedrange: true },
  }; // prettier-ignore
  const marks = [];
  const data = halves.flatMap((half, i) => {
    const domain = domainOf(i, halves.length);
    const at = ticks(half.numbers.scale, 5);
    const room = 0.04 * (half.numbers.scale.high - half.numbers.scale.low);
    layout[axisName("xaxis", i)] = {
      domain, anchor: "y", fixedrange: true, showticklabels: false, ticks: "", zeroline: false, gridcolor: colours.line,
      range: [half.numbers.scale.low - room, half.numbers.scale.high + room], tickvals: at.map((tick) => tick.at),
    }; // prettier-ignore
    marks.push(...marksOf(at, half.numbers.scale, domain, room));
    return tracesOf(half, rows, i, colours);
  });
  grid.plot.style.height = `${layout.height}px`;
  drawAxis(grid.axis, marks, "");
  return window.Plotly.react(grid.plot, data, layout, { staticPlot: true });
}

function axisName(name, i) {
  return i ? `${name}${i + 1}` : name;
}

/** Which part of the width a half takes. */
export function domainOf(i, count) {
  return count === 1 ? [0, 1] : [i ? 0.5 + GAP : 0, i ? 1 : 0.5 - GAP];
}

function marksOf(at, scale, [left, right], room) {
  const whole = scale.high - scale.low + 2 * room;
  return at.map((tick) => ({ share: left + ((tick.at - scale.low + room) / whole) * (right - left), text: tick.text }));
}

/** The points of one half: values joined by a line, the median of each row's kind, and what has no place. */
function tracesOf({ numbers, column, index }, rows, i, colours) {
  const { values, usual, scale, series } = numbers;
  // An open block without values of its own is a heading: the line goes on behind it. Elsewhere a gap is a gap.
  const cells = rows.flatMap((row, at) => {
    const found = index(row);
    if (found < 0 && row.isOpen) return [];
    return [{ at, row, cell: found < 0 ? null : values[found][column], middle: found < 0 ? null : usual[found][column] }];
  });
  const y = cells.map(({ at }) => at);
  const position = (value) => (isFinite(value) && !(scale.isLog && value <= 0) ? clamped(value, scale) : null);
  const colour = isBackward(series) ? colours.backward : colours.forward;
  const now = numbers.steps[column];
  const holds = ({ since, until }) => since <= now && (until === null || now <= until);
  const sick = cells.map(({ row }) => gravest(row.verdicts.filter(holds)));
  const base = { type: "scatter", xaxis: axisName("x", i), yaxis: "y", y, hoverinfo: "skip" };
  const off = (name, test, x, symbol, shade) => {
    const places = cells.filter(({ cell }) => cell !== null && test(cell)).map(({ at }) => at);
    const marker = { symbol, size: 9, color: shade };
    return places.length ? [{ ...base, name, mode: "markers", x: places.map(() => x), y: places, marker }] : [];
  };
  return [
    {
      ...base, name: `median of the kind, ${series.id}`, mode: "markers", x: cells.map(({ middle }) => position(middle)),
      marker: { symbol: "line-ns", size: 9, line: { width: 1.5, color: colours.usual } },
    },
    {
      ...base, name: series.id, mode: "lines+markers", x: cells.map(({ cell }) => position(cell)), line: { color: colour, width: 1.5 },
      marker: {
        opacity: 1, line: { width: 0 }, size: sick.map((how) => (how ? 10 : 6)), color: sick.map((how) => (how ? colours[how] : colour)),
        symbol: sick.map((how) => (how === "alarm" ? "triangle-up" : "circle")),
      },
    },
    ...off("zero", (cell) => scale.isLog && cell <= 0, scale.low, "x-thin-open", colours.ink),
    ...off("not finite", isBroken, scale.high, "diamond", colours.broken),
  ]; // prettier-ignore
}

function clamped(value, scale) {
  const at = place(value, scale);
  return scale.low + share(at, scale) * (scale.high - scale.low);
}
