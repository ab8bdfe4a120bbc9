// What a model is made of, in the words and shapes of its own numbers.

import { squarified, type Box } from "./treemap";
import type { Config, ModelInfo, TableData } from "./types";
import { number, percent } from "./words";

// --- A block ---

export interface Inside {
  name: string; // the value's letter
  formula: string;
  shape: string;
}

export interface Sublayer {
  name: "attention" | "cross" | "ffn";
  title: string;
  says: string;
  insides: Inside[];
  kind: number; // its colour
}

export const shape = (...sizes: number[]): string => sizes.map((size) => number(size)).join(" × ");

export const normName = (config: Config): string => (config.norm.kind === "RMSNorm" ? "RMSNorm" : "LayerNorm");

// The sublayers of one block, in their order. `length` tokens are read, of `source` tokens of an encoder's text.
export function sublayers(model: ModelInfo, config: Config, layer: number, length: number, source: number): Sublayer[] {
  const own = config === model.config;
  const found = [attention(model, config, own ? (model.masks[layer] ?? "") : "bidirectional", layer, length, own)];
  if (own && config.encoder) found.push(cross(model, config, layer, length, source));
  return [...found, feedForward(config, length)];
}

function attention(model: ModelInfo, config: Config, mask: string, layer: number, length: number, own: boolean): Sublayer {
  const { n_heads: heads, n_kv_heads: groups, d_head: wide, d_model: width } = config;
  const turned = config.positions.kind === "Rotary" ? ", turned by position" : "";
  const shared = groups < heads ? `, ${groups === 1 ? "all heads" : `${heads / groups} heads`} to one of them` : "";
  return {
    name: "attention",
    title: `Attention, ${number(heads)} ${heads === 1 ? "head" : "heads"}`,
    says: `softmax(Q Kᵀ ${scaled(own ? model.attention_scale[layer] : undefined, wide)}${hides(mask)}) V W_O`,
    kind: 2,
    insides: [
      { name: "Q", formula: `x W_Q${turned}`, shape: shape(length, heads, wide) },
      { name: "K", formula: `x W_K${turned}${shared}`, shape: shape(length, groups, wide) },
      { name: "V", formula: "x W_V", shape: shape(length, groups, wide) },
      { name: "A", formula: `softmax of the scores, ${mask}`, shape: shape(heads, length, length) },
      { name: "A V", formula: "what each head reads", shape: shape(length, heads, wide) },
      { name: "update", formula: "heads W_O, added to the stream", shape: shape(length, width) },
    ],
  };
}

function cross(model: ModelInfo, config: Config, layer: number, length: number, source: number): Sublayer {
  const { n_heads: heads, n_kv_heads: groups, d_head: wide, d_model: width } = config;
  return {
    name: "cross",
    title: `Cross-attention, ${number(heads)} ${heads === 1 ? "head" : "heads"}`,
    says: `softmax(Q Kᵀ ${scaled(model.attention_scale[layer], wide)}) V W_O, K and V of the encoder's text`,
    kind: 5,
    insides: [
      { name: "Q", formula: "x W_Q", shape: shape(length, heads, wide) },
      { name: "K, V", formula: "encoder's stream W_K, W_V", shape: shape(source, groups, wide) },
      { name: "A", formula: "softmax of the scores", shape: shape(heads, length, source) },
      { name: "update", formula: "heads W_O, added to the stream", shape: shape(length, width) },
    ],
  };
}

function feedForward(config: Config, length: number): Sublayer {
  const gated = config.activation.kind === "SwiGLU";
  const act = ACTIVATIONS[config.activation.kind] ?? config.activation.kind;
  const up = { name: "up", formula: "x W_up", shape: shape(length, config.d_ff) };
  const gate = { name: "gate", formula: "x W_gate", shape: shape(length, config.d_ff) };
  return {
    name: "ffn",
    title: `Feed-forward layer, ${number(config.d_ff)} neurons`,
    says: gated ? "(x W_up ⊙ SiLU(x W_gate)) W_down" : `${act}(x W_up) W_down`,
    kind: 3,
    insides: [
      ...(gated ? [up, gate] : [up]),
      { name: "neurons", formula: gated ? "up ⊙ SiLU(gate)" : `${act}(up)`, shape: shape(length, config.d_ff) },
      { name: "update", formula: "neurons W_down, added to the stream", shape: shape(length, config.d_model) },
    ],
  };
}

