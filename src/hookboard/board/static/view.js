/** The main part of the page: the map or the depth view, with its heading, legend and exports. */

import { button, element, titled } from "./dom.js";
import { depthFigure, depthTable, mapFigure, mapTable, saveCsv, savePng } from "./export.js";
import { drawLoss } from "./loss.js";
import { cellOf, drawAxis, drawLegend, drawMap, drawMarks, heard, layoutOf, makeGrid, wordsOf } from "./map.js";
import { bandsOf, columnOf, gravest, isBackward, numbersFor, rowAt, standIn } from "./model.js";
import { isBroken, isFinite, place, share, ticks } from "./scale.js";
import { addressOf } from "./state.js";

const GAP = 0.03; // from each half to the middle, as a share of the width

/** Return the halves from left to right: the forward pass first. */
function halvesOf(numbers, other) {
  return other ? [numbers, other].sort((a, b) => isBackward(a.series) - isBackward(b.series)) : [numbers];
}

/**
 * Draw the depth view.
 * @param {Object} grid of `makeGrid`.
 * @param {Object} picture `halves` (each with `numbers` and `column`), `rows`, `height` of a row.
 * @param {Object} colours of the theme.
 */
function drawDepth(grid, picture, colours) {
  const { halves, rows, height } = picture;
  const layout = layoutOf(grid, rows.length, height);
  const isNarrow = layout.width < 400; // too narrow for five ticks in each half
  const marks = [];
  const data = halves.flatMap((half, i) => {
    const domain = domainOf(i, halves.length);
    const at = ticks(half.numbers.scale, isNarrow ? 3 : 5);
    const room = 0.04 * (half.numbers.scale.high - half.numbers.scale.low);
    layout[axisName("xaxis", i)] = {
      domain, anchor: "y", fixedrange: true, showticklabels: false, ticks: "", zeroline: false, gridcolor: colours.line,
      range: [half.numbers.scale.low - room, half.numbers.scale.high + room], tickvals: at.map((tick) => tick.at),
    }; // prettier-ignore
    marks.push(...marksOf(at, half.numbers.scale, domain, room));
    return halfTraces(half, rows, i, colours);
  });
  drawAxis(grid.axis, marks, "");
  return window.Plotly.react(grid.plot, data, layout, { staticPlot: true });
}

function axisName(name, i) {
  return i ? `${name}${i + 1}` : name;
}

/** Return the part of the width that a half takes, from 0 to 1. */
function domainOf(i, count) {
  return count === 1 ? [0, 1] : [i ? 0.5 + GAP : 0, i ? 1 : 0.5 - GAP];
}

function marksOf(at, scale, [left, right], room) {
  const whole = scale.high - scale.low + 2 * room;
  return at.map((tick) => ({ share: left + ((tick.at - scale.low + room) / whole) * (right - left), text: tick.text }));
}

