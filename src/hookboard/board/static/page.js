/** The page: makes its toolbar and other parts, and handles what the user does. */

import { ask, askAgain, isLive } from "./data.js";
import { element, later, titled } from "./dom.js";
import { coloursOf, makeTip } from "./map.js";
import { columnOf, firstHow, groupedSeries, isBelow, numbersFor, otherStages, partnerOf, rowsSeen } from "./model.js";
import { filterOf } from "./patterns.js";
import { firstRun, listed, statusOf } from "./runs.js";
import { makeSide } from "./side.js";
import { addressOf, isSeen, isUndoneByBack, nameAt, namesIn, readState, watchAddress, watchDarkness, watchReloads, writeState } from "./state.js";
import { makeView } from "./view.js";

const ORDERS = { order: "order", name: "name", worst: "worst first", change: "most changed" };

const PATTERNS =
  "Patterns for names, separated by spaces: * matches within one name, ** across dots, ! excludes, " +
  "re: marks a regular expression";

/**
 * Make the toolbar.
 * @param {(patch: Object) => void} update is called with the changed part of the state.
 * @returns {Object} `root`, and `set`, which shows a state.
 */
function makeToolbar(update) {
  const change = (key, more = {}) => (event) => update({ [key]: event.target.value, ...more });
  const select = (name, key, more) => element("select", { id: `hookboard-${name}`, on: { change: change(key, more) } });
  const chooseRun = ({ target }) => {
    const kept = isUsual ? { series: "", how: "" } : {}; // what nobody chose is that of the new run's worst verdict
    update({ run: target.value, against: "", stage: "", from: "", to: "", ...kept });
  };
  const run = element("select", { id: "hookboard-run", on: { change: chooseRun } });
  let isUsual = true; // whether the run's own first series is shown
  const what = select("what", "series", { how: "" });
  const stage = select("stage", "series", { stage: "" });
  const compare = ({ target }) => {
    const [, kind, name] = /^(\w*):?(.*)$/s.exec(target.value);
    update({ against: kind === "run" ? name : "", stage: kind === "stage" ? name : "" });
  };
  const against = element("select", { id: "hookboard-against", on: { change: compare } });
  const sort = select("sort", "sort");
  const view = choice("view", { map: "Map", depth: "Depth" }, (value) => update({ view: value }));
  const how = choice("how", { log: "Log", linear: "Linear", deviation: "Deviation" }, (value) => update({ how: value }));
  let pending = {}; // typed into the boxes, not applied yet
  const apply = later(300, () => {
    const patch = pending;
    pending = {};
    update(patch);
  });
  const typed = (key) => (event) => {
    pending[key] = event.target.value.trim();
    apply();
  };
  const box = (name, key, placeholder, title) =>
    element("input", {
      id: `hookboard-${name}`, type: "search", placeholder, title, spellcheck: "false", autocomplete: "off",
      "aria-describedby": "hookboard-filter-error", list: name === "types" ? "hookboard-type-names" : null, on: { input: typed(key) },
    }); // prettier-ignore
  const modules = box("modules", "modules", "encoder.**  !*.norm*", PATTERNS);
  const types = box("types", "types", "Linear  !LayerNorm", "Types of layers, with spaces between them; ! excludes");
  const typeNames = element("datalist", { id: "hookboard-type-names" });
  const status = element("output", { class: "status", id: "hookboard-status" });
  const error = element("p", { class: "filter-error", id: "hookboard-filter-error", role: "alert" });
  sort.title =
    "worst first: layers with an alarm, then with a note, then those farthest from the median of their type at any step, " +
    "if they stand out; with two runs, those that differ most. most changed: those that were farthest from their first value.";
  fill(sort, Object.entries(ORDERS));
  const root = element("header", { class: "toolbar", role: "toolbar", "aria-label": "what is shown" }, [
    view.root, field(["Run ", status], run), field("Show", what), field("Stage", stage), group("Scale", how.root), field("Compare with", against),
    field("Sort by", sort), field("Layers", modules), field("Types", types), typeNames, error,
  ]); // prettier-ignore

  /** Say how the runs stand at the time `now`, `seconds` after they were read. */
  function tell(runs, now, name, seconds) {
    fill(run, runs.map((one) => [one.name, runs.length > 1 ? listed(one, now) : one.name]), name); // prettier-ignore
    const one = runs.find((other) => other.name === name);
    status.textContent = one ? statusOf(one, now, seconds) : "";
  }

  /** Show a state: `runs`, `run` (its answer), `series` (that is shown), `state`, `how`, `errors` (a message for each field). */
  function set({ runs, run: answer, series, state, how: value, errors }) {
    isUsual = series.is_default;
    fillGroups(what, groupedSeries(answer.series, series), series.id);
    const inStages = [series, ...otherStages(series, answer.series)].sort((a, b) => answer.series.indexOf(a) - answer.series.indexOf(b));
    fill(stage, inStages.map((one) => [one.id, one.stage]), series.id); // prettier-ignore
    stage.parentElement.hidden = answer.series.every((one) => one.stage === series.stage);
    const stages = otherStages(series, answer.series).map(({ stage }) => [`stage:${stage}`, `${stage} of this run`]);
    const others = runs.filter(({ name }) => name !== answer.run).map(({ name }) => [`run:${name}`, name]);
    const isDepth = state.view === "depth"; // which compares nothing
    const compared = state.against ? `run:${state.against}` : state.stage ? `stage:${state.stage}` : "";
    fill(against, [["", "nothing"], ...stages, ...others], isDepth ? "" : compared);
    against.disabled = stages.length + others.length === 0 || isDepth;
    sort.value = state.sort;
    sort.disabled = isDepth;
    how.set(value);
    for (const one of ["log", "linear", "deviation"]) how.disable(one, isDepth || (one === "deviation" && compared !== ""));
    view.set(state.view);
    for (const [input, text] of [[modules, state.modules], [types, state.types]]) {
      if (document.activeElement !== input) input.value = text;
    } // prettier-ignore
    const names = [...new Set(answer.layers.map(({ type }) => type).filter(Boolean))].sort();
    if (typeNames.children.length !== names.length) typeNames.replaceChildren(...names.map((name) => element("option", { value: name })));
    error.textContent = [...new Set([errors.modules, errors.types])].filter(Boolean).join(" ");
    modules.setAttribute("aria-invalid", String(errors.modules !== ""));
    types.setAttribute("aria-invalid", String(errors.types !== ""));
  }

  return { root, set, tell };
}

