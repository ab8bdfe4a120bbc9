// What the server says of norms and feed-forward layers, as inside/shown/norm.py, ffn.py and neuron_reading.py write it.

import type { TableData } from "../../lib/types";

export interface NormInfo {
  site: string;
  says: string;
  reads: string;
  scale: string;
  gives: string[];
  layer: number | null;
  kind: "LayerNorm" | "RMSNorm";
  eps: number;
  shift: boolean;
}

export interface NormMeta extends Omit<NormInfo, "scale"> {
  position: number;
  mean: number;
  variance: number;
  scale: number;
  own_scale: number;
  norms: Record<string, number>;
  remainder: number;
  edited: string[];
}

export interface Strong {
  neuron: number;
  up: number;
  gate: number | null;
  value: number;
  write: number;
  size: number;
  effect: number | null;
  raises: string[] | null;
  lowers: string[] | null;
}

export interface FfnMeta {
  layer: number;
  position: number;
  site: string;
  activation: string;
  gated: boolean;
  token: { id: number; text: string } | null;
  strongest: Strong[];
  counts: {
    neurons: number;
    tokens: number;
    active: number;
    zero: number;
    share: number;
    silent: number;
    always: number;
    half: number;
  };
  update: number;
  edited: string[];
}

export interface NeuronReading {
  layer: number;
  neuron: number;
  write: number;
  reads: TableData;
  promoted: TableData | null;
  note: string;
}

// An activation as the lessons call it; of a gated layer it is the gate's.
const ACTIVATIONS: Record<string, string> = {
  Gelu: "GELU",
  GeluTanh: "GELU, tanh form",
  Relu: "ReLU",
  Silu: "SiLU",
  SwiGLU: "SiLU",
};
export const activation = (meta: FfnMeta): string => ACTIVATIONS[meta.activation] ?? meta.activation;
