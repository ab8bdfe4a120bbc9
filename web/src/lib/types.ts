// What the server and saved files say, as the Python side writes it.

export interface TableData {
  title: string;
  columns: string[];
  rows: (string | number | boolean | null)[][];
  note: string;
}

export interface Config {
  vocab_size: number;
  context_length: number;
  n_layers: number;
  d_model: number;
  n_heads: number;
  n_kv_heads: number;
  d_head: number;
  d_ff: number;
  positions: { kind: string };
  norm: { kind: string; eps: number };
  activation: { kind: string };
  block: { kind: string; norms?: number };
  encoder: Config | null;
  [name: string]: unknown;
}

export interface ModelInfo {
  id: string;
  name: string;
  family: "decoder" | "encoder" | "encoder-decoder";
  dtype: string;
  parameters: number;
  prefix: string;
  config: Config;
  causal: boolean;
  fills: boolean;
  gated: boolean;
  masks: string[];
  attention_scale: number[];
  vocab_size: number;
  budget: TableData;
  sites: TableData;
}

// An edit as data: a kind and a site, and what narrows it.
export interface Edit {
  kind: "zero" | "set" | "add" | "scale" | "noise" | "knockout";
  site: string;
  heads?: number[];
  kv_heads?: number[];
  neurons?: number[];
  positions?: number[];
  keys?: number[];
  value?: unknown;
  factor?: number;
  seed?: number;
  at?: number[];
  whole?: boolean;
  full?: boolean;
}

export interface SaidEdit {
  json: Edit;
  python: string;
  says: string;
}

export interface TraceInfo {
  id: string;
  model: string;
  text: string;
  ids: number[];
  tokens: string[];
  texts: string[];
  source_tokens: string[] | null;
  states: string[];
  edits: SaidEdit[];
  next: TableData;
  bytes: number;
}

export interface Limits {
  characters: number;
  tokens: number;
  edits: number;
  new_tokens: number;
}

export interface Status {
  models: ModelInfo[];
  known: string[];
  limits: Limits;
  queue: number;
  loading: string | null; // a model that is being loaded
  failed: string | null; // why the one asked for at the start could not be
}

export interface Progress {
  stage: string;
  done: number;
  total: number;
}
