/** Computes scales: finite values, quantiles, the ends of a scale and its ticks. */

import { written } from "./dom.js";

/** Return whether a cell has a finite value. */
export function isFinite(cell) {
  return cell !== null && Number.isFinite(cell);
}

/** Return whether a cell has a value that is not finite. */
export function isBroken(cell) {
  return cell !== null && !Number.isFinite(cell);
}

/** Return the median of the finite cells; null without any. */
export function median(cells) {
  const finite = sorted(cells);
  const half = finite.length >> 1;
  if (!finite.length) return null;
  return finite.length % 2 ? finite[half] : (finite[half - 1] + finite[half]) / 2;
}

/** Return the finite cells in ascending order. */
function sorted(cells) {
  return Float64Array.from(cells.filter(isFinite)).sort();
}

/** Return quantiles of the finite cells, interpolated; of no cells, nulls. */
export function quantiles(cells, shares) {
  const finite = sorted(cells);
  return shares.map((share) => (finite.length ? percentile(finite, share) : null));
}

/** Return the quantile of sorted values, interpolated. */
function percentile(finite, share) {
  const at = (finite.length - 1) * share;
  const below = Math.floor(at);
  const above = finite[Math.min(below + 1, finite.length - 1)];
  return finite[below] + (above - finite[below]) * (at - below);
}

const MAX_DECADES_BEYOND_BULK = 2; // as in the pictures of HealthMonitor
const MAX_RATIO_DECADES = 3; // to each side

/**
 * A colour scale or axis.
 * @typedef {Object} Scale
 * @property {number} low the value at its lower end, in the units of `place`.
 * @property {number} high the value at its upper end.
 * @property {boolean} isLog whether it is logarithmic.
 * @property {boolean} isAround whether it shows distances, with 0 in the middle.
 * @property {[boolean, boolean]} isCut whether there are values beyond the lower and the upper end; they have the end's colour.
 */

/** Return the scale for values; far outliers are cut off, unless it is whole. */
export function valueScale(values, isLog, isShare, isWhole = false) {
  const all = values.flat();
  if (isShare && !isLog) return { low: 0, high: 1, isLog, isAround: false, isCut: [false, false] };
  const finite = sorted(isLog ? all.map((cell) => (cell > 0 ? Math.log10(cell) : null)) : all);
  if (!finite.length) return { low: isLog ? -1 : 0, high: isLog ? 0 : 1, isLog, isAround: false, isCut: [false, false] };
  const [least, greatest] = [finite[0], finite[finite.length - 1]];
  const [bottom, top] = isWhole ? [least, greatest] : [percentile(finite, 0.05), percentile(finite, 0.95)];
  const room = isLog ? Math.max(MAX_DECADES_BEYOND_BULK, top - bottom) : 2 * (top - bottom) || greatest - least;
  let [low, high] = [Math.max(least, bottom - room), Math.min(greatest, top + room)];
  const isCut = [least < low, greatest > high];
  const narrow = Math.max(0, (isLog ? 1 : Math.abs(high) * 1e-3 || 1) - (high - low)) / 2; // noise must not fill the scale
  low -= narrow;
  high += narrow;
  return { low, high, isLog, isAround: false, isCut };
}

/** Return the scale for distances, symmetric around 0. */
export function distanceScale(far, isLog) {
  const sizes = sorted(far.flat().map((cell) => (cell === null ? null : Math.abs(cell))));
  const has = (test) => far.some((row) => row.some((cell) => cell !== null && test(cell)));
  const most = sizes.length ? percentile(sizes, 0.995) : 0;
  const end = isLog ? Math.min(Math.max(most, 1), MAX_RATIO_DECADES) : most || sizes[sizes.length - 1] || 1;
  return { low: -end, high: end, isLog, isAround: true, isCut: [has((cell) => cell < -end), has((cell) => cell > end)] };
}

/** Return a value in the units of its scale: its logarithm, or itself. A distance is one already. */
export function place(value, scale) {
  return scale.isLog && !scale.isAround ? Math.log10(value) : value;
}

/** Return the position on a scale, from 0 at the lower end to 1 at the upper end. */
export function share(at, scale) {
  return Math.min(Math.max((at - scale.low) / (scale.high - scale.low), 0), 1);
}

/**
 * Return the ticks of a scale.
 * @param {Scale} scale the scale.
 * @param {number} most their approximate number.
 * @returns {{at: number, text: string}[]} `at` in the units of `place`.
 */
export function ticks(scale, most = 6) {
  if (!scale.isLog) {
    const sign = (value) => (scale.isAround && value > 0 ? "+" : "");
    const marks = rounded(scale.low, scale.high, most);
    return textsOf(marks, 3).map((text, i) => ({ at: marks[i], text: sign(marks[i]) + text }));
  }
  const spread = scale.high - scale.low;
  const step = Math.max(1, Math.ceil(spread / most));
  const exponents = [];
  for (let e = Math.ceil(scale.low); e <= scale.high; e++) if (e % step === 0) exponents.push(e);
  if (spread < 2.5 && most > 3) {
    for (let e = Math.floor(scale.low); e <= scale.high; e++) exponents.push(e + Math.log10(3));
    exponents.sort((a, b) => a - b);
  }
  const text = (e) => written(10 ** e, 1) + (scale.isAround ? "×" : "");
  return exponents.filter((e) => e >= scale.low && e <= scale.high).map((at) => ({ at, text: text(at) }));
}

/** Write the numbers on an axis with this many significant digits, or with as many more as they need to differ. */
export function textsOf(marks, digits) {
  const texts = marks.map((value) => written(value, digits));
  return digits > 15 || new Set(texts).size === marks.length ? texts : textsOf(marks, digits + 1);
}

/** Return round numbers between two values. */
export function rounded(low, high, most) {
  const raw = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const made = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) made.push(i * step);
  return made;
}
