// The softmax of one query, computed on the page, and what is told of it.

import type { Edit } from "./types";

// softmax(factor * scores); a score of -∞ is a hidden key, whatever the factor. All hidden: zeros, as in the model.
export function softmax(scores: ArrayLike<number>, factor = 1): Float64Array {
  const weights = new Float64Array(scores.length);
  const hidden = (at: number) => scores[at] === -Infinity;
  let most = -Infinity;
  for (let at = 0; at < scores.length; at++) if (!hidden(at)) most = Math.max(most, factor * (scores[at] ?? 0));
  let sum = 0;
  for (let at = 0; at < scores.length; at++) {
    if (hidden(at)) continue;
    // Two scores that are both beyond all numbers are equal; their difference would be none.
    const score = factor * (scores[at] ?? 0);
    weights[at] = score === most ? 1 : Math.exp(score - most);
    sum += weights[at] ?? 0;
  }
  if (sum > 0) for (let at = 0; at < weights.length; at++) weights[at] = (weights[at] ?? 0) / sum;
  return weights;
}

// - sum p ln p, in nats.
export function entropy(weights: ArrayLike<number>): number {
  let sum = 0;
  for (let at = 0; at < weights.length; at++) {
    const weight = weights[at] ?? 0;
    if (weight > 0) sum -= weight * Math.log(weight);
  }
  return Math.max(0, sum);
}

// The mean square distance from the mean, of all that are finite.
export function variance(numbers: ArrayLike<number>): number {
  const finite = Array.from(numbers).filter(Number.isFinite);
  if (!finite.length) return 0;
  const mean = finite.reduce((sum, one) => sum + one, 0) / finite.length;
  return finite.reduce((sum, one) => sum + (one - mean) ** 2, 0) / finite.length;
}

// A V: the values [S K], row after row, each weighed.
export function mixed(weights: ArrayLike<number>, values: ArrayLike<number>, width: number): Float64Array {
  const sum = new Float64Array(width);
  for (let key = 0; key < weights.length; key++) {
    const weight = weights[key] ?? 0;
    if (!weight) continue;
    for (let at = 0; at < width; at++) sum[at] = (sum[at] ?? 0) + weight * (values[key * width + at] ?? 0);
  }
  return sum;
}

// The keys of the greatest weights, greatest first; of equal ones the earlier.
export const strongest = (weights: ArrayLike<number>): number[] =>
  Array.from(weights, (_, at) => at).sort((a, b) => (weights[b] ?? 0) - (weights[a] ?? 0) || a - b);

export interface Trial {
  site: string; // "3.attention"
  head: number;
  query: number;
  scores: ReadonlyMap<number, number>; // by key
  scale: number | null; // the scaling that is switched off
  temperature: number;
}

// What is tried out on the page, as edits of the model: scores are set first, as they are written, and then all scores
// of the head are multiplied.
export function trialEdits({ site, head, query, scores, scale, temperature }: Trial): Edit[] {
  const where = { site: `${site}.scores`, heads: [head] };
  const edits: Edit[] = [];
  if (scores.size) {
    const keys = [...scores.keys()].sort((a, b) => a - b);
    edits.push({ kind: "set", ...where, positions: [query], keys, value: keys.map((key) => scores.get(key) ?? 0) });
  }
  if (scale !== null) edits.push({ kind: "scale", ...where, factor: 1 / scale });
  if (temperature !== 1) edits.push({ kind: "scale", ...where, factor: 1 / temperature });
  return edits;
}

// The edits in force without the scores that a trial sets anew. An edit of more than this query of this head stays: the
// model then says that both replace the same numbers.
export function without(edits: readonly Edit[], trial: readonly Edit[]): Edit[] {
  const set = trial.find((edit) => edit.kind === "set");
  if (!set) return [...edits];
  const same = (one?: number[], other?: number[]) => one?.length === 1 && one[0] === other?.[0];
  const replaced = (edit: Edit) =>
    ["set", "zero", "knockout"].includes(edit.kind) &&
    edit.site === set.site &&
    same(edit.heads, set.heads) &&
    same(edit.positions, set.positions);
  return edits.flatMap((edit) => (replaced(edit) && edit.keys ? rest(edit, edit.keys, set.keys ?? []) : [edit]));
}

// What is left of an edit of scores without some of its keys.
function rest(edit: Edit, own: number[], keys: number[]): Edit[] {
  const left = own.filter((key) => !keys.includes(key));
  if (left.length === own.length) return [edit];
  if (!left.length) return [];
  const { value } = edit;
  const kept = Array.isArray(value) ? value.filter((_, at) => !keys.includes(own[at] ?? -1)) : value;
  return [{ ...edit, keys: left, ...(value === undefined ? {} : { value: kept }) }];
}