/** Return the traces of one half: values joined by a line, the median of each row's kind, and marks for 0, NaN and Inf. */
function halfTraces({ numbers, column, index }, rows, i, colours) {
  const { values, usual, scale, series } = numbers;
  // An open block without values is a heading: the line goes on after it. Any other missing value is a gap.
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
      ...base, name: `median of the type, ${series.id}`, mode: "markers", x: cells.map(({ middle }) => position(middle)),
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

const ROW_HEIGHTS = [17, 26]; // minimum and maximum, in pixels
const MIN_BANDS = 12; // also where less fits

/**
 * Make the map and the depth view.
 * @param {Object} handlers of the page.
 * @param {Object} tip of `makeTip`.
 */
export function makeView(handlers, tip) {
  const title = element("h2");
  const what = element("span", { class: "what" });
  const facts = element("p", { class: "facts-line" });
  const key = element("p", { class: "facts-line key-line" });
  const legend = element("div", { class: "legend" });
  const fit = button("", "Show every row, or as many as fit", () => handlers.update({ rows: state.rows === "all" ? "" : "all" }));
  const whole = button("All steps", "Show all steps again", () => handlers.update({ from: "", to: "" }));
  const png = button("PNG", "Save as a picture", () => save("png"));
  const csv = button("CSV", "Save the numbers", () => save("csv"));
  const slider = element("input", { type: "range", min: 0, id: "hookboard-step", on: { input: slide } });
  const step = element("output", { for: "hookboard-step" });
  const stepper = element("label", { class: "stepper", for: "hookboard-step" }, ["step", slider, step]);
  const grid = makeGrid({ toggle: handlers.toggle, choose: (row) => openLayer(row), move, enter });
  const pull = element("div", { class: "pull", hidden: true });
  grid.field.append(pull);
  const head = element("div", { class: "head" }, [
    element("div", { class: "words" }, [element("div", {}, [title, what]), facts, key]),
    element("div", { class: "tools" }, [stepper, whole, fit, png, csv]),
  ]);
  const root = element("section", { class: "view", "aria-label": "layers" }, [head, legend, grid.root]);
  let picture = null;
  let state = null;
  let colours = null;
  let run = null;
  let from = null;

  /** Draw everything. */
  function draw(shown, given, palette) {
    [state, colours, run] = [given, palette, shown.run];
    const { numbers, filter } = shown;
    const isDepth = state.view === "depth";
    root.classList.toggle("depth", isDepth);
    stepper.hidden = key.hidden = !isDepth;
    const columns = columnsOf(numbers.steps, state);
    drawLoss(grid.loss, isDepth ? null : run.loss, numbers.steps, columns);
    const taken = 36 + grid.loss.offsetHeight; // 36: the axis
    const room = grid.root.clientHeight - taken;
    const isFitted = state.rows !== "all" && shown.sort !== "worst" && shown.sort !== "change"; // of those the top counts
    const most = Math.max(Math.floor(room / ROW_HEIGHTS[0]), MIN_BANDS);
    const rows = isFitted ? bandsOf(numbers, shown.rows, most) : shown.rows;
    const hidden = filter ? numbers.names.length - new Set(rows.flatMap((row) => row.rows)).size : 0;
    const height = Math.min(Math.max(Math.floor(room / Math.max(rows.length, 1)), ROW_HEIGHTS[0]), ROW_HEIGHTS[1]);
    picture = { numbers, rows, columns, height };
    const words = wordsOf(run, numbers, { ...state, sort: shown.sort }, rows, hidden);
    title.textContent = isDepth ? "How the signal travels" : words.title;
    what.textContent = isDepth ? "" : words.what;
    facts.textContent = words.facts;
    grid.draw(rows, height, `${words.title}, ${words.facts}. Arrows move, Enter opens.`);
    whole.hidden = isDepth || state.from === "";
    fit.hidden = isFitted ? rows.length === shown.rows.length : state.rows !== "all" || shown.rows.length <= most;
    fit.textContent = isFitted ? "All rows" : "Fit";
    if (isDepth) drawHalves(shown);
    else {
      drawLegend(legend, numbers, colours, words);
      drawMap(grid, picture, colours);
    }
  }

  function drawHalves(shown) {
    const { how, partner } = shown;
    const other = partner && numbersFor(run, partner, how);
    const halves = halvesOf(picture.numbers, other).map((numbers) => halfOf(numbers, picture.numbers, state.step));
    picture.halves = halves;
    slider.max = picture.numbers.steps.length - 1;
    const column = columnOf(picture.numbers.steps, state.step);
    slider.value = column;
    step.textContent = String(picture.numbers.steps[column]);
    slider.setAttribute("aria-valuetext", `step ${step.textContent}`);
    legend.replaceChildren(...halves.map(({ numbers }) => halfTitle(numbers, colours)));
    key.textContent = "│ median of its type (if there are few, of all layers)   ✕ 0   ◆ NaN or Inf";
    key.title = "With fewer than 3 layers of a type, the median of all layers.";
    drawDepth(grid, picture, colours);
  }

  /** Move the cursor. */
  function point(shown, given, cursor) {
    const moved = state?.step !== given.step;
    state = given;
    if (state.view === "depth" && moved) drawHalves(shown);
    const at = rowAt(picture.rows, cursor.row);
    if (state.view === "depth") grid.over.replaceChildren();
    else drawMarks(grid, picture, shown.run.verdicts, cursor);
    grid.point(at, at < 0 ? "" : heard(cellOf(picture, at, cursor.column)));
  }

  function cellUnder(event) {
    const box = grid.field.getBoundingClientRect();
    const [first, last] = picture.columns;
    const column = first + Math.floor(((event.clientX - box.left) / box.width) * (last - first + 1));
    const at = Math.floor((event.clientY - box.top) / picture.height);
    return { at, column: Math.min(Math.max(column, first), last), x: event.clientX - box.left };
  }

  grid.field.addEventListener("mousemove", (event) => {
    if (!picture) return;
    const { at, column, x } = cellUnder(event);
    const isDepth = state.view === "depth";
    if (from && !isDepth) {
      pull.hidden = Math.abs(x - from.x) < 6;
      pull.style.left = `${Math.min(x, from.x)}px`;
      pull.style.width = `${Math.abs(x - from.x)}px`;
    }
    tip.show(isDepth ? depthCell(x, at) : cellOf(picture, at, column), event.clientX, event.clientY);
  });

  /** Return what the tooltip shows in the depth view, for the half under the mouse. */
  function depthCell(x, at) {
    const { halves, rows } = picture;
    const half = halves[x < grid.field.clientWidth / 2 ? 0 : halves.length - 1];
    const row = rows[at] && { ...rows[at], at: () => half.index(rows[at]) };
    return cellOf({ numbers: half.numbers, rows: { [at]: row } }, at, half.column);
  }

  grid.field.addEventListener("mouseleave", () => tip.hide());
  grid.field.addEventListener("mousedown", (event) => (from = event.button === 0 ? cellUnder(event) : null));
  window.addEventListener("mouseup", (event) => {
    const start = from;
    from = null;
    if (!start || !picture) return;
    const end = cellUnder(event);
    const isPulled = !pull.hidden;
    pull.hidden = true;
    if (isPulled) {
      const [a, b] = [start.column, end.column].sort((one, other) => one - other);
      const { steps } = picture.numbers;
      if (b > a) handlers.update({ from: String(steps[a]), to: String(steps[b]) });
    } else if (picture.rows[start.at]) click(picture.rows[start.at], start.column);
  });

  function click(row, column) {
    const step = state.view === "depth" ? state.step : String(picture.numbers.steps[column]);
    if (row.members.length > 1) handlers.toggle(row);
    else if (row.isBlock && row.row < 0) handlers.update({ row: addressOf(row.name), step }, true);
    else openLayer(row, step);
  }

  function openLayer(row, at = state.step) {
    handlers.update({ row: addressOf(row.name), step: at, layer: addressOf(row.layer?.name ?? row.name) });
  }

  function move(down, right) {
    const { rows, numbers, columns } = picture;
    const at = Math.max(rowAt(rows, state.row), 0);
    const next = state.row === "" ? at : Math.min(Math.max(at + down, 0), rows.length - 1);
    const column = Math.min(Math.max(columnOf(numbers.steps, state.step) + right, columns[0]), columns[1]);
    handlers.update({ row: rows[next] ? addressOf(rows[next].name) : "", step: String(numbers.steps[column]) });
    grid.reveal(next);
  }

  function enter() {
    const row = picture.rows[rowAt(picture.rows, state.row)];
    if (row?.isBlock) handlers.toggle(row);
    else if (row) openLayer(row);
  }

  function slide() {
    handlers.update({ step: String(picture.numbers.steps[Number(slider.value)]) });
  }

  function save(kind) {
    const { pair } = picture.numbers;
    const name = `${[run.run, ...(pair ?? [])].filter((one, i, all) => all.indexOf(one) === i).join("-")}-${state.view === "depth" ? "depth" : picture.numbers.series.id}`;
    const [label, at] = [titled(picture.numbers.series.label), step.textContent];
    const heading = `${run.run}: ${state.view === "depth" ? `how the signal travels at step ${at}` : `${label} ${what.textContent}`}`;
    if (state.view === "depth") {
      if (kind === "csv") saveCsv(`${name}.csv`, depthTable(picture));
      else savePng(`${name}.png`, depthFigure(grid.plot, picture, colours, heading));
    } else if (kind === "csv") saveCsv(`${name}.csv`, mapTable(picture));
    else savePng(`${name}.png`, mapFigure(picture, colours, heading));
  }

  const withRow = (act) => (address) => act(rowAt(picture.rows, address));
  return { root, draw, point, reveal: withRow(grid.reveal), bring: withRow(grid.bring), focus: () => grid.root.focus() };
}

/** Return the first and last column that are shown. */
function columnsOf(steps, { from, to }) {
  const last = steps.length - 1;
  if (from === "" || to === "") return [0, last];
  const [first, end] = [steps.findIndex((step) => step >= Number(from)), columnOf(steps, to)];
  return first < 0 || end <= first ? [0, last] : [first, end];
}

/** Return one half of the depth view: `column` of the step, `index(row)` of the values that a visible row shows, `valueOf(name)`. */
function halfOf(numbers, main, step) {
  const column = columnOf(numbers.steps, step);
  const place = new Map(numbers.names.map((name, i) => [name, i]));
  const index = (row) => {
    if (!row.isBlock || row.isOpen) return row.row < 0 ? -1 : (place.get(row.name) ?? -1);
    const rows = row.rows.map((i) => place.get(main.names[i])).filter((i) => i !== undefined);
    return rows.length ? standIn(rows, numbers.far, numbers.same)(column) : -1;
  };
  const valueOf = (name) => (place.has(name) ? numbers.values[place.get(name)][column] : null);
  return { numbers, column, index, valueOf };
}

function halfTitle(numbers, colours) {
  const isBack = isBackward(numbers.series);
  const way = isBack ? "↑ backward " : /update|weight|parameter/.test(numbers.series.id) ? "" : "↓ forward ";
  return element("div", { class: "half" }, [
    element("b", { text: way, style: { color: isBack ? colours.backward : colours.forward } }),
    element("span", { text: titled(numbers.series.label) }),
  ]);
}