function field(text, control) {
  return element("label", { class: "control", for: control.id }, [element("span", {}, [text].flat()), control]);
}

function group(text, control) {
  return element("div", { class: "control" }, [element("span", { text }), control]);
}

/** Fill a select element with pairs of value and text. An open one stays open if only texts have changed. */
function fill(list, pairs, value) {
  const key = JSON.stringify(pairs.map(([name]) => name));
  if (list.hookboardKey !== key) {
    list.replaceChildren(...pairs.map(([name]) => element("option", { value: name })));
    list.hookboardKey = key;
  }
  pairs.forEach(([, text], i) => {
    if (list.options[i].text !== text) list.options[i].text = text;
  });
  if (value !== undefined) list.value = value;
}

/** Fill a select element with groups of series; the stage is a choice of its own. */
function fillGroups(list, groups, value) {
  const key = JSON.stringify(groups.map(([, series]) => series.map(({ id }) => id)));
  if (list.hookboardKey !== key) {
    const name = (one) => titled(one.label.replace(` (${one.stage})`, ""));
    const names = groups.flatMap(([, series]) => series.map(name));
    const isTwice = (one) => names.indexOf(name(one)) !== names.lastIndexOf(name(one));
    const text = (one) => `${name(one)}${one.source === "health" && isTwice(one) ? " · HealthMonitor" : ""}`;
    const option = (one) => element("option", { value: one.id, text: text(one) });
    list.replaceChildren(...groups.map(([label, series]) => element("optgroup", { label }, series.map(option))));
    list.hookboardKey = key;
  }
  list.value = value;
}

/** Make radio buttons, side by side. */
function choice(name, texts, chosen) {
  const inputs = Object.keys(texts).map((value) =>
    element("input", { type: "radio", name: `hookboard-${name}`, id: `hookboard-${name}-${value}`, value, on: { change: () => chosen(value) } }),
  );
  const labels = inputs.flatMap((input) => [input, element("label", { for: input.id, text: texts[input.value] })]);
  const root = element("div", { class: "choice", role: "radiogroup", "aria-label": name }, labels);
  return {
    root,
    set: (value) => inputs.forEach((input) => (input.checked = input.value === value)),
    disable: (value, is) => inputs.forEach((input) => input.value === value && (input.disabled = is)),
  };
}

const COLUMNS = 400;
const ZOOMED_COLUMNS = 2000;
const FOLLOW_MS = 2000; // TensorBoard itself looks for new points every 5 seconds

