// What the resource `attention` says, as inside/shown/attention.py writes it.

import type { PackedArray } from "../../lib/packed";
import type { TableData } from "../../lib/types";

export interface Meta {
  layer: number;
  head: number;
  part: "attention" | "cross";
  query: number;
  site: string;
  scale: number;
  d_head: number;
  heads: number;
  kv_head: number;
  kv_heads: number;
  write_norm: number;
  stream_norm: number;
  state: string;
  says: string;
  softmax: {
    pairs: number;
    variance: number;
    variance_scaled: number;
    entropy: number;
    entropy_scaled: number;
    largest: number;
    largest_scaled: number;
    query_square: number;
    key_square: number;
  };
}

export interface Shown {
  meta: Meta;
  arrays: Record<string, PackedArray>;
}

export const numbers = (shown: Shown, name: string): Float32Array => shown.arrays[name]?.values() ?? new Float32Array();

// A key with its position, as it is called where it stands alone.
export const named = (token: string, position: number): string => `${token} (${position})`;

// What the model said when it was run with what is tried out.
export interface Answer {
  shown: Shown;
  position: number; // whose next tokens these are
  before: TableData | null;
  now: TableData | null;
}
