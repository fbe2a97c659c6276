/** From the server's answers to what a view draws: deviations, folded blocks, kinds, verdicts. */

import { decoded } from "./data.js";
import { distanceScale, isBroken, median, valueScale } from "./scale.js";
import { namesIn } from "./state.js";

const FEW = 3; // with fewer layers of a kind than this, all layers are the kind

/**
 * The median of the kind of each row at each step.
 * @param {(number|null)[][]} values rows by steps.
 * @param {string[]} kinds of each row.
 * @returns {(number|null)[][]} the same shape; null where no row of the kind has a finite value.
 */
function medians(values, kinds) {
  const count = new Map();
  for (const kind of kinds) count.set(kind, (count.get(kind) ?? 0) + 1);
  const group = kinds.map((kind) => (count.get(kind) < FEW ? "" : kind));
  const columns = values[0]?.length ?? 0;
  const made = new Map();
  for (const name of new Set(group)) {
    const rows = values.filter((_, row) => name === "" || group[row] === name);
    made.set(name, Array.from({ length: columns }, (_, column) => median(rows.map((row) => row[column]))));
  }
  return group.map((name) => made.get(name));
}

/**
 * How far each cell is from a usual value: the logarithm of their ratio (base 10), or their difference.
 * @param {(number|null)[][]} values rows by steps.
 * @param {(number|null)[][]} usual the same shape.
 * @param {boolean} isLog whether ratios are meant.
 * @returns {(number|null)[][]} infinite where a ratio is to or of 0; NaN where the value was not finite; null where
 *   there is none, or nothing to compare it with.
 */
function distances(values, usual, isLog) {
  return values.map((row, i) => row.map((cell, j) => distance(cell, usual[i][j], isLog)));
}

function distance(cell, usual, isLog) {
  if (cell === null || usual === null) return isBroken(cell) ? NaN : null;
  if (isBroken(cell) || isBroken(usual)) return NaN;
  if (!isLog) return cell - usual;
  if (cell === usual) return 0;
  return Math.log10(Math.max(cell, 0)) - Math.log10(Math.max(usual, 0)) || 0; // -Infinity twice: neither is above 0
}

/** How bad a distance is: the farther the worse, what is not finite the worst, nothing is not bad. */
function badness(far) {
  if (far === null) return -1;
  return Number.isNaN(far) ? Infinity : Math.min(Math.abs(far), 1e300);
}

/** Of some rows the one that is worst at a step; -1 if none has a value there. */
function worstAt(rows, far, column) {
  let worst = -1;
  let most = -1;
  for (const row of rows) {
    const bad = badness(far[row][column]);
    if (bad > most) [worst, most] = [row, bad];
  }
  return worst;
}

/**
 * The row that stands for a block at each step: the worst one. Among rows that are about as bad, noise would choose
 * another one at each step: then it is the one that is worst over all steps.
 * @param {number[]} rows of the block.
 * @param {(number|null)[][]} far of all rows.
 * @param {number} same a difference in badness that is noise.
 * @returns {(column: number) => number} -1 where none of them has a value.
 */
export function standIn(rows, far, same) {
  const sums = rows.map((row) => far[row].reduce((sum, one) => sum + Math.min(Math.max(badness(one), 0), 1e3), 0));
  const usual = rows[sums.indexOf(Math.max(...sums))];
  const made = [];
  return (column) => {
    if (made[column] === undefined) {
      const worst = worstAt(rows, far, column);
      const isClose = worst >= 0 && far[usual][column] !== null && badness(far[worst][column]) <= badness(far[usual][column]) + same;
      made[column] = isClose ? usual : worst;
    }
    return made[column];
  };
}

/** How bad a row is at its worst step. */
function worstOf(row) {
  return row.reduce((most, far) => Math.max(most, badness(far)), -1);
}

const MANY = 40; // so many rows are open at first

/**
 * A node of the tree.
 * @typedef {Object} Node
 * @property {string} name the dotted name from the root; of a row, the row's.
 * @property {string} label what is shown of it under its parent.
 * @property {number} row the index of its own row; -1 if it has none.
 * @property {Node[]} children
 * @property {number[]} rows the indices of its own row and all rows below.
 */