/** Build the page and keep it up to date. */
export function startPage(root) {
  let state = readState();
  let colours = coloursOf(false);
  let shown = null; // from the last answers
  let turn = 0;
  let newest = null; // resolves when the latest is drawn
  let readAt = Date.now(); // when the list of runs was read
  let opened = ""; // the run whose rows were scrolled
  const handlers = { update, go, toggle };
  const toolbar = makeToolbar(update);
  const tip = makeTip();
  const view = makeView(handlers, tip);
  const side = makeSide(handlers);
  const notice = element("p", { class: "notice", role: "status", text: "Loading…" });
  const main = element("main", {}, [view.root, side.root]);
  root.append(toolbar.root, notice, main, tip.box);
  root.classList.add("empty");

  watchDarkness((isDark) => {
    document.body.classList.toggle("dark", isDark);
    colours = coloursOf(isDark);
    draw();
  });
  watchAddress(() => {
    state = readState();
    refresh();
  });
  watchReloads(follow);
  if (isLive()) setTimeout(followOn, FOLLOW_MS);
  setInterval(tell, 1000);
  document.addEventListener("keydown", (event) => event.key === "Escape" && escape());
  new ResizeObserver(later(60, draw)).observe(view.root);
  refresh();

  /**
   * Change the state and draw it; resolves when it is drawn. A move of the cursor needs no request, and Back undoes it
   * only if it `isChosen`, by a click on a verdict or a row.
   */
  function update(patch, isChosen = false) {
    const before = state;
    state = { ...state, ...patch };
    writeState(state, isChosen || isUndoneByBack(before, state));
    const isLight = Object.keys(patch).every((key) => key === "row" || key === "step");
    if (!isLight || !shown) return refresh();
    point();
    return Promise.resolve();
  }

  function refresh() {
    newest = redraw(++turn);
    return newest;
  }

  /** Load and draw; if another call has begun meanwhile, wait for that one to draw. */
  async function redraw(mine) {
    root.setAttribute("aria-busy", "true");
    try {
      const answers = await load(state);
      if (mine !== turn) return newest;
      shown = answers;
      state = { ...state, ...answers.chosen }; // the cursor may have moved meanwhile
      writeState(state);
      draw();
    } catch (error) {
      if (mine === turn) say(error.message);
    } finally {
      if (mine === turn) root.removeAttribute("aria-busy");
    }
  }

  function draw() {
    if (!shown || !isSeen()) return;
    root.classList.toggle("empty", !shown.run);
    sayNotice();
    if (!shown.run) return;
    const { how } = shown;
    toolbar.set({ ...shown, state, how });
    tell();
    shown.numbers = numbersFor(shown.run, shown.map, how);
    shown.sort = state.view === "depth" ? "order" : state.sort;
    shown.rows = rowsSeen(shown.numbers, shown.run.verdicts, state, shown.filter, shown.sort);
    view.draw(shown, state, colours);
    side.draw(shown, state, colours);
    point();
    if (opened !== shown.run.run) bringFirst();
  }

  /** When a run is opened, scroll to the row of the cursor, or else to that of the worst verdict. */
  function bringFirst() {
    opened = shown.run.run;
    const sick = shown.rows.find((row) => row.verdicts.includes(shown.run.verdicts[0]));
    view.bring(state.row || (sick ? addressOf(sick.name) : ""));
  }

  function point() {
    const isOfAll = state.row === "" && state.step !== "";
    const cursor = { row: state.row, column: columnOf(shown.numbers.steps, state.step), isOfAll };
    view.point(shown, state, cursor, colours);
    side.point(shown, state, cursor);
  }

  /** Show the notices about what is shown. */
  function sayNotice() {
    say([shown.notice, ...(shown.run?.warnings ?? [])].filter(Boolean).join(" "));
  }

  function say(text) {
    notice.textContent = text;
    notice.hidden = !text;
  }

  /** Open or close a block; of a band, show every row. */
  async function toggle(row) {
    if (row.members.length > 1) {
      await update({ rows: "all", row: addressOf(row.name) });
      view.bring(addressOf(row.name));
      return;
    }
    const other = (key) => namesIn(state[key]).filter((name) => name !== row.name);
    const [open, closed] = [other("open"), other("closed")];
    (row.isOpen ? closed : open).push(row.name);
    update({ open: JSON.stringify(open), closed: JSON.stringify(closed), row: addressOf(row.name) });
  }

  /** Move the cursor to the row and the first step of a verdict; if it has no row, only to the step. */
  async function go({ module, since }) {
    const { steps, names, owners } = shown.numbers;
    const step = String(steps.find((one) => one >= since) ?? steps[steps.length - 1] ?? "");
    const isBlock = module !== "" && names.some((name) => isBelow(name, module));
    const row = names.find((name, i) => name === module || owners[i].name === module) ?? (isBlock ? module : undefined);
    const seen = row === undefined ? { row: "" } : { row: addressOf(row), ...uncovered(row, module) };
    await update({ step, ...seen, ...(state.from === "" ? {} : { from: "", to: "" }) }, true);
    // On a narrow page the map is below the verdicts. Both scrolls are instant: one that is still moving may end
    // elsewhere when the page is laid out anew.
    if (view.root.offsetTop > window.innerHeight / 2) view.root.scrollIntoView();
    if (row !== undefined) view.reveal(addressOf(row));
  }

  /** Return the change of state that makes a row visible: opens the blocks above it, clears the filter if it hides it. */
  function uncovered(row, module) {
    const above = shown.rows.filter((one) => one.isBlock && !one.isOpen && isBelow(row, one.name)).map(({ name }) => name);
    const patch = {};
    const isLeft = !shown.filter || shown.filter.some((name) => name === module || isBelow(name, module));
    if (!isLeft) Object.assign(patch, { modules: "", types: "" });
    const names = row.split(".").map((_, i, parts) => parts.slice(0, i + 1).join("."));
    if (above.length || !isLeft) {
      patch.closed = JSON.stringify(namesIn(state.closed).filter((name) => !names.includes(name)));
      patch.open = JSON.stringify([...new Set([...namesIn(state.open), ...names.slice(0, -1)])]);
    }
    return patch;
  }

  function escape() {
    tip.hide();
    if (state.layer) {
      update({ layer: "" });
      view.focus();
    } else if (state.from !== "") update({ from: "", to: "" });
  }

  /** Say how the runs stand. */
  function tell() {
    if (!shown?.run || !isSeen()) return;
    const since = Math.round((Date.now() - readAt) / 1000);
    const now = isLive() ? shown.now + since : Date.now() / 1000; // by the server's clock, or by ours
    toolbar.tell(shown.runs, now, shown.run.run, since);
  }

  /** Check whether runs have grown, and draw again what is shown of them. */
  async function follow() {
    if (!isSeen()) return;
    try {
      const grown = await askAgain();
      readAt = Date.now();
      const isOurs = !shown?.run || [shown.run.run, state.against].some((name) => grown.has(name));
      if (isOurs) await refresh();
      else {
        Object.assign(shown, await ask("runs"));
        sayNotice(); // the server answers again
      }
    } catch (error) {
      say(error.message);
    }
  }

  /** Follow the runs from now on; a server that takes long to answer is asked less often. */
  async function followOn() {
    const start = Date.now();
    await follow();
    setTimeout(followOn, Math.max(FOLLOW_MS, 5 * (Date.now() - start)));
  }
}

