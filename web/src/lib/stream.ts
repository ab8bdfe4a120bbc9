// The map of the stream: which states are its rows, how a measure is painted, and what stands out.

import { number, percent } from "./words";
import type { LensMap } from "./lensmap.svelte";
import type { PackedArray } from "./packed";

export interface StreamMeta {
  states: string[];
  steps: string[][];
  lens: boolean;
}

export const MEASURES = {
  top: "top token of the lens",
  probability: "its probability",
  entropy: "entropy of the lens",
  norm: "length of the state",
  change: "how far the last step went",
} as const;
export type Measure = keyof typeof MEASURES;
export const ofLens = (measure: Measure): boolean => measure === "top" || measure === "probability" || measure === "entropy";

export interface CellData {
  state: string;
  index: number;
  position: number;
  norm: number;
  change: number | null;
  top: import("./types").TableData | null;
  ledger: LedgerData | null;
  note: string;
}

export interface LedgerData {
  of: string;
  by: string;
  entries: [string, number][];
  others: { count: number; amount: number } | null;
  sum: number;
  value: number;
  remainder: number;
  note?: string;
}

// How far apart the states before each block are: 1 in parallel models, 2 in most, 3 with cross-attention.
export function stepOf(states: string[]): number {
  const second = states.findIndex((name, index) => index > 0 && name.endsWith(".stream"));
  return Math.max(1, second);
}

export const rowsOf = (states: string[], every: boolean): number[] =>
  states.map((_, index) => index).filter((index) => every || index % stepOf(states) === 0);

// The row that stands for a state: its own, or the nearest before it that is shown.
export function rowFor(rows: number[], state: number): number {
  let found = 0;
  rows.forEach((index, row) => {
    if (index <= state) found = row;
  });
  return found;
}

// The lowest and highest of what is finite.
export function ends(values: Iterable<number>): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

// The tokens that are the top of most cells, with how many.
export function commonest(map: LensMap, states: number[], first: number, last: number, most = 6): [number, number][] {
  const counts = new Map<number, number>();
  for (const state of states) {
    for (let position = first; position <= last; position++) {
      const id = map.top[map.at(state, position)] ?? -1;
      if (id >= 0) counts.set(id, (counts.get(id) ?? 0) + 1);
    }
  }
  return [...counts].sort(([a, m], [b, n]) => n - m || a - b).slice(0, most);
}

// --- What to look for ---

// From which shown state on the lens says at a position what the model says there in the end.
export function settles(map: LensMap, states: number[], position: number): number | null {
  const last = states[states.length - 1] ?? 0;
  const final = map.top[map.at(last, position)] ?? -1;
  if (final < 0) return null;
  let found = last;
  for (const state of [...states].reverse()) {
    const top = map.top[map.at(state, position)] ?? -1;
    if (top < 0) return null;
    if (top !== final) break;
    found = state;
  }
  return found;
}

export function lensSaid(map: LensMap, names: string[], states: number[], position: number, token: string): string {
  const settled = settles(map, states, position);
  const last = states[states.length - 1] ?? 0;
  if (settled === null) return "";
  const final = map.label(last, position);
  const chance = percent(map.probability[map.at(last, position)] ?? 0);
  if (settled === last) return `At ${token} no depth says ${final} before the last one does, with ${chance}.`;
  if (settled === states[0]) return `At ${token} every depth says ${final}, the last with ${chance}.`;
  const before = states[states.indexOf(settled) - 1] ?? 0;
  return `At ${token} the lens says ${final} from ${names[settled]} on and ends with ${chance}; at ${names[before]} it still said ${map.label(before, position)}.`;
}

export function normSaid(norm: PackedArray, tokens: string[], position: number): string {
  const [states = 0, length = 0] = norm.shape;
  const at = (state: number, place: number) => norm.at(state, place);
  let [most, where] = [0, 0];
  for (let place = 0; place < length; place++) {
    if (at(states - 1, place) > most) [most, where] = [at(states - 1, place), place];
  }
  const grows = at(states - 1, position) / (at(0, position) || 1);
  const own = `The state of ${tokens[position]} goes from a length of ${number(at(0, position))} to ${number(at(states - 1, position))} (${number(grows, 1)} times)`;
  return where === position
    ? `${own}: the longest of all tokens in the end.`
    : `${own}; the longest in the end is ${tokens[where]} at position ${where}, with ${number(most)}.`;
}
