// What the server says of heads, as inside/shown/patterns.py, head_writes.py and head_reading.py write it.

import type { TableData } from "../../lib/types";

export interface Plan {
  part: string;
  size: number;
  large: number;
  requests: [number, number][];
  steps: [number, number]; // how many queries and keys are one in the picture of all heads
  layers: number;
  heads: number;
  queries: number;
  keys: number;
}

export interface PatternMeta {
  part: string;
  layers: number[];
  step: [number, number];
  head: number;
  size: number;
}

export type Word = [label: string, amount: number, id: number];

export interface Attended {
  position: number;
  token: string;
  attention: number;
  norm: number;
  amount?: number;
  writes?: Word[];
  moves?: Word[];
}

export interface HeadTold {
  layer: number;
  head: number;
  part: string;
  position: number;
  norms: number[];
  note: string;
  token: { id: number; label: string } | null;
  effect: number | null;
  edit: number;
  attended: Attended[];
  rest: { keys: number; attention: number; amount?: number };
  fits: { back: number; keys: Word[] } | null;
}

export interface Reading {
  layer: number;
  head: number;
  k: number;
  offset: number;
  turned: boolean;
  ov: TableData | null;
  qk: TableData;
  note: string;
}

export interface Card {
  kinds: string[][];
  scores: { name: string; text: string; formula?: string; values: (number | null)[][]; threshold: number | null }[];
  note: string;
}
