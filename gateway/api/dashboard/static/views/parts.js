// Small pieces that several views show.

import { h } from "../dom.js";
import { signed, signOf } from "../format.js";

export function score(value, digits = 2) {
  return h("span", { class: `score ${signOf(value)}` }, signed(value, digits));
}

export function state(text, kind = "") {
  return h("span", { class: `state ${kind}` }, text);
}

// Which lineage charts by version are of, where there are several.
export function whose(rows, context) {
  const ids = new Set(rows.map((one) => one.lineage_id));
  if (context.lineage || ids.size < 2) return null;
  return `The charts by version are of ${context.nameOf(rows[0].lineage_id)}; choose another lineage above.`;
}
