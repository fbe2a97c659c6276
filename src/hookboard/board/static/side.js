/** The panel beside the view: the verdicts of a run, or the layer that is open. */

import { ask } from "./data.js";
import { button, element, named, several } from "./dom.js";
import { layerFigure, layerTable, saveCsv, savePng, verdictTable } from "./export.js";
import { drawLayer, pointLayer } from "./layer.js";
import { MIN_KIND_ROWS, courseOf } from "./model.js";
import { addressOf, nameAt } from "./state.js";
import { drawVerdicts } from "./verdicts.js";

/** Make the panel; `handlers` are the page's. */
export function makeSide(handlers) {
  const title = element("h2");
  const back = button("✕", "Close the layer (Escape)", () => handlers.update({ layer: "" }));
  const png = button("PNG", "Save as a picture", () => save("png"));
  const csv = button("CSV", "Save the numbers", () => save("csv"));
  const panel = element("div", { class: "panel", tabindex: "0" });
  const head = element("div", { class: "head" }, [title, element("div", { class: "tools" }, [png, csv, back])]);
  const root = element("aside", { class: "side" }, [head, panel]);
  let drawn = null; // what the panel shows, so that it is drawn only if that changes
  let places = new Map(); // the elements of the charts of the layer, which show what they showed until they are drawn anew
  let listed = ""; // what the list of verdicts shows and marks
  let unfolded = new Set(); // the lists of verdicts that the user opened
  let listedRun = ""; // the run of these lists
  let shown = null;
  let cursorStep = 0;
  let wasDrawn = false; // a link that opens a layer does not scroll
  let colours = null;

  function draw(given, state, palette) {
    [shown, colours] = [given, palette];
    const { run, layer } = shown;
    if (state.layer && !layer) return; // it is on its way, and the window was resized meanwhile
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
    listed = "";
    title.textContent = title.title = named(nameAt(state.layer));
    root.setAttribute("aria-label", `layer ${title.title}`);
    if (layer?.error) {
      panel.replaceChildren(element("p", { class: "notice", text: layer.error }));
      drawn = null;
    } else if (!isDrawn(layer, state.series)) {
      const isOther = drawn?.name !== state.layer || drawn.run !== run.run;
      if (isOther) places = new Map();
      drawn = { name: state.layer, run: run.run, layer, colours, width: panel.clientWidth, series: state.series };
      drawLayer(panel, layer, contextOf(state));
      if (isOther) panel.scrollTop = 0;
      // On a narrow page the layer opens below the map.
      if (isOther && wasDrawn && root.offsetTop > window.innerHeight / 2) root.scrollIntoView();
      wasDrawn = true;
    }
  }

  /** Draw the verdicts if they have changed: a card that is drawn anew between press and release hears no click. */
  function listVerdicts(chosen) {
    const { run, headline, cards, verdicts } = shown.run;
    const list = JSON.stringify([run, headline, cards, verdicts, chosen]);
    if (listed === list) return;
    if (listedRun !== shown.run.run) [listedRun, unfolded] = [shown.run.run, new Set()];
    const reached = () => [...panel.querySelectorAll("button.card, button.item, summary")];
    const at = reached().indexOf(document.activeElement);
    drawVerdicts(panel, shown.run, chosen, handlers.go, open, unfolded);
    if (at >= 0) reached()[at]?.focus({ preventScroll: true }); // this draws what was there: the page stays where it is
    listed = list;
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
    const like = alike < MIN_KIND_ROWS ? "all layers" : types.length ? `all ${shown.layer.layer.type}` : "layers named alike";
    return { run: shown.run.run, like, now, steps: ends(), shown: state.series, colours, go, open, places, withCourse };
  }

  /** Return a statistic of the layer with its course, which the answer to `map` has. */
  async function withCourse(one) {
    const { run, columns } = shown;
    const map = await ask("map", { run: run.run, series: one.id, columns });
    return { ...one, ...courseOf(run, map, one.row) };
  }

  function isDrawn(layer, series) {
    const is = drawn?.layer === layer && drawn.series === series;
    return is && drawn.colours === colours && drawn.width === panel.clientWidth;
  }

  function point(given, state, cursor) {
    cursorStep = given.numbers.steps[cursor.column];
    if (state.layer) pointLayer(panel, cursorStep);
    else listVerdicts(state.row);
  }

  async function save(kind) {
    const { run, layer } = shown;
    if (!layer) return saveCsv(`${run.run}-verdicts.csv`, verdictTable(run.verdicts));
    const name = `${run.run}-${named(layer.layer.name)}`;
    const series = await Promise.all(layer.series.map(withCourse));
    if (kind === "csv") return saveCsv(`${name}.csv`, layerTable(series));
    return savePng(`${name}.png`, layerFigure(series, layer.verdicts, ends(), colours, `${run.run}: ${named(layer.layer.name)}`));
  }

  /** Return the first and the last step of the map. */
  function ends() {
    const { steps } = shown.numbers;
    return [steps[0] ?? 0, steps[steps.length - 1] ?? 1];
  }

  return { root, draw, point };
}

function nearest(steps, wanted) {
  return steps.reduce((best, step) => (Math.abs(step - wanted) < Math.abs(best - wanted) ? step : best), steps[0]);
}
