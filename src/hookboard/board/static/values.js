/**
 * What is computed of the numbers of a map, in one place: deviations from the median of the kind, differences of two
 * runs, which rows are worst. Cells are numbers, NaN or infinite ones included, or null where there is no value.
 */

const FEW = 3; // with fewer layers of a kind than this, all layers are the kind

/** Whether there is a number that can be drawn. */
export function isFinite(cell) {
  return cell !== null && Number.isFinite(cell);
}

/** Whether something was measured and was not finite. */
export function isBroken(cell) {
  return cell !== null && !Number.isFinite(cell);
}

/**
 * The median of the kind of each row at each step.
 * @param {(number|null)[][]} values rows by steps.
 * @param {string[]} kinds of each row.
 * @returns {(number|null)[][]} the same shape; null where no row of the kind has a finite value.
 */
export function medians(values, kinds) {
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
export function distances(values, usual, isLog) {
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
export function badness(far) {
  if (far === null) return -1;
  return Number.isNaN(far) ? Infinity : Math.min(Math.abs(far), 1e300);
}

/** Of some rows the one that is worst at a step; -1 if none has a value there. */
export function worstAt(rows, far, column) {
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
export function worstOf(row) {
  return row.reduce((most, far) => Math.max(most, badness(far)), -1);
}

/** The median of the finite ones; null without any. */
export function median(cells) {
  const finite = sorted(cells);
  const half = finite.length >> 1;
  if (!finite.length) return null;
  return finite.length % 2 ? finite[half] : (finite[half - 1] + finite[half]) / 2;
}

/** The finite ones, the least first. */
export function sorted(cells) {
  return Float64Array.from(cells.filter(isFinite)).sort();
}

/** The value that a share of sorted ones does not exceed. */
export function percentile(finite, share) {
  const at = (finite.length - 1) * share;
  const below = Math.floor(at);
  const above = finite[Math.min(below + 1, finite.length - 1)];
  return finite[below] + (above - finite[below]) * (at - below);
}
