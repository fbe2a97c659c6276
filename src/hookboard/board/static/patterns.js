/** Selects layers by patterns and types, as hookboard's callbacks select modules: see `patterns.py`, `selection.py`. */

/**
 * Return the layers that the two fields above the map select.
 * @param {Object[]} layers of the run.
 * @param {Object} state `modules` and `types`, each with spaces between its patterns or types.
 * @returns {Object} `filter` (their names; null if both fields are empty or one is wrong) and `errors` (a text for each field).
 */
export function filterOf(layers, { modules, types }) {
  const errors = { modules: "", types: "" };
  const chosen = (field, text, find) => {
    try {
      return select(layers, text.split(/\s+/).filter(Boolean), find);
    } catch (error) {
      errors[field] = error.message;
      return [];
    }
  };
  const [byName, byType] = [chosen("modules", modules, ofPattern), new Set(chosen("types", types, ofType))];
  if (errors.modules || errors.types || !(modules || types)) return { filter: null, errors };
  return { filter: byName.filter((layer) => byType.has(layer)).map(({ name }) => name), errors };
}

/** Return the layers that any of some texts finds, or all without such; a leading "!" leaves out what the text finds. */
function select(layers, texts, find) {
  const found = (some) => new Set(some.flatMap((text) => find(text, layers)));
  const [wanted, dropped] = [texts.filter((text) => !text.startsWith("!")), texts.filter((text) => text.startsWith("!"))];
  const [isIn, isOut] = [found(wanted), found(dropped.map((text) => text.slice(1)))];
  return layers.filter((layer) => (isIn.has(layer) || !wanted.length) && !isOut.has(layer));
}

function ofPattern(pattern, layers) {
  const matched = (text) => layers.filter(({ name }) => matcherOf(text)(name));
  const found = matched(pattern);
  if (found.length) return found;
  const wider = `**${pattern}**`;
  const count = pattern && !pattern.startsWith("re:") ? matched(wider).length : 0;
  const what = `the pattern '${pattern}' matches no layer's whole name${count ? `, '${wider}' matches ${count}` : ""}`;
  throw nothing("layers", what, pattern.replace(/^re:/, ""), layers.map(({ name }) => name).filter(Boolean));
}

/** Return the layers of a type: its class has this name, short, full, or as a package re-exports it. */
function ofType(given, layers) {
  const [where, last] = parted(given);
  const isCalled = (full) => parted(full)[1] === last && (!where || full.startsWith(`${where}.`));
  const found = layers.filter(({ types }) => types.some(isCalled));
  if (found.length) return found;
  const present = [...new Set(layers.map(({ type }) => type).filter(Boolean))].sort();
  if (present.length) throw nothing("types", `no layer is a '${given}'`, given, present);
  throw new Error(`types: the run has no record of its layers' types, so '${given}' cannot match.`);
}

/** Split a dotted name before its last part. */
function parted(name) {
  const dot = name.lastIndexOf(".");
  return [name.slice(0, Math.max(dot, 0)), name.slice(dot + 1)];
}

function nothing(field, what, given, valid) {
  const near = closest(given, valid).map((name) => `'${name}'`);
  const more = valid.length > 12 ? ` and ${valid.length - 12} more` : "";
  return new Error(`${field}: ${what}${near.length ? `; the closest are ${near.join(", ")}` : ""}. Valid: ${valid.slice(0, 12).join(", ")}${more}.`);
}

/** Return up to three names that resemble a text as a whole or in their last part, best first. */
function closest(given, names) {
  const score = (name) => Math.max(likeness(given, name), likeness(parted(given)[1], parted(name)[1]) - 0.1);
  const scored = names.map((name) => ({ name, score: score(name) })).filter((one) => one.score > 0.45);
  return scored.sort((a, b) => b.score - a.score).slice(0, 3).map(({ name }) => name); // prettier-ignore
}

/** Return the share of the pairs of neighbouring letters that two texts have in common, from 0 to 1. */
function likeness(one, other) {
  const pairs = (text) => new Set(Array.from(text, (_, i) => ` ${text} `.slice(i, i + 2)));
  const [a, b] = [pairs(one), pairs(other)];
  return (2 * [...a].filter((pair) => b.has(pair)).length) / (a.size + b.size || 1);
}

/** Return the function that tells whether a pattern matches a whole name. */
export function matcherOf(pattern) {
  if (pattern.startsWith("re:")) {
    const expression = expressionOf(pattern);
    return (name) => expression.test(name);
  }
  const parts = pattern.split(/(\*\*\.|\*\*|\*)/);
  return (name) => (name !== "" || pattern !== "*") && name.startsWith(parts[0]) && isMatch(parts, [...name]);
}

/** Do what `_is_match` does in `patterns.py`: follow all ways to match at once, as bits, one for each position. */
function isMatch(parts, name) {
  const places = new Map(); // bit i: the letter stands at i
  const at = (letter) => places.get(letter) ?? 0n;
  name.forEach((letter, i) => places.set(letter, at(letter) | (1n << BigInt(i))));
  const all = (1n << BigInt(name.length)) - 1n;
  let ends = 1n; // bit i: the parts so far match the first i letters
  for (const part of parts) {
    const first = ends & -ends;
    const others = all & ~at(".");
    if (part === "**") ends = ((all << 1n) | 1n) & -first;
    else if (part === "**.") ends |= (at(".") & -(first << 1n)) << 1n;
    else if (part === "*") ends |= ((ends & others) + others) ^ others;
    else for (const letter of part) ends = (ends & at(letter)) << 1n;
  }
  return ((ends >> BigInt(name.length)) & 1n) === 1n;
}

/** Return the regular expression of a pattern. It is JavaScript's, with the named groups and leading flags of Python. */
function expressionOf(pattern) {
  const [, flags = "", text] = /^(?:\(\?([ims]+)\))?([^]*)$/.exec(pattern.slice(3));
  const own = text.replaceAll("(?P<", "(?<").replace(/\(\?P=(\w+)\)/g, "\\k<$1>");
  try {
    new RegExp(own, flags); // alone, because "a)(b" would be an expression inside of the next one
    return new RegExp(`^(?:${own})$`, flags);
  } catch (error) {
    throw new Error(`layers: '${pattern}' is not a regular expression: ${error.message.split(": ").pop()}.`);
  }
}
