/** Exports numbers as CSV and plots as PNG. */

import { forPlotly, named, several, shortened, titled } from "./dom.js";
import { seriesAxes, seriesTraces } from "./layer.js";
import { framesOf, stepMarks, tracesOf } from "./map.js";
import { SYMBOLS, gravest, markOf } from "./model.js";
import { ticks } from "./scale.js";
import { whenOf } from "./verdicts.js";

/** Download a URL as a file. */
function download(name, url) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
}

/**
 * Download a table as CSV.
 * @param {string} name the file's name.
 * @param {(string|number|null)[][]} lines the rows, headings first; null is an empty field.
 */
export function saveCsv(name, lines) {
  const text = lines.map((line) => line.map(field).join(",")).join("\r\n");
  const url = URL.createObjectURL(new Blob([`${text}\r\n`], { type: "text/csv;charset=utf-8" }));
  download(name, url);
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

function field(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return Number.isNaN(value) ? "nan" : String(value).replace("Infinity", "inf");
  return /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
}

/** Return "not finite" for an infinity of `HealthMonitor`'s record, which stands for NaN too. */
function exported(value, id) {
  return id.startsWith("health/") && value === Infinity ? "not finite" : value;
}

/** Return a table of all layers that are shown, folded ones too: a line for each layer and step. */
export function mapTable({ numbers, rows }) {
  const { steps, names, values, others, pair } = numbers;
  const head = ["layer", "step", ...(pair ?? [numbers.series.id])];
  const indices = [...new Set(rows.flatMap((row) => row.rows))];
  const body = indices.flatMap((row) =>
    steps.map((step, i) => [names[row], step, ...[values, others].filter(Boolean).map((all) => exported(all[row][i], numbers.series.id))]),
  );
  return [head, ...body];
}

/** Return a table of the depth view at its step. */
export function depthTable({ halves, rows }) {
  const [first] = halves;
  const indices = [...new Set(rows.flatMap((row) => row.rows))];
  const body = indices.map((row) => {
    const name = first.numbers.names[row];
    return [name, first.numbers.steps[first.column], ...halves.map((half) => exported(half.valueOf(name), half.numbers.series.id))];
  });
  return [["layer", "step", ...halves.map(({ numbers }) => numbers.series.id)], ...body];
}

/** Return a table of the statistics of a layer. */
export function layerTable(series) {
  const body = series.flatMap((one) => {
    const columns = [one.values, one.low, one.median, one.high];
    return one.steps.map((step, i) => [one.id, one.row, step, ...columns.map((column) => exported(column[i], one.id))]);
  });
  return [["statistic", "row", "step", "value", "p10 of the type", "median of the type", "p90 of the type"], ...body];
}

/** Return a table of the verdicts. */
export function verdictTable(verdicts) {
  const head = ["severity", "rule", "module", "since", "until", "batch_idx", "evidence", "advice"];
  return [head, ...verdicts.map((verdict) => head.map((name) => verdict[name] ?? null))];
}

/** Download a plotly figure as PNG. */
export async function savePng(name, { data, layout }) {
  const { width, height } = layout;
  download(name, await window.Plotly.toImage({ data, layout }, { format: "png", width, height, scale: 2 }));
}

/** Return the heat map as one figure, with names, axis, colour bar and verdicts. */
export function mapFigure({ numbers, rows, columns }, colours, title) {
  const names = namesOf(rows, colours);
  const { scale, steps } = numbers;
  const marks = ticks(scale, 6);
  if (scale.isCut[0]) marks.push({ at: scale.low, text: "less" });
  if (scale.isCut[1]) marks.push({ at: scale.high, text: "more" });
  const data = tracesOf(numbers, rows, colours).map((trace) => ({ ...trace, ygap: 1 }));
  const [tickvals, ticktext] = [marks.map(({ at }) => at), marks.map(({ text }) => text)];
  data[0] = { ...data[0], showscale: true, colorbar: { tickvals, ticktext, thickness: 12, outlinewidth: 0 } };
  const below = stepMarks(steps, columns, 12);
  const broken = data.some(({ name }) => name === "not finite") ? " · magenta: NaN or Inf" : "";
  const zero = data.some(({ name }) => name === "zero") ? " · black: 0" : "";
  return { data, layout: {
    ...frame(colours, title), width: 1200, height: Math.max(rows.length * 18 + 110, 320),
    margin: { l: roomFor(names), r: 20, t: 56, b: 54 },
    shapes: framesOf(rows, steps).map(({ at, severity, span: [first, last] }) => ({
      type: "rect", x0: first - 0.5, x1: last + 0.5, y0: at - 0.5, y1: at + 0.5, line: { color: colours[severity], width: 2 },
    })),
    xaxis: {
      range: [columns[0] - 0.5, columns[1] + 0.5], title: { text: `step${zero}${broken}` }, showgrid: false, zeroline: false,
      tickvals: below.map(({ column }) => column), ticktext: below.map(({ text }) => text),
    },
    yaxis: { range: [rows.length - 0.5, -0.5], tickvals: rows.map((_, i) => i), ticktext: names, showgrid: false, zeroline: false },
  } }; // prettier-ignore
}

/** Return the full names of rows, because a picture has no tree; those with a verdict in its colour. */
function namesOf(rows, colours) {
  const folded = (row) => (row.isBlock && !row.isOpen ? ` (worst of ${several(row.rows.length, "row")})` : "");
  return rows.map((row) => {
    const severity = gravest(row.verdicts) || gravest(row.mentions);
    const text = forPlotly(`${shortened(row.title, isShort)}${folded(row)}`);
    return severity ? coloured(`${markOf(row)} ${text}`, colours[severity]) : text;
  });
}

function isShort(text) {
  return text.length <= 60;
}

/** Colour a text for plotly. */
function coloured(text, colour) {
  return `<span style="color:${colour}">${text}</span>`;
}

/** Return the width of the margin for names, in pixels. */
function roomFor(names) {
  return 20 + 6.6 * Math.max(...names.map((name) => name.replace(/<[^>]*>/g, "").length), 10);
}

/** Return the part of the layout that all figures share. */
function frame(colours, title) {
  return {
    title: { text: forPlotly(title), font: { size: 15 }, x: 0.01, xanchor: "left" }, showlegend: false,
    font: { family: "Roboto, Arial, sans-serif", size: 12, color: colours.ink },
    paper_bgcolor: colours.paper, plot_bgcolor: colours.paper,
  }; // prettier-ignore
}

/** Return the depth view as one figure, with names and numbers on its axes. */
export function depthFigure(drawn, { halves, rows }, colours, title) {
  const names = namesOf(rows, colours);
  const layout = {
    ...drawn.layout, ...frame(colours, title), width: 1200, height: rows.length * 18 + 110,
    margin: { l: roomFor(names), r: 20, t: 56, b: 54 },
    yaxis: { ...drawn.layout.yaxis, visible: true, tickvals: rows.map((_, i) => i), ticktext: names, gridcolor: colours.line, zeroline: false },
  }; // prettier-ignore
  halves.forEach(({ numbers }, i) => {
    const name = i ? `xaxis${i + 1}` : "xaxis";
    const marks = ticks(numbers.scale, 5);
    const [tickvals, ticktext] = [marks.map(({ at }) => at), marks.map(({ text }) => text)];
    layout[name] = { ...layout[name], showticklabels: true, tickvals, ticktext, title: { text: forPlotly(titled(numbers.series.label)) } };
  });
  return { data: drawn.data, layout };
}

/** Return the statistics of a layer as one figure, one chart below the other from the first to the last step of `ends`. */
export function layerFigure(series, verdicts, ends, colours, title) {
  const count = series.length || 1;
  const top = 60 + 18 * verdicts.length;
  const layout = { ...frame(colours, title), width: 900, height: count * 150 + 30 + top, margin: { l: 80, r: 20, t: top, b: 40 }, annotations: [] };
  const said = verdicts.map((verdict) => {
    const { severity, rule } = verdict;
    return coloured(forPlotly(`${SYMBOLS[severity]} ${severity}: ${rule} ${whenOf(verdict)}`), colours[severity]);
  });
  layout.title.text += said.map((text) => `<br><span style="font-size:12px">${text}</span>`).join("");
  const data = series.flatMap((one, i) => {
    const name = i ? String(i + 1) : "";
    const [end, bottom] = [1 - (i + 0.12) / count, 1 - (i + 0.75) / count];
    const { x, y } = seriesAxes(one, ends, colours);
    layout[`xaxis${name}`] = { ...x, anchor: `y${name}` };
    layout[`yaxis${name}`] = { ...y, anchor: `x${name}`, domain: [bottom, end] };
    layout.annotations.push({
      text: forPlotly(`${titled(one.label)} · ${shortened(one.row, isShort)}`), showarrow: false,
      x: 0, xref: "paper", xanchor: "left", y: end, yref: "paper", yanchor: "bottom",
    }); // prettier-ignore
    return seriesTraces(one, colours).map((trace) => ({ ...trace, xaxis: `x${name}`, yaxis: `y${name}` }));
  });
  return { data, layout };
}
