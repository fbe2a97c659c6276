/** Draws the list of verdicts: a card for each cause, with the same verdict on other layers and what follows from it. */

import { element, several } from "./dom.js";
import { SYMBOLS } from "./model.js";
import { addressOf } from "./state.js";

/**
 * Draw the list.
 * @param {HTMLElement} panel the element to draw into.
 * @param {Object} run the answer to `run`.
 * @param {string} chosen the layer of the cursor, as in the address.
 * @param {(verdict: Object) => void} go is called with the verdict that is clicked.
 * @param {(layer: string) => void} open is called with the layer to show.
 * @param {Set<string>} unfolded the keys of the lists that are open; kept up to date.
 */
export function drawVerdicts(panel, run, chosen, go, open, unfolded) {
  if (!run.headline) {
    panel.replaceChildren(...howToGetThem());
    return;
  }
  const isChosen = ({ module }) => addressOf(module) === chosen;
  const more = (verdict) => (isChosen(verdict) ? moreButton(verdict.module, open) : "");
  const item = (verdict, isEffect) => {
    const shown = itemOf(verdict, isEffect, isChosen(verdict), go);
    shown.append(more(verdict));
    return shown;
  };
  const cards = run.cards.map(({ alike, effects }) => {
    const [first, ...others] = alike.map((place) => run.verdicts[place]);
    const later = effects.flat().map((place) => run.verdicts[place]);
    const card = cardOf(first, isChosen(first), go);
    card.append(more(first));
    const fold = (kind, text, verdicts) => {
      if (!verdicts.length) return;
      const items = verdicts.map((verdict) => item(verdict, kind === "effects"));
      card.append(foldOf(`${kind} ${alike[0]}`, text, items, verdicts.some(isChosen), unfolded));
    };
    fold("alike", `The same in ${several(others.length, "more layer")}`, others);
    const rules = [...new Set(later.map(({ rule }) => rule))].join(", ");
    fold("effects", `${several(later.length, "verdict")} ${later.length === 1 ? "follows" : "follow"} from it: ${rules}`, later);
    const meaning = Object.entries(run.meanings[first.rule] ?? {}).map(meaningOf);
    if (meaning.length) card.append(foldOf(`means ${alike[0]}`, `What ${first.rule} means`, meaning, false, unfolded));
    return card;
  });
  panel.replaceChildren(
    element("p", { class: "headline", text: run.headline }),
    cards.length ? element("ol", { class: "cards", "aria-label": "verdicts, worst first" }, cards) : "",
  );
}

/**
 * Make the card of a verdict.
 * @param {Object} verdict as the server sends it.
 * @param {boolean} isChosen whether the cursor is on its layer.
 * @param {((verdict: Object) => void)|null} go is called at a click; null for a card that cannot be clicked.
 */
export function cardOf(verdict, isChosen, go) {
  const { severity, rule, advice } = verdict;
  const parts = [
    element("span", { class: "card-head" }, [
      element("span", { class: `severity ${severity}`, text: `${SYMBOLS[severity] ?? "●"} ${severity}` }),
      element("span", { class: "rule", text: rule }),
    ]),
    ...saidOf(verdict),
    advice ? element("span", { class: "advice" }, [element("b", { text: "Try: " }), advice]) : null,
  ];
  return entryOf(`card ${severity}`, verdict, isChosen, go, parts);
}

/** Make the entry of a verdict in a list on a card. */
function itemOf(verdict, isEffect, isChosen, go) {
  const rule = isEffect ? element("span", { class: "rule", text: verdict.rule }) : null;
  return entryOf("item", verdict, isChosen, go, [rule, ...saidOf(verdict)]);
}

function saidOf(verdict) {
  const texts = { where: verdict.module || "the whole model", when: whenOf(verdict), evidence: verdict.evidence };
  return Object.entries(texts).map(([name, text]) => element("span", { class: name, text }));
}

function entryOf(name, verdict, isChosen, go, parts) {
  const options = { class: `${name}${isChosen ? " chosen" : ""}`, "aria-current": isChosen ? "true" : null };
  const button = () => element("button", { ...options, type: "button", on: { click: () => go(verdict) } }, parts);
  return element("li", {}, [go ? button() : element("div", options, parts)]);
}

/** Make a list that is folded at first. */
function foldOf(key, text, items, isOpen, unfolded) {
  const toggled = ({ target }) => (target.open ? unfolded.add(key) : unfolded.delete(key));
  const parts = [element("summary", { text }), element("ol", {}, items)];
  return element("details", { class: "fold-list", open: isOpen || unfolded.has(key), on: { toggle: toggled } }, parts);
}

/** Make the paragraph of a rule's text: a heading, and text in which code stands between backticks. */
function meaningOf([heading, text]) {
  const parts = text.split("`").map((part, index) => (index % 2 ? element("code", { text: part }) : part));
  return element("li", { class: "meaning" }, [element("b", { text: `${heading}: ` }), ...parts]);
}

function moreButton(layer, open) {
  return element("button", { class: "more", type: "button", text: "Show this layer ›", on: { click: () => open(layer) } });
}

/** Return when a verdict held: "since step 10, ongoing". */
export function whenOf({ since, until, batch_idx: batch }) {
  const where = batch === null || batch === undefined ? "" : `, batch ${batch}`;
  if (until === since) return `at step ${since}${where}`;
  return until === null ? `since step ${since}, ongoing${where}` : `from step ${since} to ${until}${where}`;
}

function howToGetThem() {
  return [
    element("p", { text: "No verdicts for this run: HealthMonitor did not watch it." }),
    element("p", { text: "With it, this list says which layer is unhealthy, when it began, why, and what to try:" }),
    element("pre", { text: "from hookboard import HealthMonitor\n\nTrainer(callbacks=[HealthMonitor()])" }),
  ];
}
