/** Computes what a view draws from the server's answers: deviations, the tree of names, and the order of rows. */

import { decoded } from "./data.js";
import { commonStart, named } from "./dom.js";
import { distanceScale, isBroken, isFinite, median, quantiles, valueScale } from "./scale.js";
import { addressOf, namesIn } from "./state.js";

export const MIN_KIND_ROWS = 3; // a kind with fewer rows is compared with all rows

/** Return for each row the rows that it is compared with: those of its kind or, if these are too few, all. */
function peersOf(kinds) {
  const rows = new Map(kinds.map((kind) => [kind, []]));
  kinds.forEach((kind, row) => rows.get(kind).push(row));
  const all = kinds.map((_, row) => row);
  return kinds.map((kind) => (rows.get(kind).length < MIN_KIND_ROWS ? all : rows.get(kind)));
}

/**
 * Compute the median over rows of the same kind, for each row and step.
 * @param {(number|null)[][]} values rows by steps.
 * @param {string[]} kinds of each row.
 * @returns {(number|null)[][]} the same shape; null where no row of the kind has a finite value.
 */
function medians(values, kinds) {
  const columns = values[0]?.length ?? 0;
  const of = (peers) => Array.from({ length: columns }, (_, column) => median(peers.map((row) => values[row][column])));
  const made = new Map();
  return peersOf(kinds).map((peers) => {
    if (!made.has(peers)) made.set(peers, of(peers));
    return made.get(peers);
  });
}

/** Return the layer of each row of a map, and the rows' kinds. */
function ownersOf(run, map) {
  const byName = new Map(run.layers.map((layer) => [layer.name, layer]));
  const owners = map.modules.map((name) => byName.get(name) ?? { name, type: "", types: [] });
  return { owners, kinds: owners.map((layer, row) => kindOf(layer, map.rows[row])) };
}

/**
 * Compute the course of a row of a map and of its kind, at the steps at which the row has a value.
 * @param {Object} run the answer to `run`.
 * @param {Object} map the answer to `map`.
 * @param {string} name of the row.
 * @returns {Object} `steps`, `values` and, of the finite values of its kind, `low`, `median` and `high`: the quantiles 0.1, 0.5 and 0.9.
 */
export function courseOf(run, map, name) {
  const own = map.rows.indexOf(name);
  const rows = (peersOf(ownersOf(run, map).kinds)[own] ?? []).map((row) => decoded(map.values[row]));
  const columns = map.steps.map((_, column) => column).filter((column) => own >= 0 && map.values[own][column] !== null);
  const band = columns.map((column) => quantiles(rows.map((row) => row[column]), [0.1, 0.5, 0.9])); // prettier-ignore
  return {
    steps: columns.map((column) => map.steps[column]), values: decoded(columns.map((column) => map.values[own][column])),
    low: band.map(([low]) => low), median: band.map(([, middle]) => middle), high: band.map(([, , high]) => high),
  }; // prettier-ignore
}

/**
 * Compute how far each cell is from a usual value: log10 of their ratio, or their difference.
 * @param {(number|null)[][]} values rows by steps.
 * @param {(number|null)[][]} usual the same shape.
 * @param {boolean} isLog true for ratios.
 * @returns {(number|null)[][]} infinite where one of the two is 0; NaN where the value was not finite; null where there
 *   is none, or nothing to compare it with.
 */
function distances(values, usual, isLog) {
  return values.map((row, i) => row.map((cell, j) => distance(cell, usual[i][j], isLog)));
}

function distance(cell, usual, isLog) {
  if (cell === null || usual === null) return isBroken(cell) ? NaN : null;
  if (isBroken(cell) || isBroken(usual)) return NaN;
  if (!isLog) return cell - usual;
  if (cell === usual) return 0;
  return Math.log10(Math.max(cell, 0)) - Math.log10(Math.max(usual, 0)) || 0; // both -Infinity: neither is above 0
}

/** Return the size of a distance, for sorting: Infinity for NaN, -1 for null. */
function badness(far) {
  if (far === null) return -1;
  return Number.isNaN(far) ? Infinity : Math.min(Math.abs(far), 1e300);
}

/** Return which of some rows is worst in a column; -1 if none has a value there. */
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
 * Choose the row that a folded block shows in each column: the worst one. If the row that is worst over all steps is
 * about as bad, choose that one, because noise would choose another row in each column.
 * @param {number[]} rows the rows of the block.
 * @param {(number|null)[][]} far of all rows.
 * @param {number} same the largest difference that may be noise.
 * @returns {(column: number) => number} column to row; -1 where none has a value.
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

/** Return the badness of a row at its worst step. */
function worstOf(row) {
  return row.reduce((most, far) => Math.max(most, badness(far)), -1);
}

