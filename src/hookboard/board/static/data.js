/** Answers of the server, which are asked for once. */

const MOST = 60; // answers that are kept
const answers = new Map();

/**
 * Ask the server.
 * @param {string} route the route, relative to the plugin's.
 * @param {Object<string, string|string[]|null>} parameters null is left out; a list is sent one by one.
 * @returns {Promise<Object>}
 * @throws {Error} its message is the server's sentence.
 */
export function ask(route, parameters = {}) {
  const url = urlOf(route, parameters);
  const known = answers.get(url);
  if (known) return known;
  const answer = fetched(url);
  answers.set(url, answer);
  if (answers.size > MOST) answers.delete(answers.keys().next().value);
  answer.catch(() => answers.delete(url));
  return answer;
}

/** Ask the server again, and forget all answers if this one is another than before. Returns whether it is. */
export async function askAgain(route, parameters, isSame) {
  const url = urlOf(route, parameters);
  const before = await Promise.resolve(answers.get(url)).catch(() => undefined);
  const answer = await fetched(url);
  if (before !== undefined && isSame(before, answer)) return false;
  answers.clear();
  answers.set(url, Promise.resolve(answer));
  return true;
}

/** The address of a picture. */
export function pictureUrl(key) {
  return urlOf("picture", { key });
}

/**
 * The cells of a map: a number that may be NaN or infinite, or null where there is no value.
 * JSON has no such numbers; the server sends them as words.
 */
export function decoded(cells) {
  return cells.map((cell) => (typeof cell === "string" ? WORDS[cell] : cell));
}

const WORDS = { nan: NaN, inf: Infinity, "-inf": -Infinity };

function urlOf(route, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null) query.append(name, one);
  }
  return query.size ? `${route}?${query}` : route;
}

async function fetched(url) {
  const response = await fetch(url).catch(() => null);
  if (response === null) throw new Error("TensorBoard does not answer: is it still running?");
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  throw new Error(answer?.error ?? `TensorBoard answered ${response.status} to ${url.split("?")[0]}.`);
}