/** The tree of some rows. Blocks that hold nothing but one other block are one with it. */
function treeOf(rows) {
  const root = { name: "", label: "", row: -1, children: [], rows: [], below: new Map() };
  rows.forEach(({ name, index }) => {
    let node = root;
    for (const part of partsOf(name)) {
      const full = node === root ? part : `${node.name}.${part}`;
      if (!node.below.has(part)) {
        const made = { name: full, label: labelOf(node, part), row: -1, children: [], rows: [], below: new Map() };
        node.below.set(part, made);
        node.children.push(made);
      }
      node = node.below.get(part);
      node.rows.push(index);
    }
    node.row = index;
  });
  root.children = root.children.map(joined);
  return root.children;
}

/** The dotted parts; what follows the first slash is the index of a tensor and stays with the last part. */
function partsOf(name) {
  const [module] = name.split("/", 1);
  const parts = module.split(".");
  parts[parts.length - 1] += name.slice(module.length);
  return parts;
}

/** A number says nothing alone: "layers.7". */
function labelOf(parent, part) {
  const above = parent.name.split(".").pop();
  return /^\d+($|\/)/.test(part) && above && !/^\d+$/.test(above) ? `${above}.${part}` : part;
}

function joined(node) {
  let children = node.children.map(joined);
  if (node.row < 0 && children.length === 1) {
    const [only] = children;
    const label = only.name.slice(node.name.length - node.label.length);
    return { ...only, label };
  }
  return { ...node, children, below: undefined };
}

/**
 * The blocks that are open at first: level by level as long as there are few rows, and those above a sick layer.
 * @param {Node[]} tree the tree.
 * @param {string[]} sick names of layers with a verdict.
 * @returns {Set<string>} their names.
 */
function openAtFirst(tree, sick) {
  const open = new Set();
  let level = tree;
  let shown = tree.length;
  while (level.length) {
    const blocks = level.filter((node) => node.children.length);
    const more = blocks.flatMap((node) => node.children);
    shown += more.length;
    if (shown > MANY) break;
    blocks.forEach((node) => open.add(node.name));
    level = more;
  }
  const walk = (nodes) =>
    nodes.forEach((node) => {
      const isAbove = node.children.length && sick.some((name) => isBelow(name, node.name));
      if (isAbove) open.add(node.name);
      walk(node.children);
    });
  walk(tree);
  return open;
}

/** Whether a name lies below a block. */
export function isBelow(name, block) {
  return name.startsWith(`${block}.`) || name.startsWith(`${block}/`);
}

/**
 * The rows that are seen, from top to bottom.
 * @param {Node[]} tree the tree.
 * @param {Set<string>} open the names of open blocks.
 * @param {(a: Node, b: Node) => number} [order] sorts the children of a block.
 * @returns {{node: Node, depth: number, isBlock: boolean, isOpen: boolean}[]}
 */
function seen(tree, open, order) {
  const made = [];
  const walk = (nodes, depth) => {
    for (const node of order ? [...nodes].sort(order) : nodes) {
      const isBlock = node.children.length > 0;
      const isOpen = isBlock && open.has(node.name);
      made.push({ node, depth, isBlock, isOpen });
      if (isOpen) walk(node.children, depth + 1);
    }
  };
  walk(tree, 0);
  return made;
}

/** Names as people sort them: numbers in them as numbers. */
const natural = new Intl.Collator("en", { numeric: true }).compare;

const SAME = 0.3; // what is about as bad: a factor of 2, or so much of a linear scale

/**
 * The numbers of a map, and what follows from them: computed once for each answer and way to show it.
 * @param {Object} run the answer of `run`.
 * @param {Object} map the answer of `map`.
 * @param {string} how log, linear or deviation.
 */
function numbersOf(run, map, how) {
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

export const SYMBOLS = { alarm: "▲", note: "●" };

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

const computed = new WeakMap();

/** What `numbersOf` gives. */
export function numbersFor(run, map, how) {
  const known = computed.get(map) ?? {};
  known[how] ??= numbersOf(run, map, how);
  computed.set(map, known);
  return known[how];
}
