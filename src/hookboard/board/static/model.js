/** From a run's answers to what a view draws: rows with their cells, kinds, verdicts and folds. */

import { decoded } from "./data.js";
import { distanceScale, valueScale } from "./scale.js";
import { namesIn } from "./state.js";
import { natural, openAtFirst, seen, treeOf } from "./tree.js";
import { distances, medians, standIn, worstOf } from "./values.js";

const SAME = 0.3; // what is about as bad: a factor of 2, or so much of a linear scale

/**
 * The numbers of a map, and what follows from them: computed once for each answer and way to show it.
 * @param {Object} run the answer of `run`.
 * @param {Object} map the answer of `map`.
 * @param {string} how log, linear or deviation.
 */
export function numbersOf(run, map, how) {
  const series = run.series.find(({ id }) => id === map.series);
  const isLog = how === "deviation" ? series.scale === "log" : how === "log";
  const values = map.values.map(decoded);
  const others = map.against_values?.map(decoded) ?? null;
  const byName = new Map(run.layers.map((layer) => [layer.name, layer]));
  const owners = map.modules.map((name) => byName.get(name) ?? { name, type: "", types: [] });
  const kinds = owners.map((layer, row) => kindOf(layer, map.rows[row]));
  const usual = medians(values, kinds);
  const away = distances(values, usual, series.scale === "log");
  const isAround = others !== null || how === "deviation";
  const shown = others ? distances(values, others, isLog) : isAround ? away : values;
  const scale = isAround ? distanceScale(shown, isLog) : valueScale(values, isLog, isShare(series));
  // In a difference, the worst row is the one that differs most.
  const far = others ? shown : away;
  const same = (others ? isLog : series.scale === "log") ? SAME : SAME * (scale.high - scale.low);
  return { series, steps: map.steps, names: map.rows, values, others, usual, kinds, owners, shown, far, same, scale, isLog };
}

/** Whether a statistic lies between 0 and 1 by its meaning. */
function isShare(series) {
  return /(fraction|share)$/.test(series.id);
}

/** What a row is compared with: rows of the same type and the same rest of the name (`weight`); else of like names. */
function kindOf(layer, name) {
  const rest = name.slice(layer.name.length);
  return layer.types.length ? `${layer.types[0]}${rest}` : name.replace(/\d+/g, "*");
}

/**
 * The rows that are seen.
 * @param {Object} numbers of `numbersOf`.
 * @param {Object[]} verdicts of the run.
 * @param {Object} state of the page.
 * @param {string[]|null} filter the layers that the filter leaves; null without one.
 * @param {string} sort order, name or worst.
 * @returns {Object[]} each with `name`, `label`, `depth`, `isBlock`, `isOpen`, `row` (-1 for a block without one),
 *   `at(column)` (the row that it shows there, -1 without), `rows` (all that it stands for), `layer`, `verdicts`.
 */
export function rowsSeen(numbers, verdicts, state, filter, sort) {
  const left = filter && new Set(filter);
  const indices = numbers.names.map((_, row) => row).filter((row) => !left || left.has(numbers.owners[row].name));
  const dress = ({ node, depth, isBlock, isOpen }) => {
    const isFolded = isBlock && !isOpen;
    const layer = node.row >= 0 ? numbers.owners[node.row] : null;
    const isAbout = (module) =>
      module === node.name || layer?.name === module || (isFolded && node.rows.some((row) => numbers.owners[row].name === module));
    const said = verdicts.filter(({ module }) => module !== "" && isAbout(module));
    return {
      name: node.name, label: node.label, depth, isBlock, isOpen, row: node.row, rows: node.rows, layer, verdicts: said,
      at: isFolded ? standIn(node.rows, numbers.far, numbers.same) : () => node.row,
    }; // prettier-ignore
  };
  if (sort === "worst") {
    const bad = new Map(indices.map((row) => [row, rank(numbers, verdicts, row)]));
    const order = [...indices].sort((a, b) => compare(bad.get(b), bad.get(a)));
    return order.map((row) => {
      const name = numbers.names[row];
      return dress({ node: { name, label: name, row, rows: [row] }, depth: 0, isBlock: false, isOpen: false });
    });
  }
  const tree = treeOf(indices.map((index) => ({ name: numbers.names[index], index })));
  const open = openAtFirst(tree, verdicts.map(({ module }) => module).filter(Boolean));
  namesIn(state.open).forEach((name) => open.add(name));
  namesIn(state.closed).forEach((name) => open.delete(name));
  return seen(tree, open, sort === "name" ? (a, b) => natural(a.name, b.name) : undefined).map(dress);
}

/** What `worst` sorts by: alarms, then notes, then how far the row is from its kind, or the other run, at its worst step. */
function rank(numbers, verdicts, row) {
  const said = verdicts.filter(({ module }) => module === numbers.owners[row].name);
  const gravity = numbers.others ? 0 : said.some(({ severity }) => severity === "alarm") ? 2 : said.length ? 1 : 0;
  return [gravity, worstOf(numbers.far[row])];
}

function compare([a, b], [c, d]) {
  return a - c || (b === d ? 0 : b - d);
}

/** The first of `alarm` and `note` among some verdicts; "" without any. */
export function gravest(verdicts) {
  return ["alarm", "note"].find((severity) => verdicts.some((verdict) => verdict.severity === severity)) ?? "";
}

/** The column of a step, or of the last one before it; the last column for no step. */
export function columnOf(steps, step) {
  if (step === "") return steps.length - 1;
  const after = steps.findIndex((other) => other > Number(step));
  return after < 0 ? steps.length - 1 : Math.max(after - 1, 0);
}
