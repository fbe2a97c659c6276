/** What can be taken along: numbers as CSV, plots as PNG. */

import { forPlotly, named, several, shortened, titled } from "./dom.js";
import { stepMarks, tracesOf } from "./map.js";
import { ticks } from "./scale.js";

/** Give somebody a file. */
function download(name, url) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
}

/**
 * Save a table.
 * @param {string} name of the file.
 * @param {(string|number|null)[][]} lines the first one has the names of the columns. No value is an empty field.
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

/** What `HealthMonitor`'s own record holds as infinity may have been NaN too. */
function told(value, id) {
  return id.startsWith("health/") && value === Infinity ? "not finite" : value;
}

/** All values behind the rows that are shown, folded ones too: a line for each layer and step. */
export function mapTable({ numbers, rows }, run, state) {
  const { steps, names, values, others } = numbers;
  const head = others ? ["layer", "step", run, state.against] : ["layer", "step", numbers.series.id];
  const indices = [...new Set(rows.flatMap((row) => row.rows))];
  const body = indices.flatMap((row) =>
    steps.map((step, i) => [names[row], step, ...[values, others].filter(Boolean).map((all) => told(all[row][i], numbers.series.id))]),
  );
  return [head, ...body];
}

/** The values of the depth view at its step. */
export function depthTable({ halves, rows }) {
  const [first] = halves;
  const indices = [...new Set(rows.flatMap((row) => row.rows))];
  const body = indices.map((row) => {
    const name = first.numbers.names[row];
    return [name, first.numbers.steps[first.column], ...halves.map((half) => told(half.valueOf(name), half.numbers.series.id))];
  });
  return [["layer", "step", ...halves.map(({ numbers }) => numbers.series.id)], ...body];
}

/** The statistics of a layer. */
export function layerTable({ series }, decoded) {
  const body = series.flatMap((one) => {
    const columns = [one.values, one.low, one.median, one.high].map(decoded);
    return one.steps.map((step, i) => [one.id, one.row, step, ...columns.map((column) => told(column[i], one.id))]);
  });
  return [["statistic", "row", "step", "value", "p10 of the kind", "median of the kind", "p90 of the kind"], ...body];
}

/** The verdicts. */
export function verdictTable(verdicts) {
  const head = ["severity", "rule", "module", "since", "until", "batch_idx", "evidence", "advice"];
  return [head, ...verdicts.map((verdict) => head.map((name) => verdict[name] ?? null))];
}

/** Save a figure of plotly's as a picture. */
export async function savePng(name, { data, layout }) {
  const { width, height } = layout;
  download(name, await window.Plotly.toImage({ data, layout }, { format: "png", width, height, scale: 2 }));
}

/** The heat map as one figure, with its names, axis and scale. */
export function mapFigure({ numbers, rows, columns }, colours, title) {
  const names = namesOf(rows);
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
    margin: { l: 20 + 6.6 * Math.max(...names.map((name) => name.length), 10), r: 20, t: 56, b: 54 },
    xaxis: {
      range: [columns[0] - 0.5, columns[1] + 0.5], title: { text: `step${zero}${broken}` }, showgrid: false, zeroline: false,
      tickvals: below.map(({ column }) => column), ticktext: below.map(({ text }) => text),
    },
    yaxis: { range: [rows.length - 0.5, -0.5], tickvals: rows.map((_, i) => i), ticktext: names, showgrid: false, zeroline: false },
  } }; // prettier-ignore
}

/** The names of rows in full, as there are no names of blocks above them. */
function namesOf(rows) {
  const folded = (row) => (row.isBlock && !row.isOpen ? ` (worst of ${several(row.rows.length, "row")})` : "");
  return rows.map((row) => forPlotly(`${shortened(named(row.name), 48)}${folded(row)}`));
}

/** What all figures share. */
function frame(colours, title) {
  return {
    title: { text: forPlotly(title), font: { size: 15 }, x: 0.01, xanchor: "left" }, showlegend: false,
    font: { family: "Roboto, Arial, sans-serif", size: 12, color: colours.ink },
    paper_bgcolor: colours.paper, plot_bgcolor: colours.paper,
  }; // prettier-ignore
}

/** The depth view as one figure: what is drawn, with names and numbers on its axes. */
export function depthFigure(drawn, { halves, rows }, colours, title) {
  const names = namesOf(rows);
  const layout = {
    ...drawn.layout, ...frame(colours, title), width: 1200, height: rows.length * 18 + 110,
    margin: { l: 20 + 6.6 * Math.max(...names.map((name) => name.length), 10), r: 20, t: 56, b: 54 },
    yaxis: { ...drawn.layout.yaxis, visible: true, tickvals: rows.map((_, i) => i), ticktext: names, gridcolor: colours.line, zeroline: false },
  }; // prettier-ignore
  halves.forEach(({ numbers }, i) => {
    const name = i ? `xaxis${i + 1}` : "xaxis";
    const text = ticks(numbers.scale, 5).map((tick) => tick.text);
    layout[name] = { ...layout[name], showticklabels: true, ticktext: text, title: { text: forPlotly(titled(numbers.series.label)) } };
  });
  return { data: drawn.data, layout };
}

/** The statistics of a layer as one figure, one below the other. */
export function layerFigure(answer, tracesFor, axesFor, colours, title) {
  const count = answer.series.length || 1;
  const layout = { ...frame(colours, title), width: 900, height: count * 150 + 90, margin: { l: 80, r: 20, t: 60, b: 40 }, annotations: [] };
  const data = answer.series.flatMap((one, i) => {
    const name = i ? String(i + 1) : "";
    const [top, bottom] = [1 - i / count, 1 - (i + 1) / count + 0.25 / count];
    const { x, y } = axesFor(one);
    layout[`xaxis${name}`] = { ...x, anchor: `y${name}` };
    layout[`yaxis${name}`] = { ...y, anchor: `x${name}`, domain: [bottom, top - 0.12 / count] };
    layout.annotations.push({
      text: forPlotly(`${titled(one.label)} · ${shortened(one.row, 60)}`), showarrow: false,
      x: 0, xref: "paper", xanchor: "left", y: top - 0.12 / count, yref: "paper", yanchor: "bottom",
    }); // prettier-ignore
    return tracesFor(one).map((trace) => ({ ...trace, xaxis: `x${name}`, yaxis: `y${name}` }));
  });
  return { data, layout };
}
