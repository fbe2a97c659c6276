/** A tensor's histogram over steps, as a heat map: each column is the distribution of the values at a step. */

import { rounded } from "./scale.js";
import { element, written } from "./dom.js";

const BINS = 48;
const TAIL = 0.005; // so much of the values may lie beyond each end of the axis
const HIGH = 150;

/**
 * Draw a histogram over steps.
 * @param {HTMLElement} place where.
 * @param {Object} given the answer of `histogram`.
 * @param {number} width in pixels.
 * @param {Object} margin as plotly takes it.
 * @param {Object} context `colours`, and `steps`, the first and last one of the axis.
 */
export function drawHistogram(place, given, width, margin, context) {
  const range = rangeOf(given);
  if (!range) {
    place.textContent = "Nothing was counted.";
    return;
  }
  const { colours, steps: [first, last] } = context; // prettier-ignore
  const { z, centres } = gridOf(given, range);
  const marks = rounded(range[0], range[1], 4);
  const axis = { zeroline: false, fixedrange: true, showgrid: false, tickfont: { size: 11 } };
  const layout = {
    width, height: HIGH, margin, font: { color: colours.faint, size: 11 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    xaxis: { ...axis, range: [first, last === first ? first + 1 : last], nticks: 6 },
    yaxis: { ...axis, range, tickvals: marks, ticktext: marks.map((value) => written(value, 2)) },
  }; // prettier-ignore
  const trace = {
    type: "heatmap", name: given.tag === undefined ? "" : "share of the values", x: given.steps, y: centres, z, showscale: false,
    colorscale: [[0, colours.paper], [0.02, colours.band.replace(/[\d.]+\)$/, "0.5)")], [1, colours.forward]], zmin: 0,
    hovertemplate: "step %{x}: %{z:.2%} near %{y:.3g}<extra></extra>",
  }; // prettier-ignore
  place.replaceChildren();
  const inside = element("div");
  place.append(inside);
  window.Plotly.newPlot(inside, [trace], layout, { displayModeBar: false });
}

/** The values between which all but the tails of every step lie; null if nothing was counted. */
export function rangeOf({ left, right, counts }) {
  let [low, high] = [Infinity, -Infinity];
  counts.forEach((count, i) => {
    const whole = count.reduce((sum, one) => sum + one, 0);
    let passed = 0;
    count.forEach((one, j) => {
      if (one > 0 && passed + one > TAIL * whole) low = Math.min(low, left[i][j]);
      passed += one;
      if (one > 0 && passed - one < (1 - TAIL) * whole) high = Math.max(high, right[i][j]);
    });
  });
  if (low > high) return null;
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

/** The shares of the values in bins of equal width; each given bin is spread evenly over those that it covers. */
function gridOf({ left, right, counts }, [low, high]) {
  const size = (high - low) / BINS;
  const z = Array.from({ length: BINS }, () => new Array(counts.length).fill(0));
  counts.forEach((count, i) => {
    const whole = count.reduce((sum, one) => sum + one, 0) || 1;
    count.forEach((one, j) => {
      const [from, to] = [left[i][j], right[i][j]];
      const first = Math.max(Math.floor((from - low) / size), 0);
      const last = Math.min(Math.floor((to - low) / size), BINS - 1);
      for (let bin = first; one > 0 && bin <= last; bin++) {
        const [start, end] = [low + bin * size, low + (bin + 1) * size];
        const covered = to > from ? (Math.min(to, end) - Math.max(from, start)) / (to - from) : 1;
        z[bin][i] += (one / whole) * Math.max(covered, 0);
      }
    });
  });
  return { z, centres: z.map((_, bin) => low + (bin + 0.5) * size) };
}
