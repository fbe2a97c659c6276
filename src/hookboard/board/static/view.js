/** The large part of the page: the map or the depth view, with its heading, legend and exports. */

import { drawDepth, halvesOf, isBackward } from "./depth.js";
import { button, element, titled } from "./dom.js";
import { depthFigure, depthTable, mapFigure, mapTable, saveCsv, savePng } from "./export.js";
import { makeGrid } from "./grid.js";
import { drawLegend, drawMap, drawMarks, wordsOf } from "./map.js";
import { columnOf } from "./model.js";
import { numbersFor } from "./numbers.js";
import { addressOf } from "./state.js";
import { cellOf, heard } from "./tip.js";
import { standIn } from "./values.js";

const HEIGHTS = [17, 26]; // of a row, in pixels

/**
 * Make the view.
 * @param {Object} handlers of the page.
 * @param {Object} tip of `makeTip`.
 */
export function makeView(handlers, tip) {
  const title = element("h2");
  const what = element("span", { class: "what" });
  const facts = element("p", { class: "facts-line" });
  const key = element("p", { class: "facts-line key-line" });
  const legend = element("div", { class: "legend" });
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
    element("div", { class: "tools" }, [stepper, whole, png, csv]),
  ]);
  const root = element("section", { class: "view", "aria-label": "layers" }, [head, legend, grid.root]);
  let picture = null;
  let state = null;
  let colours = null;
  let run = null;
  let from = null;

  /** Draw all of it. */
  function draw(shown, given, palette) {
    [state, colours, run] = [given, palette, shown.run];
    const { numbers, rows, filter } = shown;
    const hidden = filter ? numbers.names.length - new Set(rows.flatMap((row) => row.rows)).size : 0;
    const room = Math.floor((grid.root.clientHeight - 36) / Math.max(rows.length, 1)); // 36: the axis
    const height = Math.min(Math.max(room, HEIGHTS[0]), HEIGHTS[1]);
    picture = { numbers, rows, columns: columnsOf(numbers.steps, state), height };
    const isDepth = state.view === "depth";
    const words = wordsOf(run, numbers, { ...state, sort: isDepth ? "order" : state.sort }, rows, hidden);
    title.textContent = isDepth ? "How the signal travels" : words.title;
    what.textContent = isDepth ? "" : words.what;
    facts.textContent = words.facts;
    root.classList.toggle("depth", isDepth);
    grid.draw(rows, height, `${words.title}, ${words.facts}. Arrows move, Enter opens.`);
    whole.hidden = isDepth || state.from === "";
    stepper.hidden = key.hidden = !isDepth;
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
    key.textContent = "│ median of its type (of all rows, if fewer than 3 are of it)   ✕ 0   ◆ NaN or Inf";
    drawDepth(grid, picture, colours);
  }

  /** Show the cursor. */
  function point(shown, given, cursor) {
    const moved = state?.step !== given.step;
    state = given;
    if (state.view === "depth" && moved) drawHalves(shown);
    const at = picture.rows.findIndex((row) => addressOf(row.name) === cursor.row);
    if (state.view === "depth") grid.over.replaceChildren();
    else drawMarks(grid, picture, shown.run.verdicts, cursor);
    grid.point(at, at < 0 ? "" : heard(cellOf(picture, at, cursor.column, state)));
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
    tip.show(isDepth ? depthCell(x, at) : cellOf(picture, at, column, state), event.clientX, event.clientY);
  });

  /** In the depth view, the cell of the half that the mouse is on. */
  function depthCell(x, at) {
    const { halves, rows } = picture;
    const half = halves[x < grid.field.clientWidth / 2 ? 0 : halves.length - 1];
    const row = rows[at] && { ...rows[at], at: () => half.index(rows[at]) };
    return cellOf({ numbers: half.numbers, rows: { [at]: row } }, at, half.column, state);
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
    if (row.isBlock && row.row < 0) handlers.update({ row: addressOf(row.name), step });
    else openLayer(row, step);
  }

  function openLayer(row, at = state.step) {
    handlers.update({ row: addressOf(row.name), step: at, layer: addressOf(row.layer?.name ?? row.name) });
  }

  function move(down, right) {
    const { rows, numbers, columns } = picture;
    const at = Math.max(rows.findIndex((row) => addressOf(row.name) === state.row), 0);
    const next = state.row === "" ? at : Math.min(Math.max(at + down, 0), rows.length - 1);
    const column = Math.min(Math.max(columnOf(numbers.steps, state.step) + right, columns[0]), columns[1]);
    handlers.update({ row: rows[next] ? addressOf(rows[next].name) : "", step: String(numbers.steps[column]) });
    grid.reveal(next);
  }

  function enter() {
    const row = picture.rows.find(({ name }) => addressOf(name) === state.row);
    if (row?.isBlock) handlers.toggle(row);
    else if (row) openLayer(row);
  }

  function slide() {
    handlers.update({ step: String(picture.numbers.steps[Number(slider.value)]) });
  }

  function save(kind) {
    const pair = picture.numbers.others ? `${run.run}-and-${state.against}` : run.run;
    const name = `${pair}-${state.view === "depth" ? "depth" : picture.numbers.series.id}`;
    const [label, at] = [titled(picture.numbers.series.label), step.textContent];
    const heading = `${run.run}: ${state.view === "depth" ? `how the signal travels at step ${at}` : `${label} ${what.textContent}`}`;
    if (state.view === "depth") {
      if (kind === "csv") saveCsv(`${name}.csv`, depthTable(picture));
      else savePng(`${name}.png`, depthFigure(grid.plot, picture, colours, heading));
    } else if (kind === "csv") saveCsv(`${name}.csv`, mapTable(picture, run.run, state));
    else savePng(`${name}.png`, mapFigure(picture, colours, heading));
  }

  return { root, draw, point, reveal: grid.reveal, focus: () => grid.root.focus() };
}

/** The first and last column that are shown. */
function columnsOf(steps, { from, to }) {
  const last = steps.length - 1;
  if (from === "" || to === "") return [0, last];
  const [first, end] = [steps.findIndex((step) => step >= Number(from)), columnOf(steps, to)];
  return first < 0 || end <= first ? [0, last] : [first, end];
}

/** One half of the depth view: where its column is, and which of its rows stands for a row that is seen. */
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
  return element("div", { class: "half" }, [
    element("b", { text: isBack ? "↑ backward " : "↓ forward ", style: { color: isBack ? colours.backward : colours.forward } }),
    element("span", { text: titled(numbers.series.label) }),
  ]);
}