const MAX_ROWS_AT_FIRST = 40;
const MIN_ROWS_AT_FIRST = 10; // with fewer, one more level is opened: its blocks are seen, in bands if they do not fit

/**
 * A node of the tree.
 * @typedef {Object} Node
 * @property {string} name its dotted name from the root.
 * @property {string} label the part of it that is shown under its parent.
 * @property {number} row the index of its own row; -1 if it has none.
 * @property {Node[]} children
 * @property {number[]} rows the indices of its own row and all rows below.
 */

/** Build the tree of dotted names. A block whose only child is another block is joined with it. */
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

/** Split a name at its dots; what follows the first slash is the index of a tensor and stays with the last part. */
function partsOf(name) {
  const [module] = name.split("/", 1);
  const parts = module.split(".");
  parts[parts.length - 1] += name.slice(module.length);
  return parts;
}

/** Return the label of a part; a number gets the part before it: "layers.7". */
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
 * Choose the blocks that are open at first: level by level while there are few rows, and those above a sick layer.
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
    const isFew = shown < MIN_ROWS_AT_FIRST;
    shown += more.length;
    if (shown > MAX_ROWS_AT_FIRST && !isFew) break;
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

/** Return whether a name is inside a block. */
export function isBelow(name, block) {
  return name.startsWith(`${block}.`) || name.startsWith(`${block}/`);
}

/**
 * List the rows that are visible, from top to bottom.
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

/** Compare names, with numbers in them as numbers. */
const natural = new Intl.Collator("en", { numeric: true }).compare;

const OUTSTANDING_SHARE = 0.05; // of the rows: those farthest from the median stand out

const SAME = 0.3; // differences that may be noise: a factor of 2, or this share of a linear scale

/**
 * Compute everything that a map shows, from the server's answers.
 * @param {Object} run the answer to `run`.
 * @param {Object} map the answer to `map`.
 * @param {string} how log, linear, deviation, or whole: on the series' own scale, of which nothing is cut off.
 */
function numbersOf(run, map, how) {
  const series = run.series.find(({ id }) => id === map.series);
  const isLog = (how === "linear" || how === "log" ? how : series.scale) === "log";
  const values = map.values.map(decoded);
  const others = map.against_values?.map(decoded) ?? null;
  const { owners, kinds } = ownersOf(run, map);
  const usual = medians(values, kinds);
  const away = distances(values, usual, series.scale === "log");
  const isAround = others !== null || how === "deviation";
  const shown = others ? distances(values, others, isLog) : isAround ? away : values;
  const scale = isAround ? distanceScale(shown, isLog) : valueScale(values, isLog, isShare(series), how === "whole");
  // In a difference, the worst row is the one that differs most.
  const far = others ? shown : away;
  const sizes = away.map((row) => row.map((cell) => (isFinite(cell) ? Math.abs(cell) : cell)));
  const spreads = medians(sizes, kinds);
  const same = (others ? isLog : series.scale === "log") ? SAME : SAME * (scale.high - scale.low);
  const pair = others && (map.against === map.run ? [series.stage, stageOf(run, map.against_series)] : [map.run, map.against]);
  return { series, steps: map.steps, names: map.rows, values, others, pair, usual, kinds, owners, shown, far, spreads, same, scale, isLog };
}

/**
 * Choose how a map is shown at first: as the deviation if the layer of the worst alarm stands out only there, among all
 * rows at its worst step; otherwise on the series' own scale.
 */
export function firstHow(run, map, series) {
  const alarm = run.verdicts.find(({ severity }) => severity === "alarm");
  const { names, owners, values, far } = numbersFor(run, map, series.scale);
  const row = alarm ? names.findIndex((name, i) => name === alarm.module || owners[i].name === alarm.module) : -1;
  if (row < 0 || map.against_values) return series.scale;
  const standsOut = (all) => all.filter((one) => worstOf(one) > worstOf(all[row])).length <= OUTSTANDING_SHARE * all.length;
  const fromAll = distances(values, medians(values, names.map(() => "")), series.scale === "log"); // prettier-ignore
  return !standsOut(fromAll) && standsOut(far) ? "deviation" : series.scale;
}

function stageOf(run, id) {
  return run.series.find((one) => one.id === id)?.stage ?? "";
}

/** Return the same statistic in the other stages of a run. */
export function otherStages(series, all) {
  return all.filter((one) => one.kind === series.kind && one.statistic === series.statistic && one.stage !== series.stage);
}

/** Group of statistics to what the names of its members contain; the first that fits counts. */
const GROUPS = {
  updates: /update|unchanged/, gradients: /gradient|underflow/,
  parameters: /parameter|weight/, activations: /activation|input|dead|saturated|spread|attention/,
}; // prettier-ignore