/** Request everything that a state needs. */
async function load(given) {
  if (given.run) ask("run", { run: given.run }).catch(() => null); // most likely it exists: request both at once
  const { runs, hint, now } = await ask("runs");
  if (!runs.length) return { runs, notice: hint, run: null };
  const notes = [hint];
  const has = (name) => runs.some((run) => run.name === name);
  const chosen = { against: has(given.against) ? given.against : "" };
  chosen.run = has(given.run) ? given.run : firstRun(runs).name;
  if (given.run && given.run !== chosen.run) notes.push(`There is no run “${given.run}”; this is “${chosen.run}”.`);
  const state = { ...given, ...chosen };
  const run = await ask("run", { run: state.run });
  const series =
    run.series.find(({ id }) => id === state.series) ?? run.series.find(({ is_default: is }) => is) ?? run.series[0];
  if (!series) return { runs, notice: `The run “${state.run}” has nothing to show yet.`, run: null };
  if (state.series && state.series !== series.id) {
    notes.push(`The run “${state.run}” has no “${state.series}”; this is ${titled(series.label)}.`);
  }
  chosen.series = series.id;
  const other = state.against ? null : otherStages(series, run.series).find(({ stage }) => stage === state.stage);
  chosen.stage = other?.stage ?? "";
  const against = state.view === "depth" ? "" : other ? run.run : state.against; // that view compares nothing
  const columns = String(state.from === "" ? COLUMNS : ZOOMED_COLUMNS);
  const asked = { run: run.run, series: series.id, columns };
  const partner = state.view === "depth" && partnerOf(series, run.series);
  const [map, partnerMap, layer] = await Promise.all([
    ask("map", { ...asked, against: against || null, against_series: (against && other?.id) || null }),
    partner ? ask("map", { ...asked, series: partner.id }) : null,
    layerOf(state),
  ]);
  const unmatched = map.unmatched ?? [];
  if (unmatched.length) notes.push(`${unmatched.length} row${unmatched.length > 1 ? "s exist" : " exists"} in only one ${other ? "stage" : "run"}, hidden here.`);
  const usual = !against && series.is_default ? firstHow(run, map, series) : series.scale;
  const how = state.view === "depth" ? "whole" : (state.how === "deviation" && against ? "" : state.how) || usual;
  const notice = notes.filter(Boolean).join(" ");
  return { runs, now, run, series, map, columns, how, ...filterOf(run.layers, state), partner: partnerMap, layer, notice, chosen };
}

async function layerOf({ run, layer }) {
  if (!layer) return null;
  try {
    return await ask("layer", { run, layer: nameAt(layer) });
  } catch (error) {
    return { error: error.message };
  }
}
