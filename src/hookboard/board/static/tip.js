/** What the mouse, and the cursor, find in a cell. */

import { element, named, titled, written } from "./dom.js";
import { SYMBOLS } from "./grid.js";

/**
 * The lines on a cell.
 * @param {Object} picture `numbers` and `rows`.
 * @param {number} at the place of the row among those that are seen.
 * @param {number} column the column.
 * @param {Object} state of the page.
 * @returns {{name: string, type: string, lines: string[], verdicts: Object[]}|null} null where there is no row.
 */
export function cellOf({ numbers, rows }, at, column, state) {
  const row = rows[at];
  if (!row || column < 0 || column >= numbers.steps.length) return null;
  const step = numbers.steps[column];
  const index = row.at(column);
  const lines = [`step ${step}`];
  if (index < 0) lines.push(row.isOpen ? "opened: its rows are below" : "no value");
  else lines.push(...valueLines(numbers, index, column, state));
  const isFolded = row.isBlock && !row.isOpen;
  if (isFolded && index >= 0) lines.push(`the worst of its ${row.rows.length} rows: ${numbers.names[index]}`);
  const verdicts = row.verdicts.filter(({ since, until }) => since <= step && (until === null || step <= until));
  return { name: named(row.name), type: index >= 0 ? numbers.owners[index].type : "", lines, verdicts };
}

function valueLines(numbers, index, column, state) {
  const { values, others, usual, series, shown, scale, kinds, owners } = numbers;
  const value = values[index][column];
  if (value === null) return ["no value"];
  const health = series.source === "health" && !Number.isFinite(value);
  const lines = [`${titled(series.label)}: ${health ? "not finite (NaN or Inf)" : written(value, 4)}`];
  if (others) {
    const other = others[index][column];
    lines.push(`in ${state.against}: ${other === null ? "no value" : written(other, 4)}`);
    const far = shown[index][column];
    if (far !== null && Number.isFinite(far)) lines.push(scale.isLog ? `ratio ${written(10 ** far)}` : `difference ${written(far)}`);
    return lines;
  }
  const middle = usual[index][column];
  if (Number.isFinite(value) && middle !== null) {
    const same = kinds.filter((kind) => kind === kinds[index]).length;
    const kind = same >= 3 ? owners[index].type || "like rows" : "all rows";
    const ratio = series.scale === "log" && middle > 0 ? ` (${written(value / middle)} × it)` : "";
    lines.push(`median of ${kind}: ${written(middle)}${ratio}`);
  }
  return lines;
}

/** The same in one line, for those who hear it. */
export function heard(cell) {
  if (!cell) return "";
  const verdicts = cell.verdicts.map(({ severity, rule }) => `${severity}: ${rule}`);
  return [cell.name, cell.type, ...cell.lines, ...verdicts].filter(Boolean).join(", ");
}

/** The box beside the mouse. */
export function makeTip() {
  const box = element("div", { class: "tip", role: "tooltip", hidden: true });

  function show(cell, x, y) {
    box.hidden = !cell;
    if (!cell) return;
    box.replaceChildren(
      element("div", { class: "tip-name", text: cell.name }),
      cell.type ? element("div", { class: "tip-type", text: cell.type }) : "",
      ...cell.lines.map((text) => element("div", { text })),
      ...cell.verdicts.map(({ severity, rule }) =>
        element("div", { class: severity, text: `${SYMBOLS[severity]} ${severity}: ${rule}` }),
      ),
    );
    const { innerWidth, innerHeight } = window;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(Math.min(x + 16, innerWidth - width - 8), 8)}px`;
    box.style.top = `${y + 20 + height > innerHeight ? Math.max(y - height - 12, 4) : y + 20}px`;
  }

  return { box, show, hide: () => show(null) };
}