/**
 * Group the series to choose from: one for each statistic, in the stage of the one that is shown if it has that.
 * @returns {[string, Object[]][]} name of a group and its series.
 */
export function groupedSeries(all, shown) {
  const isHidden = (one) => one.stage !== shown.stage && otherStages(one, all).some(({ stage }) => stage === shown.stage || stage < one.stage);
  const groups = Object.keys(GROUPS).sort().map((name) => [name, []]); // prettier-ignore
  const rest = ["more", []];
  for (const one of all.filter((other) => !isHidden(other))) {
    const name = Object.keys(GROUPS).find((group) => GROUPS[group].test(`${one.kind} ${one.statistic}`));
    (groups.find(([group]) => group === name) ?? rest)[1].push(one);
  }
  return [...groups, rest].filter(([, members]) => members.length);
}

/** Return whether a statistic is a share, from 0 to 1. */
function isShare(series) {
  return /(fraction|share)$/.test(series.id);
}

/** Return the same statistic of gradients for that of activations, and the reverse; null if there is none. */
export function partnerOf(series, all) {
  const swap = (id) =>
    /(^|[/_])activation/.test(id) ? id.replace(/(^|[/_])activation/, "$1gradient") : id.replace(/(^|[/_])gradient/, "$1activation");
  const other = swap(series.id);
  return (other !== series.id && all.find(({ id }) => id === other)) || null;
}

/** Return whether a series is about gradients. */
export function isBackward(series) {
  return /gradient/.test(series.id);
}

/** Return the kind of a row: its layer's type with the rest of its name (`weight`); without a type, its name without numbers. */
function kindOf(layer, name) {
  const rest = name.slice(layer.name.length);
  return layer.types.length ? `${layer.types[0]}${rest}` : name.replace(/\d+/g, "*");
}

/**
 * List the rows of the view.
 * @param {Object} numbers of `numbersOf`.
 * @param {Object[]} verdicts of the run.
 * @param {Object} state of the page.
 * @param {string[]|null} filter the layers that match the filter; null without a filter.
 * @param {string} sort order, name, worst or change.
 * @returns {Object[]} each with `name`, `label`, `depth`, `isBlock`, `isOpen`, `row` (-1 for a block without one),
 *   `at(column)` (the row that it shows there, or -1), `rows` (all inside it), `layer`, `verdicts`, `mentions`
 *   (verdicts on other layers that name it), `title` (its full name to display) and `members` (itself; of a band, the rows that it merges).
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
    const mentions = verdicts.filter((verdict) => !said.includes(verdict) && verdict.names.some(isAbout));
    const row = {
      name: node.name, title: named(node.name), label: node.label, depth, isBlock, isOpen, row: node.row, rows: node.rows,
      layer, verdicts: said, mentions, frozen: frozenOf(node.rows.map((row) => numbers.owners[row])),
      at: isFolded ? standIn(node.rows, numbers.far, numbers.same) : () => node.row,
    }; // prettier-ignore
    return { ...row, members: [row] };
  };
  if (sort === "worst" || sort === "change") {
    const rankOf = sort === "worst" ? (row) => rank(numbers, verdicts, row) : (row) => [0, changeOf(numbers, row)];
    const ranks = new Map(indices.map((row) => [row, rankOf(row)]));
    const order = [...indices].sort((a, b) => compare(ranks.get(b), ranks.get(a)));
    const start = commonStart(indices.map((row) => numbers.names[row]));
    return order.map((row) => {
      const name = numbers.names[row];
      const label = name.slice(start.length);
      return dress({ node: { name, label, row, rows: [row] }, depth: 0, isBlock: false, isOpen: false });
    });
  }
  const tree = treeOf(indices.map((index) => ({ name: numbers.names[index], index })));
  const open = openAtFirst(tree, verdicts.map(({ module }) => module).filter(Boolean));
  namesIn(state.open).forEach((name) => open.add(name));
  namesIn(state.closed).forEach((name) => open.delete(name));
  return seen(tree, open, sort === "name" ? (a, b) => natural(a.name, b.name) : undefined).map(dress);
}

/**
 * Merge rows that follow each other into bands, each shown as a folded block, until not more than `most` are left. Rows
 * with a verdict and those of another depth stay apart, unless too many are left then.
 */
export function bandsOf(numbers, rows, most) {
  const isAlike = (a, b) => !a.isOpen && !b.isOpen && a.depth === b.depth && markOf(a) === markOf(b);
  for (const isMergeable of [isAlike, () => true]) {
    for (let size = 1; size < 2 * rows.length; size = Math.ceil(size * 1.2)) {
      const groups = [];
      for (const row of rows) {
        const last = groups[groups.length - 1];
        if (last?.length < size && isMergeable(last[0], row)) last.push(row);
        else groups.push([row]);
      }
      if (groups.length <= most) return groups.map((members) => (members.length > 1 ? bandOf(numbers, members) : members[0]));
    }
  }
  return rows;
}

