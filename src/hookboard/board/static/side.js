/** The part beside the view: the verdicts of a run, worst first, or the layer that is open. */

import { decoded } from "./data.js";
import { button, element, named, several } from "./dom.js";
import { layerFigure, layerTable, saveCsv, savePng, verdictTable } from "./export.js";
import { drawLayer, pointLayer, seriesAxes, seriesTraces } from "./layer.js";
import { SYMBOLS } from "./map.js";
import { addressOf, nameAt } from "./state.js";

/**
 * Draw the list.
 * @param {HTMLElement} panel the place.
 * @param {Object} run the answer of `run`.
 * @param {string} chosen the layer of the cursor, as the address has it.
 * @param {(verdict: Object) => void} go is called with the one that is clicked.
 * @param {(layer: string) => void} open is called with the layer that is to be shown.
 */
export function drawVerdicts(panel, run, chosen, go, open) {
  if (!run.headline) {
    panel.replaceChildren(...howToGetThem());
    return;
  }
  const cards = run.verdicts.map((verdict) => {
    const isChosen = addressOf(verdict.module) === chosen;
    const card = cardOf(verdict, isChosen, go);
    if (isChosen) card.append(moreButton(verdict.module, open));
    return card;
  });
  panel.replaceChildren(
    element("p", { class: "headline", text: run.headline }),
    cards.length
      ? element("ol", { class: "cards", "aria-label": "verdicts, worst first" }, cards)
      : element("p", { class: "well", text: "✓ HealthMonitor found no sick layer." }),
  );
}

/**
 * One verdict.
 * @param {Object} verdict as the server sends it.
 * @param {boolean} isChosen whether the cursor is on its layer.
 * @param {((verdict: Object) => void)|null} go what a click does; null if it does nothing.
 */
export function cardOf(verdict, isChosen, go) {
  const { severity, rule, module, evidence, advice } = verdict;
  const parts = [
    element("span", { class: "card-head" }, [
      element("span", { class: `severity ${severity}`, text: `${SYMBOLS[severity] ?? "●"} ${severity}` }),
      element("span", { class: "rule", text: rule }),
    ]),
    element("span", { class: "where", text: module || "the whole model" }),
    element("span", { class: "when", text: whenOf(verdict) }),
    element("span", { class: "evidence", text: evidence }),
    advice ? element("span", { class: "advice" }, [element("b", { text: "Try: " }), advice]) : null,
  ];
  const options = { class: `card ${severity}${isChosen ? " chosen" : ""}`, "aria-current": isChosen ? "true" : null };
  const inside = go
    ? element("button", { ...options, type: "button", on: { click: () => go(verdict) } }, parts)
    : element("div", options, parts);
  return element("li", {}, [inside]);
}

function moreButton(layer, open) {
  return element("button", { class: "more", type: "button", text: "Show this layer ›", on: { click: () => open(layer) } });
}

function whenOf({ since, until, batch_idx: batch }) {
  const where = batch === null || batch === undefined ? "" : `, batch ${batch}`;
  if (until === since) return `at step ${since}${where}`;
  return until === null ? `since step ${since}, ongoing${where}` : `from step ${since} to ${until}${where}`;
}

function howToGetThem() {
  return [
    element("p", { text: "No verdicts for this run: HealthMonitor did not watch it." }),
    element("p", { text: "With it, this list says which layer is sick, since when, why, and what to try:" }),
    element("pre", { text: "from hookboard import HealthMonitor\n\nTrainer(callbacks=[HealthMonitor()])" }),
  ];
}

const FEW = 3; // with fewer layers of a type, the band is that of all layers

