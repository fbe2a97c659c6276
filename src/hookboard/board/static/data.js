/** Requests to the server, or to the report that holds its answers. They are cached. */

const MAX_ANSWERS = 60; // that are cached
const answers = new Map();

/**
 * Request an answer from the server, or return the cached one.
 * @param {string} route the path, relative to the plugin's.
 * @param {Object<string, string|null>} parameters a null is left out.
 * @returns {Promise<Object>}
 * @throws {Error} with the server's message.
 */
export function ask(route, parameters = {}) {
  const url = urlOf(route, parameters);
  const known = answers.get(url);
  if (known) return known;
  const answer = source.answer(route, parameters);
  answers.set(url, answer);
  if (answers.size > MAX_ANSWERS) answers.delete(answers.keys().next().value);
  answer.catch(() => answers.delete(url));
  return answer;
}

/** Request an answer without parameters again; if it differs from the cached one, clear the cache and return true. */
export async function askAgain(route) {
  const before = await Promise.resolve(answers.get(route)).catch(() => undefined);
  const answer = await source.answer(route);
  if (JSON.stringify(before) === JSON.stringify(answer)) return false;
  answers.clear();
  answers.set(route, Promise.resolve(answer));
  return true;
}

/** Return the URL of a picture. */
export const pictureUrl = (key) => source.pictureUrl(key);

/** Where answers come from. */
let source = { answer: fetched, pictureUrl: (key) => urlOf("picture", { key }) };

/** Answer all requests without the server: `other` has the functions of `source`. */
export function answerFrom(other) {
  source = other;
}

/**
 * Replace the strings "nan", "inf" and "-inf" by numbers: JSON has none for them. A null, for no value, stays.
 */
export function decoded(cells) {
  return cells.map((cell) => (typeof cell === "string" ? WORDS[cell] : cell));
}

const WORDS = { nan: NaN, inf: Infinity, "-inf": -Infinity };

function urlOf(route, parameters) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null));
  return query.size ? `${route}?${query}` : route;
}

async function fetched(route, parameters = {}) {
  const url = urlOf(route, parameters);
  const response = await fetch(url).catch(() => null);
  if (response === null) throw new Error("TensorBoard does not answer: is it still running?");
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  throw new Error(answer?.error ?? `TensorBoard answered ${response.status} to ${route}.`);
}
