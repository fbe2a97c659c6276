/** Numbers are computed once for a map and a way to show it. */

import { numbersOf } from "./model.js";

const computed = new WeakMap();

/** What `numbersOf` gives. */
export function numbersFor(run, map, how) {
  const known = computed.get(map) ?? {};
  known[how] ??= numbersOf(run, map, how);
  computed.set(map, known);
  return known[how];
}
