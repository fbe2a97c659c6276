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

/** Request the list of runs again, forget the answers about runs that have grown, and return the names of these. */
export async function askAgain() {
  const before = await Promise.resolve(answers.get("runs")).catch(() => undefined);
  const answer = await source.answer("runs");
  answers.set("runs", Promise.resolve(answer));
  const tokens = new Map(before?.runs.map(({ name, token }) => [name, token]));
  const grown = new Set(answer.runs.filter(({ name, token }) => tokens.get(name) !== token).map(({ name }) => name));
  const left = new Set(answer.runs.map(({ name }) => name));
  [...tokens.keys()].filter((name) => !left.has(name)).forEach((name) => grown.add(name)); // which are gone
  for (const url of [...answers.keys()]) {
    const asked = new URLSearchParams(url.split("?")[1]);
    if (grown.has(asked.get("run")) || grown.has(asked.get("against"))) answers.delete(url);
  }
  return grown;
}

/** Return the URL of a picture. */
export const pictureUrl = (key) => source.pictureUrl(key);

/** Return whether runs may still grow: those of a report do not. */
export const isLive = () => source.isLive;

/** Where answers come from. */
let source = { isLive: true, answer: fetched, pictureUrl: (key) => urlOf("picture", { key }) };

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