/** Make it. `handlers` are those of the page. */
export function makeSide(handlers) {
  const title = element("h2");
  const back = button("✕", "Close the layer (Escape)", () => handlers.update({ layer: "" }));
  const png = button("PNG", "Save as a picture", () => save("png"));
  const csv = button("CSV", "Save the numbers", () => save("csv"));
  const panel = element("div", { class: "panel", tabindex: "0" });
  const head = element("div", { class: "head" }, [title, element("div", { class: "tools" }, [png, csv, back])]);
  const root = element("aside", { class: "side" }, [head, panel]);
  let drawn = null; // what the panel shows, to draw it no more often than needed
  let listed = ""; // the row that the list of verdicts marks
  let shown = null;
  let cursorStep = 0;
  let wasDrawn = false; // a link that opens a layer scrolls nowhere
  let colours = null;

  function draw(given, state, palette) {
    [shown, colours] = [given, palette];
    const { run, layer } = shown;
    back.hidden = png.hidden = !state.layer;
    csv.hidden = !state.layer && !run.verdicts.length;
    root.classList.toggle("open", Boolean(state.layer));
    if (!state.layer) {
      const whose = state.against ? ` of ${run.run}` : "";
      title.textContent = `${run.verdicts.length ? several(run.verdicts.length, "verdict") : "Verdicts"}${whose}`;
      title.removeAttribute("title");
      root.setAttribute("aria-label", "verdicts");
      drawn = null;
      listVerdicts(state.row);
      wasDrawn = true;
      return;
    }
    title.textContent = title.title = named(nameAt(state.layer));
    root.setAttribute("aria-label", `layer ${title.title}`);
    if (layer?.error) {
      panel.replaceChildren(element("p", { class: "notice", text: layer.error }));
      drawn = null;
    } else if (!isDrawn(layer, state.series)) {
      const isOther = drawn?.name !== state.layer;
      drawn = { name: state.layer, layer, colours, width: panel.clientWidth, series: state.series };
      drawLayer(panel, layer, contextOf(state));
      if (isOther) panel.scrollTop = 0;
      // In one column the layer opens below the map.
      if (isOther && wasDrawn && root.offsetTop > window.innerHeight / 2) root.scrollIntoView({ behavior: "smooth" });
      wasDrawn = true;
    }
  }

  /** Write the verdicts anew; the focus stays where it was. */
  function listVerdicts(chosen) {
    const at = [...panel.querySelectorAll("button.card")].indexOf(document.activeElement);
    drawVerdicts(panel, shown.run, chosen, handlers.go, open);
    if (at >= 0) panel.querySelectorAll("button.card")[at]?.focus();
    listed = chosen;
  }

  function open(layer) {
    handlers.update({ layer: addressOf(layer) });
  }

  function contextOf(state) {
    const { steps } = shown.numbers;
    const go = (step) => handlers.update({ step: String(nearest(steps, step)) });
    const now = () => cursorStep;
    const { types = [] } = shown.layer.layer;
    const alike = shown.run.layers.filter((layer) => layer.types[0] === types[0]).length;
    const like = types.length && alike >= FEW ? `all ${shown.layer.layer.type}` : "all layers"; // as the server does
    return { run: shown.run.run, like, now, steps: [steps[0] ?? 0, steps[steps.length - 1] ?? 1], shown: state.series, colours, go };
  }

  function isDrawn(layer, series) {
    const is = drawn?.layer === layer && drawn.series === series;
    return is && drawn.colours === colours && drawn.width === panel.clientWidth;
  }

  function point(given, state, cursor) {
    cursorStep = given.numbers.steps[cursor.column];
    if (state.layer) pointLayer(panel, cursorStep);
    else if (listed !== state.row) listVerdicts(state.row);
  }

  function save(kind) {
    const { run, layer } = shown;
    if (!layer) return saveCsv(`${run.run}-verdicts.csv`, verdictTable(run.verdicts));
    const name = `${run.run}-${named(layer.layer.name)}`;
    if (kind === "csv") return saveCsv(`${name}.csv`, layerTable(layer, decoded));
    const { steps } = shown.numbers;
    const ends = [steps[0] ?? 0, steps[steps.length - 1] ?? 1];
    const traces = (one) => seriesTraces(one, colours);
    const axes = (one) => seriesAxes(one, ends, colours);
    return savePng(`${name}.png`, layerFigure(layer, traces, axes, colours, `${run.run}: ${named(layer.layer.name)}`));
  }

  return { root, draw, point };
}

function nearest(steps, wanted) {
  return steps.reduce((best, step) => (Math.abs(step - wanted) < Math.abs(best - wanted) ? step : best), steps[0]);
}
