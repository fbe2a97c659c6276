/** What is shown, and how: the controls above the views. */

import { element, later, titled } from "./dom.js";

const PATTERNS =
  "Patterns over names, with spaces between them: * stays within one name, ** crosses dots, ! excludes, " +
  "re: is a regular expression";

/**
 * Make the toolbar.
 * @param {(patch: Object) => void} update is called with what changes of the state.
 * @returns {Object} `root`, and `set`, which shows a state.
 */
export function makeToolbar(update) {
  const change = (key, more = {}) => (event) => update({ [key]: event.target.value, ...more });
  const select = (name, key, more) => element("select", { id: `hookboard-${name}`, on: { change: change(key, more) } });
  const run = select("run", "run", { against: "", from: "", to: "" });
  const what = select("what", "series", { how: "" });
  const against = select("against", "against");
  const sort = select("sort", "sort");
  const view = choice("view", { map: "Map", depth: "Depth" }, (value) => update({ view: value }));
  const how = choice("how", { log: "Log", linear: "Linear", deviation: "Deviation" }, (value) => update({ how: value }));
  let pending = {}; // what was typed into both boxes and is not applied yet
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
  const error = element("p", { class: "filter-error", id: "hookboard-filter-error", role: "alert" });
  sort.title = "worst first: layers with an alarm, then with a note, then those farthest from the median of their kind at any step; of two runs those that differ most";
  fill(sort, [["order", "order"], ["name", "name"], ["worst", "worst first"]]); // prettier-ignore
  const root = element("header", { class: "toolbar", role: "toolbar", "aria-label": "what is shown" }, [
    view.root, field("Run", run), field("Show", what), group("Scale", how.root), field("Compare with", against),
    field("Sort by", sort), field("Layers", modules), field("Types", types), typeNames, error,
  ]); // prettier-ignore

  /** Show a state: `runs`, `run` (its answer), `series` (the one that is shown), `state`, `how`, `errors` (a sentence for each field). */
  function set({ runs, run: answer, series, state, how: value, errors }) {
    fill(run, runs.map(({ name }) => [name, name]), answer.run);
    fillGroups(what, answer.series, series.id);
    const others = runs.filter(({ name }) => name !== answer.run).map(({ name }) => [name, name]);
    fill(against, [["", "no other run"], ...others], state.view === "depth" ? "" : state.against); // that view is of one run
    against.disabled = runs.length < 2 || state.view === "depth";
    sort.value = state.sort;
    sort.disabled = state.view === "depth";
    how.set(value);
    how.disable("deviation", state.against !== "" || state.view === "depth");
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

  return { root, set };
}

function field(text, control) {
  return element("label", { class: "control", for: control.id }, [element("span", { text }), control]);
}

function group(text, control) {
  return element("div", { class: "control" }, [element("span", { text }), control]);
}

/** Fill a list with pairs of value and text, unless it has them. */
function fill(list, pairs, value) {
  const key = JSON.stringify(pairs);
  if (list.hookboardKey !== key) {
    list.replaceChildren(...pairs.map(([name, text]) => element("option", { value: name, text })));
    list.hookboardKey = key;
  }
  if (value !== undefined) list.value = value;
}

/** The series, those of one kind of tensor together. */
function fillGroups(list, series, value) {
  const key = JSON.stringify(series.map(({ id }) => id));
  if (list.hookboardKey !== key) {
    const groups = new Map();
    for (const one of series) {
      const name = one.source === "health" ? "HealthMonitor" : [one.stage, one.kind].filter(Boolean).join(" · ").replaceAll("_", " ");
      groups.set(name, [...(groups.get(name) ?? []), element("option", { value: one.id, text: titled(one.label) })]);
    }
    list.replaceChildren(...[...groups].map(([label, options]) => element("optgroup", { label }, options)));
    list.hookboardKey = key;
  }
  list.value = value;
}

/** One of a few, as buttons side by side. */
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
