/** Draws the training loss above the map, at the steps of its columns. */

import { decoded } from "./data.js";
import { element, fitted, written } from "./dom.js";

const [WIDTH, HEIGHT, EDGE] = [1000, 40, 3]; // in units of the drawing; EDGE is left free above and below
const LOG_FROM = 20; // the largest value, as a multiple of the smallest, from which the scale is logarithmic

/**
 * Draw the loss.
 * @param {HTMLElement} root the element to draw into; hidden where there is no loss.
 * @param {{tag: string, steps: number[], values: Array}|null} loss of the run.
 * @param {number[]} steps of the map's columns.
 * @param {number[]} columns the first and last one that is shown.
 */
export function drawLoss(root, loss, steps, columns) {
  const points = loss ? pointsOf(loss, steps, columns) : [];
  root.hidden = points.filter(({ value }) => Number.isFinite(value)).length < 2;
  if (root.hidden) return;
  const [first, last] = endsOf(points, loss, steps, columns);
  const label = element("div", { class: "loss-label", title: loss.tag }, [
    element("span", { text: fitted(loss.tag, root.clientWidth < 600 ? 60 : 110) }),
    element("span", { class: "loss-ends", text: `${written(first)} → ${written(last)}` }),
  ]);
  root.replaceChildren(label, curve(points, `${loss.tag} from ${written(first)} to ${written(last)}`));
}

/** Return the first and last value that are shown, finite or not; with the last column, what came after it counts too. */
export function endsOf(points, { values }, steps, columns) {
  const after = columns[1] === steps.length - 1 ? decoded(values).filter((value) => value !== null) : [];
  return [points[0].value, after.length ? after[after.length - 1] : points[points.length - 1].value];
}

/** Return the points within the columns: `share` from 0 at the left to 1, and `value`. */
export function pointsOf({ steps: at, values }, steps, [first, last]) {
  const count = last - first + 1;
  return decoded(values).flatMap((value, i) => {
    // A column stands for the steps since the one before it.
    const column = steps.findIndex((step) => step >= at[i]);
    if (column < 0 || value === null) return [];
    const before = column ? steps[column - 1] : steps[column] - 1;
    const share = (column - (steps[column] - at[i]) / (steps[column] - before) - first + 0.5) / count;
    return share >= 0 && share <= 1 ? [{ share, value }] : [];
  });
}

function curve(points, label) {
  const finite = points.map(({ value }) => value).filter(Number.isFinite);
  const [least, most] = [Math.min(...finite), Math.max(...finite)];
  const isLog = least > 0 && most >= LOG_FROM * least;
  const scaled = (value) => (isLog ? Math.log(value) : value);
  const span = scaled(most) - scaled(least) || 1;
  const y = (value) => HEIGHT - EDGE - ((scaled(value) - scaled(least)) / span) * (HEIGHT - 2 * EDGE);
  let isBroken = true; // a value that is not finite leaves a gap
  const path = points.map(({ share, value }) => {
    const start = isBroken;
    isBroken = !Number.isFinite(value);
    return isBroken ? "" : `${start ? "M" : "L"}${(share * WIDTH).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  const drawing = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  drawing.append(drawn("path", { d: path.join(""), "vector-effect": "non-scaling-stroke" }));
  return drawing;
}

function drawn(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
