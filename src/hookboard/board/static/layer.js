/** Draws one layer: its type and shapes, verdicts, statistics and histograms over steps, and pictures. */

import { ask, pictureUrl } from "./data.js";
import { counted, element, titled, written } from "./dom.js";
import { columnOf, frozenOf, partnerOf } from "./model.js";
import { rounded, textsOf } from "./scale.js";
import { cardOf } from "./verdicts.js";

const BINS = 48;
const TAIL_SHARE = 0.005; // of the values, which may lie beyond each end of the axis
const HISTOGRAM_HIGH = 150;

/**
 * Draw a histogram over steps.
 * @param {HTMLElement} place the element to draw into.
 * @param {Object} given the server's answer to `histogram`.
 * @param {number} width in pixels.
 * @param {Object} context `colours` and `steps`, the first and last step of the axis.
 */
function drawHistogram(place, given, width, context) {
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
    width, height: HISTOGRAM_HIGH, margin: MARGIN, font: { color: colours.faint, size: 11 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    xaxis: { ...axis, range: [first, last === first ? first + 1 : last], nticks: 6 },
    yaxis: { ...axis, range, tickvals: marks, ticktext: textsOf(marks, 2) },
  }; // prettier-ignore
  const trace = {
    type: "heatmap", name: "share of the values", x: given.steps, y: centres, z, showscale: false,
    colorscale: [[0, colours.paper], [0.02, colours.band.replace(/[\d.]+\)$/, "0.5)")], [1, colours.forward]], zmin: 0,
    hovertemplate: "step %{x}: %{z:.2%} near %{y:.3g}<extra></extra>",
  }; // prettier-ignore
  const inside = element("div");
  place.replaceChildren(inside);
  window.Plotly.newPlot(inside, [trace], layout, { displayModeBar: false });
}

/** Return the range of values without the tails, over all steps; null if all counts are 0. */
function rangeOf({ left, right, counts }) {
  let [low, high] = [Infinity, -Infinity];
  counts.forEach((count, i) => {
    const whole = count.reduce((sum, one) => sum + one, 0);
    let passed = 0;
    count.forEach((one, j) => {
      if (one > 0 && passed + one > TAIL_SHARE * whole) low = Math.min(low, left[i][j]);
      passed += one;
      if (one > 0 && passed - one < (1 - TAIL_SHARE) * whole) high = Math.max(high, right[i][j]);
    });
  });
  if (low > high) return null;
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
}

/** Return the shares of the values in bins of equal width; each given bin is spread evenly over those that it covers. */
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

const MARGIN = { l: 54, r: 10, t: 6, b: 20 };
const HIGH = 112;

/**
 * Draw the panel of a layer.
 * @param {HTMLElement} panel the element to draw into.
 * @param {Object} answer the server's answer to `layer`.
 * @param {Object} context `run` (its name), `steps` (first and last of the map), `shown` (the id of the series that
 *   the map shows), `colours`, `like` (the layers that the band describes), `now()` (the step of the cursor), `go(step)` for a click into a chart,
 *   `open(layer)` for one on a verdict on another layer, `withCourse(one)` (resolves to a statistic with its course), and `places` (of the
 *   charts when this layer was drawn before).
 */
export function drawLayer(panel, answer, context) {
  const { layer, series, histograms, pictures, verdicts } = answer;
  const width = Math.max(panel.clientWidth - 32, 200);
  const shown = series.find(({ id }) => id === context.shown);
  const partner = shown && partnerOf(shown, series);
  const place = ({ id }) => (id === shown?.id ? 0 : id === partner?.id ? 1 : 2);
  const ordered = [...series].sort((a, b) => place(a) - place(b));
  const lead = Math.max(ordered.filter((one) => place(one) < 2).length, 1); // charts above histograms and pictures
  const placed = (one) => {
    const key = JSON.stringify([one.id ?? one.tag, one.row]);
    if (!context.places.has(key)) context.places.set(key, element("div", { class: "chart" }));
    return { one, place: context.places.get(key) };
  };
  const charts = ordered.map(placed);
  const tensors = histograms.map(placed);
  const heading = (text) => element("h3", { text });
  const chartOf = ({ one, place }) => figure(labelOf(one, layer), place, (step) => valueAt(place.course, step));
  const isElsewhere = ({ module }) => module !== "" && module !== layer.name;
  panel.replaceChildren(
    factsOf(layer),
    verdicts.length ? element("ol", { class: "cards" }, verdicts.map((verdict) => cardOf(verdict, false, isElsewhere(verdict) ? () => context.open(verdict.module) : null))) : "",
    charts.length ? keyOf(context.colours, context.like) : element("p", { text: "No statistics of this layer." }),
    ...charts.slice(0, lead).map(chartOf),
    ...(tensors.length ? [heading("Histograms over steps")] : []),
    ...tensors.map(({ one, place }) => figure(`${histogramLabel(one)}${restOf(one.row, layer)}`, place)),
    ...(pictures.length ? [heading("Pictures")] : []),
    ...pictures.map(pictureOf),
    ...(charts.length > lead ? [heading("More statistics over steps")] : []),
    ...charts.slice(lead).map(chartOf),
  );
  charts.forEach(({ one, place }) => {
    const asked = () => context.withCourse(one);
    drawWhenSeen(place, asked, (course) => drawSeries(place, course, width, context));
  });
  tensors.forEach(({ one, place }) => {
    const asked = () => ask("histogram", { run: context.run, tag: one.tag });
    drawWhenSeen(place, asked, (given) => drawHistogram(place, given, width, context));
  });
}

