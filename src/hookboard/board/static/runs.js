/** The list of runs: which one is opened first, and what is said of each. */

import { decoded, isLive } from "./data.js";
import { counted, several, written } from "./dom.js";
import { SYMBOLS } from "./model.js";

const [MINUTE, HOUR, DAY] = [60, 3600, 86_400]; // in seconds
const SILENT_SECONDS = 3 * MINUTE; // TensorBoard's writer may hold points back for two minutes

/**
 * Return the run to open if none is asked for: the one with most alarms, then most notes, then the newest; in the tab of
 * those written within a day of the newest.
 */
export function firstRun(runs) {
  const newest = Math.max(...runs.map((run) => run.written));
  const latest = runs.filter((run) => !isLive() || run.written > newest - DAY);
  const isWorse = (a, b) => (b.alarms ?? -1) - (a.alarms ?? -1) || (b.notes ?? -1) - (a.notes ?? -1) || b.written - a.written;
  return latest.sort(isWorse)[0];
}

/** Return the text of a run in the list: its name, alarms and notes, loss, age, and whether it goes on. */
export function listed(run, now) {
  const marks = [[SYMBOLS.alarm, run.alarms], [SYMBOLS.note, run.notes]].filter(([, count]) => count); // prettier-ignore
  const judged = run.alarms === null ? "not watched" : marks.map(([symbol, count]) => `${symbol} ${count}`).join(" ") || "no verdicts";
  const loss = run.loss === null ? "" : `loss ${written(decoded([run.loss])[0])}`;
  return [run.name, judged, loss, isRunning(run, now) ? "running" : lastOf(run, now)].filter(Boolean).join(" · ");
}

/** Return how a run stands: "running, step 1 240, read 5 s ago". */
export function statusOf(run, now, sinceRead) {
  const step = `step ${counted(run.step)}`;
  return isRunning(run, now) ? `running, ${step}, read ${sinceRead} s ago` : `${lastOf(run, now)}, ${step}`;
}

function isRunning(run, now) {
  return isLive() && !run.is_over && now - run.written < SILENT_SECONDS;
}

function lastOf({ is_over: isOver, written: at }, now) {
  const age = now - at;
  const [size, unit] = age < HOUR ? [MINUTE, "minute"] : age < DAY ? [HOUR, "hour"] : [DAY, "day"];
  return `${isOver ? "ended" : "last point"} ${age < MINUTE ? "just now" : `${several(Math.floor(age / size), unit)} ago`}`;
}