const ACTIVATIONS: Record<string, string> = { Gelu: "GELU", GeluTanh: "GELU", Relu: "ReLU", Silu: "SiLU", SwiGLU: "SiLU" };

// 1/√d_k where the scale is that, else the number itself.
function scaled(scale: number | undefined, wide: number): string {
  const usual = scale === undefined || Math.abs(scale * Math.sqrt(wide) - 1) < 1e-9;
  return usual ? `/ √${wide}` : `· ${number(scale)}`;
}

const hides = (mask: string): string => (mask === "bidirectional" ? "" : " + mask");

// How a block is put together, in a sentence.
export function formSaid(config: Config): string {
  const norm = normName(config);
  if (config.block.kind === "PostNorm") {
    return `Post-norm: each sublayer reads the stream itself, and the sum goes through a ${norm}: x = norm(x + F(x)).`;
  }
  if (config.block.kind === "Parallel") {
    const through = config.block.norms === 1 ? `both through one ${norm}` : `each through a ${norm} of its own`;
    return `Parallel: both sublayers read the same state, ${through}, and both are added at once.`;
  }
  return `Pre-norm: each sublayer reads a normed copy and adds to the stream, which is never normed itself: x = x + F(norm(x)).`;
}

// --- The budget ---

export interface Share {
  part: string;
  within: string;
  formula: string;
  count: number; // over all layers
  kind: number;
}

// Every part with its parameters, those of one block times the layers.
export function shares(budget: TableData, config: Config): Share[] {
  const at = (name: string) => budget.columns.indexOf(name);
  const rows = budget.rows.map((row) => ({
    part: String(row[at("part")]),
    within: String(row[at("within")]),
    formula: String(row[at("formula")]),
    count: Number(row[at("parameters")]),
  }));
  const groups = new Set(rows.map((row) => row.within));
  return rows
    .filter((row) => !groups.has(row.part))
    .map((row) => {
      const side = row.within.startsWith("encoder") ? (config.encoder ?? config) : config;
      const layers = row.within ? side.n_layers : 1;
      const formula = row.within ? `${number(layers)} × (${row.formula})` : row.formula;
      return { ...row, formula, count: layers * row.count, kind: kindOf(row.part) };
    });
}

function kindOf(part: string): number {
  if (part.includes("norm")) return 6;
  if (part.startsWith("cross")) return 5;
  if (part.startsWith("attention")) return 2;
  if (part.startsWith("feed-forward")) return 3;
  return part.includes("unembedding") || part.includes("head") || part === "pooler" ? 4 : 1;
}

export interface Area extends Share {
  box: Box;
}

// A box for each part within 100 x `height`; the parts of the blocks stand together.
export function areas(all: Share[], height: number): Area[] {
  const names = [...new Set(all.map((share) => share.within || share.part))];
  const members = names.map((name) => all.filter((share) => (share.within || share.part) === name));
  const outer = squarified(members.map(sum), { left: 0, top: 0, width: 100, height });
  return members.flatMap((shared, at) => {
    const boxes = squarified(shared.map((share) => share.count), outer[at]!);
    return shared.map((share, nth) => ({ ...share, box: boxes[nth]! }));
  });
}

export const sum = (all: { count: number }[]): number => all.reduce((total, share) => total + share.count, 0);

// What stands out among the parts.
export function budgetSaid(all: Share[], tied: boolean): string {
  const total = sum(all);
  const of = (kind: number) => sum(all.filter((share) => share.kind === kind));
  const [words, heads, neurons] = [of(1), of(2) + of(5), of(3)];
  const times = heads > 0 ? `, ${number(neurons / heads, 2)} times what attention holds` : "";
  const again = tied ? "; the unembedding is the same matrix again" : "";
  return `The feed-forward layers hold ${percent(neurons / total)} of the ${number(total)} parameters${times}; the embeddings ${percent(words / total)}${again}.`;
}