/** Request and draw a chart when it scrolls into view: a layer may have dozens. */
function drawWhenSeen(place, request, draw) {
  place.style.minHeight = `${HIGH}px`;
  place.watch?.disconnect(); // it has waited in vain since the layer was drawn before
  const watch = new IntersectionObserver(
    (found) => {
      if (!found.some(({ isIntersecting: is }) => is)) return;
      watch.disconnect();
      const asked = request();
      place.asked = asked;
      asked
        .then((answer) => place.isConnected && place.asked === asked && draw(answer))
        .catch((error) => (place.textContent = error.message));
    },
    { rootMargin: "200px" },
  );
  place.watch = watch;
  watch.observe(place);
}

/** Make a figure with a caption and, for a statistic, its value at the cursor's step. */
function figure(text, place, valueOf) {
  const now = element("span", { class: "now" });
  if (valueOf) now.hookboard = (step) => (now.textContent = valueOf(step));
  return element("figure", {}, [element("figcaption", {}, [element("span", { text }), now]), place]);
}

function factsOf(layer) {
  const facts = [["type", layer.types?.[0] ?? layer.type]];
  if (layer.output) facts.push(["output", shapeOf(layer.output)]);
  const parameters = Object.entries(layer.parameters ?? {});
  if (parameters.length) facts.push(["parameters", [counted(layer.count), frozenOf([layer])].filter(Boolean).join(", ")]);
  const frozen = new Set(layer.frozen);
  for (const [name, shape] of parameters) {
    facts.push([restName(name, layer), `${shapeOf(shape)}${frozen.has(name) ? ", frozen" : ""}`]);
  }
  const told = facts.filter(([, text]) => text);
  if (!told.length) return element("p", { class: "facts", text: "Its type and shapes are not in the log." });
  return element("dl", { class: "facts" }, told.flatMap(([name, text]) => [element("dt", { text: name }), element("dd", { text })]));
}

function restName(name, layer) {
  return name.startsWith(`${layer.name}.`) ? name.slice(layer.name.length + 1) : name;
}

function restOf(row, layer) {
  const rest = row === layer.name ? "" : row.startsWith(layer.name) ? row.slice(layer.name.length) : ` ${row}`;
  return rest && ` · ${rest.replace(/^[./]/, "")}`;
}

function labelOf(one, layer) {
  return `${titled(one.label)}${restOf(one.row, layer)}`;
}

function histogramLabel({ stage, kind }) {
  return `${stage === "train" ? "" : `${stage}: `}${kind.replaceAll("_", " ")}`;
}

function shapeOf(shape) {
  return shape.length ? shape.map(counted).join(" × ") : "a number";
}

function keyOf(colours, like) {
  const line = (style, text) => element("span", { class: "swatch" }, [element("i", { style }), text]);
  return element("p", { class: "key" }, [
    line({ background: colours.own, height: "3px" }, "this layer"),
    line({ background: colours.usual, height: "2px" }, `median of ${like}`),
    line({ background: colours.band }, `10th to 90th percentile of ${like}`),
  ]);
}

/** Return the traces of a statistic of a layer, for the page and for exports. */
export function seriesTraces(one, colours) {
  const { values, low, median: middle, high } = one;
  const isLog = isLogarithmic(one);
  const drawn = (cells) => cells.map((cell) => (cell === null || !Number.isFinite(cell) || (isLog && cell <= 0) ? null : cell));
  // On a logarithmic axis, a band down to 0 extends below the end of the axis.
  const edge = (cells) => (isLog ? cells.map((cell) => (cell !== null && cell <= 0 ? Number.MIN_VALUE : cell)) : drawn(cells));
  const base = { x: one.steps, type: "scatter", mode: "lines", hoverinfo: "skip" };
  const broken = one.steps.filter((_, i) => values[i] !== null && !Number.isFinite(values[i]));
  const few = one.steps.length < 40;
  const traces = [
    { ...base, name: "low", y: edge(low), line: { width: 0 } },
    { ...base, name: "10th to 90th percentile", y: edge(high), line: { width: 0 }, fill: "tonexty", fillcolor: colours.band },
    { ...base, name: "median of its type", y: drawn(middle), line: { width: 1.2, color: colours.usual, dash: "dot" } },
    {
      ...base, name: "this layer", y: drawn(values), mode: few ? "lines+markers" : "lines",
      line: { width: 2, color: colours.own }, marker: { size: 4 }, hovertemplate: "step %{x}: %{y:.4g}<extra></extra>", hoverinfo: "all",
    },
  ]; // prettier-ignore
  const finite = traces.flatMap(({ y }) => y).filter((value) => value !== null);
  if (broken.length) {
    const top = finite.length ? Math.max(...finite) : 1;
    traces.push({
      ...base, name: "NaN or Inf", x: broken, y: broken.map(() => top), mode: "markers",
      marker: { color: colours.broken, symbol: "diamond", size: 7 },
      hovertemplate: "step %{x}: NaN or Inf<extra></extra>", hoverinfo: "all",
    }); // prettier-ignore
  }
  return traces;
}

