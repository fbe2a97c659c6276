/** The verdicts of a run, worst first. */

import { element } from "./dom.js";
import { SYMBOLS } from "./grid.js";
import { addressOf } from "./state.js";

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
  return until === null ? `since step ${since}, and it lasts${where}` : `from step ${since} to ${until}${where}`;
}

function howToGetThem() {
  return [
    element("p", { text: "No verdicts for this run: HealthMonitor did not watch it." }),
    element("p", { text: "With it, this list says which layer is sick, since when, why, and what to try:" }),
    element("pre", { text: "from hookboard import HealthMonitor\n\nTrainer(callbacks=[HealthMonitor()])" }),
  ];
}