/** Return the row of a band; its name is that of its first row. */
function bandOf(numbers, members) {
  const [first, last] = [members[0], members[members.length - 1]];
  const ends = (text) => `${text(first)} … ${text(last)}`;
  const rows = [...new Set(members.flatMap((row) => row.rows))];
  return {
    name: first.name, title: ends((row) => row.title), label: ends((row) => row.label || row.title),
    depth: Math.min(...members.map(({ depth }) => depth)), isBlock: true, isOpen: false, row: -1, rows, layer: null, members,
    verdicts: [...new Set(members.flatMap((row) => row.verdicts))], mentions: [...new Set(members.flatMap((row) => row.mentions))],
    frozen: frozenOf(rows.map((row) => numbers.owners[row])), at: standIn(rows, numbers.far, numbers.same),
  }; // prettier-ignore
}

/** Return the index of the row, or of the band with the row, of this name in the address; -1 if there is none. */
export function rowAt(rows, address) {
  return rows.findIndex(({ members }) => members.some(({ name }) => addressOf(name) === address));
}

const OUTSTANDING_SPREADS = 3; // farther from the median of its kind than so many median distances, a row stands out

/**
 * Return the key for `worst`: the first verdict on it or that names it, then the distance from its kind at its worst step. Rows that do not
 * stand out from their kind have 0: over a gradual fall through the layers, both of its ends are equally far.
 */
function rank(numbers, verdicts, row) {
  const { others, owners, far, same, spreads } = numbers;
  if (others) return [0, worstOf(far[row])];
  const { name } = owners[row];
  const places = verdicts.flatMap(({ module, names }, place) => (module !== "" && module === name ? [place] : names.includes(name) ? [place + 0.5] : []));
  const cells = far[row].map((cell, i) => (badness(cell) > Math.max(same / 3, OUTSTANDING_SPREADS * spreads[row][i]) ? cell : 0));
  return [-Math.min(...places, verdicts.length), worstOf(cells)];
}

/** Return the key for `change`: the largest distance from the row's first value. */
function changeOf({ series, shown, values, others }, row) {
  const cells = others ? shown[row] : values[row];
  const first = cells.find(isFinite) ?? null;
  const isLog = !others && series.scale === "log";
  return worstOf(cells.map((cell) => distance(cell, first, isLog)));
}

function compare([a, b], [c, d]) {
  return a - c || (b === d ? 0 : b - d);
}

/** Return "frozen" if no parameter of these layers' own is trained, "partly frozen" if some are not, otherwise "". */
export function frozenOf(layers) {
  const count = (things) => new Set(layers.flatMap((layer) => things(layer))).size;
  const frozen = count(({ frozen = [] }) => frozen);
  if (!frozen) return "";
  return frozen < count(({ parameters = {} }) => Object.keys(parameters)) ? "partly frozen" : "frozen";
}

export const SYMBOLS = { alarm: "▲", note: "●" };

const HOLLOW = { alarm: "△", note: "○" };

/** Return the symbol of a row: solid for its own verdicts, hollow if a verdict on another layer names it, otherwise "". */
export function markOf({ verdicts, mentions }) {
  return SYMBOLS[gravest(verdicts)] ?? HOLLOW[gravest(mentions)] ?? "";
}

/** Return what verdicts say of a row in a few words: its own, then those that name it. */
export function saidOf({ verdicts, mentions }) {
  const own = verdicts.map(({ severity, rule }) => ({ severity, text: `${severity}: ${rule}` }));
  const where = (module) => (module ? ` in ${module}` : "");
  return [...own, ...mentions.map(({ severity, rule, module }) => ({ severity, text: `named by ${severity}: ${rule}${where(module)}` }))];
}

/** Return the gravest severity among some verdicts; "" without any. */
export function gravest(verdicts) {
  return ["alarm", "note"].find((severity) => verdicts.some((verdict) => verdict.severity === severity)) ?? "";
}

/** Return the column of a step, or of the last one before it; the last column for "". */
export function columnOf(steps, step) {
  if (step === "") return steps.length - 1;
  const after = steps.findIndex((other) => other > Number(step));
  return after < 0 ? steps.length - 1 : Math.max(after - 1, 0);
}

const computed = new WeakMap();

/** Return `numbersOf`, computed once for each answer and scale. */
export function numbersFor(run, map, how) {
  const known = computed.get(map) ?? {};
  known[how] ??= numbersOf(run, map, how);
  computed.set(map, known);
  return known[how];
}