function isLogarithmic(one) {
  return one.scale === "log" && one.values.some((value) => value > 0);
}

/** Return the axes of a statistic of a layer. */
export function seriesAxes(one, [first, last], colours) {
  const isLog = isLogarithmic(one);
  const axis = { gridcolor: colours.line, linecolor: colours.line, zeroline: false, tickfont: { size: 11 }, fixedrange: true };
  const values = [one.values, one.low, one.high].flat().filter((v) => v !== null && Number.isFinite(v) && (!isLog || v > 0));
  const at = isLog ? values.map(Math.log10) : values;
  let [low, high] = at.length ? [Math.min(...at), Math.max(...at)] : [0, 1];
  const room = Math.max((high - low) * 0.08, isLog ? 0.05 : Math.abs(high) * 0.02 || 0.05);
  [low, high] = [low - room, high + room];
  const marks = tickMarks(low, high, isLog);
  return {
    x: { ...axis, range: [first, last === first ? first + 1 : last], nticks: 6 },
    y: { ...axis, type: isLog ? "log" : "linear", range: [low, high], tickvals: marks, ticktext: textsOf(marks, 2) },
  }; // prettier-ignore
}

function tickMarks(low, high, isLog) {
  if (!isLog) return rounded(low, high, 4);
  const exponents = (most) => rounded(Math.ceil(low), Math.floor(high), most).filter(Number.isInteger);
  const whole = [exponents(3), exponents(6)].find((found) => found.length > 2);
  if (whole) return whole.map((exponent) => 10 ** exponent);
  const inside = (factors) =>
    [-1, 0, 1, 2].flatMap((more) => factors.map((factor) => factor * 10 ** (Math.floor(low) + more)))
      .filter((value) => value >= 10 ** low && value <= 10 ** high); // prettier-ignore
  return [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 8]].map(inside).find(({ length }) => length > 1) ?? rounded(10 ** low, 10 ** high, 4);
}

function drawSeries(place, one, width, context) {
  const { x, y } = seriesAxes(one, context.steps, context.colours);
  const layout = {
    width, height: HIGH, margin: MARGIN, showlegend: false, hovermode: "closest", xaxis: x, yaxis: y, dragmode: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: context.colours.faint, size: 11 },
  }; // prettier-ignore
  const inside = element("div");
  place.replaceChildren(inside, nowLine(context.now(), x.range, width));
  window.Plotly.newPlot(inside, seriesTraces(one, context.colours), layout, { displayModeBar: false });
  place.course = one;
  pointLayer(place.parentElement, context.now());
  inside.addEventListener("click", (event) => {
    const share = (event.clientX - inside.getBoundingClientRect().left - MARGIN.l) / (width - MARGIN.l - MARGIN.r);
    if (share >= 0 && share <= 1) context.go(x.range[0] + share * (x.range[1] - x.range[0]));
  });
}

/** Make a line at the step of the cursor, for a chart with this range of steps and width in pixels. */
function nowLine(step, range, width) {
  const line = element("div", { class: "now-line" });
  line.hookboard = (at) => {
    const share = (at - range[0]) / (range[1] - range[0]);
    line.style.left = `${MARGIN.l + share * (width - MARGIN.l - MARGIN.r)}px`;
  };
  line.hookboard(step);
  return line;
}

/** Move the cursor to a step in all charts and pictures of the panel, or in those of a part of it. */
export function pointLayer(panel, step) {
  for (const one of panel.querySelectorAll(".now-line, .now, figure.picture")) one.hookboard?.(step);
}

/** Return the value of a statistic at a step, as text; "" if there is none, or its course is not here yet. */
function valueAt(one, step) {
  const at = one ? one.steps.indexOf(step) : -1;
  if (at < 0) return "";
  const value = one.values[at];
  // A statistic of HealthMonitor has one mark for NaN and Inf.
  const isEither = one.id.startsWith("health/") && !Number.isFinite(value);
  return `${isEither ? "NaN or Inf" : written(value, 4)} at step ${step}`;
}

/** Make a figure that shows the last picture up to the cursor's step. */
function pictureOf({ label, steps, keys }) {
  const image = element("img", { alt: label, loading: "lazy" });
  const caption = element("figcaption", {}, [element("span", { text: label }), element("span", { class: "now" })]);
  const frame = element("figure", { class: "picture" }, [caption, image]);
  frame.hookboard = (step) => {
    const at = columnOf(steps, step);
    const url = pictureUrl(keys[at]);
    if (image.getAttribute("src") !== url) image.setAttribute("src", url);
    caption.lastChild.textContent = `at step ${steps[at]}`;
  };
  frame.hookboard(Infinity);
  return frame;
}
