// The whole pass as a row of steps, what is worth saying of each, and the way from logits to a token.

import { number, percent } from "./words";
import type { Config, ModelInfo } from "./types";

// One stage as the server says it: null among the values is what a mask hides.
export interface Stage {
  site: string;
  name: string;
  symbol: string;
  formula: string;
  axes: string[];
  at: number[];
  shape: number[];
  norm: number;
  values: (number | null)[];
  of: number;
  what: string;
  ids?: number[];
  labels?: string[];
  probabilities?: number[];
}

export interface LayerStages {
  layer: number;
  layers: number;
  side: string;
  position: number;
  token: string;
  stages: Stage[];
}

export type Side = "" | "encoder";
export const DRAWING = ["temperature", "top_k", "top_p", "min_p", "draw"] as const;
export type DrawingStep = (typeof DRAWING)[number];

// A step is a site, or after the last of them one on the way from logits to a token.
export interface Step {
  side: Side;
  layer: number; // -1 is the embedding, the number of layers the ending
  site: string;
  drawing: DrawingStep | null;
}

// All steps of a model in the order the data flows, those of drawing a token at the end where it can draw.
export function stepsOf(model: ModelInfo): Step[] {
  const name = model.sites.columns.indexOf("site");
  const steps: Step[] = [];
  for (const row of model.sites.rows) {
    const site = String(row[name]);
    const side: Side = site.startsWith("encoder.") && model.prefix !== "encoder." ? "encoder" : "";
    const config: Config = side && model.config.encoder ? model.config.encoder : model.config;
    const layer = layerOf(site, config.n_layers);
    steps.push({ side, layer, site, drawing: null });
    if (site.endsWith(".scores")) steps.push({ side, layer, site: site.replace(".scores", ".mask"), drawing: null });
  }
  const last = steps.findIndex((step) => step.site === `${model.prefix}logits`);
  if (model.causal && last >= 0) {
    const drawn = DRAWING.map((drawing): Step => ({ side: "", layer: model.config.n_layers, site: drawing, drawing }));
    return [...steps.filter((_, at) => at !== last), steps[last]!, ...drawn];
  }
  return steps;
}

function layerOf(site: string, layers: number): number {
  const part = site.split(".").find((one) => /^\d+$/.test(one));
  if (part !== undefined) return Number(part);
  return /(^|\.)embed\./.test(site) ? -1 : layers;
}

// What is the same in every layer is shown once: of later layers only the stream that each begins with.
export function withoutRepeats(steps: Step[], model: ModelInfo): Step[] {
  return steps.filter((step) => {
    const layers = step.side ? (model.config.encoder?.n_layers ?? 0) : model.config.n_layers;
    return step.layer <= 0 || step.layer >= layers || step.site.endsWith(`${step.layer}.stream`);
  });
}

// The step that stands for another one where that is left out: the nearest before it.
export function nearest(all: Step[], kept: Step[], site: string): number {
  const places = new Map(kept.map((step, at) => [step.site, at]));
  for (let at = all.findIndex((step) => step.site === site); at >= 0; at--) {
    const found = places.get(all[at]!.site);
    if (found !== undefined) return found;
  }
  return 0;
}

// The first step of the layer after, or of the one before; the decoder's embedding follows the encoder's ending.
export function jumped(steps: Step[], at: number, by: 1 | -1): number {
  const same = (one: number, other: number) => steps[one]?.side === steps[other]?.side && steps[one]?.layer === steps[other]?.layer;
  const first = (of: number) => {
    while (of > 0 && same(of - 1, of)) of--;
    return of;
  };
  if (by < 0) return first(Math.max(0, first(at) - 1));
  let found = at;
  while (found < steps.length && same(found, at)) found++;
  return Math.min(found, steps.length - 1);
}

// The same step of the layer before or after, or where that has none the first step there.
export function across(steps: Step[], at: number, by: 1 | -1): number {
  const [here, there] = [steps[at], jumped(steps, at, by)];
  const goal = steps[there];
  if (!here || !goal) return at;
  const same = (step: Step) => step.side === goal.side && step.layer === goal.layer && nameOf(step) === nameOf(here);
  const found = steps.findIndex(same);
  return found >= 0 ? found : there;
}

// A site's name within its layer, which is the same in all layers.
export function nameOf(step: Step): string {
  return step.site.replace(/^(encoder\.|decoder\.)?(\d+\.)?/, "");
}

// The same in two parts, as "attention" and "query".
export function labelOf(step: Step): [string, string] {
  if (step.drawing) return ["next token", DRAWN[step.drawing]];
  const [first = "", ...rest] = nameOf(step).split(".");
  return rest.length ? [first, rest.join(".")] : ["", first];
}

export const DRAWN: Record<DrawingStep, string> = {
  temperature: "temperature",
  top_k: "top-k",
  top_p: "top-p",
  min_p: "min-p",
  draw: "draw",
};

// --- What to look for ---

// One sentence on what stands out among the numbers; `keys` are the tokens that scores and patterns are over.
export function remark(stage: Stage, before: Stage[], keys: string[]): string {
  const last = stage.site.slice(stage.site.lastIndexOf(".") + 1);
  if (stage.ids) return leading(stage);
  if (last === "mask") return masked(stage);
  if (last === "pattern") return strongest(stage, keys, "attends", percent);
  if (last === "scores") return strongest(stage, keys, "scores highest, with", number);
  if (last === "update") return written(stage, before);
  return largest(stage);
}

function leading(stage: Stage): string {
  const [first, second] = stage.labels ?? [];
  const [best, next] = stage.probabilities ?? [];
  if (first === undefined || best === undefined) return "There are no candidates.";
  const than = second === undefined || next === undefined ? "" : `; ${second} follows with ${percent(next)}`;
  return `${first} leads with ${percent(best)}${than}.`;
}

function masked(stage: Stage): string {
  const seen = stage.values.filter((value) => value !== null).length;
  const of = stage.values.length < stage.of ? ` of the first ${stage.values.length}` : ` of ${stage.of}`;
  const hidden = stage.values.length - seen;
  return hidden ? `${hidden}${of} keys are hidden from this token.` : `None${of} keys is hidden from this token.`;
}

function strongest(stage: Stage, keys: string[], does: string, said: (value: number) => string): string {
  const at = greatest(stage.values, (value) => value);
  const value = stage.values[at];
  if (value === null || value === undefined) return "Every key is hidden here.";
  const wide = stage.at[stage.at.length - 1] || 1;
  const rows = Math.floor(stage.values.length / wide);
  const among = rows < (stage.at[0] ?? 1) ? ` (of the numbers shown)` : "";
  const key = keys[at % wide] ?? `key ${at % wide}`;
  const verb = does === "attends" ? `attends ${said(value)} to ${key}` : `${does} ${said(value)}, at ${key}`;
  return `Head ${Math.floor(at / wide)} ${verb}, more than any other does to one token${among}.`;
}

// How large an update is beside the stream that it is added to.
function written(stage: Stage, before: Stage[]): string {
  const stream = [...before].reverse().find((one) => /\.stream(\.\w+)?$/.test(one.site));
  if (!stream || !stream.norm) return largest(stage);
  const share = stage.norm / stream.norm;
  return `The update is ${number(share)} times as long as the stream it is added to (${number(stage.norm)} beside ${number(stream.norm)}).`;
}

function largest(stage: Stage): string {
  if (stage.of === 1) return `It is ${number(stage.values[0] ?? null)}.`;
  const at = greatest(stage.values, Math.abs);
  const value = stage.values[at];
  if (value === null || value === undefined) return "Every number is hidden here.";
  const shown = stage.values.length < stage.of ? ` of the first ${number(stage.values.length)}` : "";
  const typical = stage.norm / Math.sqrt(stage.of) || 1;
  const wide = stage.at[stage.at.length - 1] ?? 1;
  const which = stage.axes?.[0] === "H" ? `Head ${Math.floor(at / wide)}'s number ${at % wide}` : `Number ${at}`;
  return `${which} is the largest${shown}: ${number(value)}, ${number(Math.abs(value) / typical, 1)} times the typical size (${number(typical)}).`;
}

function greatest(values: (number | null)[], size: (value: number) => number): number {
  let best = 0;
  for (let at = 0; at < values.length; at++) {
    const [one, other] = [values[at], values[best]];
    if (one !== null && one !== undefined && (other === null || other === undefined || size(one) > size(other))) best = at;
  }
  return best;
}

// --- From logits to a token ---

export interface Sampling {
  temperature: number;
  top_k: number;
  top_p: number;
  min_p: number;
  seed: number;
}

export interface Candidate {
  id: number;
  token: string;
  logit: number;
  probability: number;
  after: Record<Exclude<DrawingStep, "draw">, number>;
  from: number; // where it lies in the running sum over all ids of what is left
  to: number;
}

export interface Draw {
  candidates: Candidate[];
  kept: Record<string, number>;
  chosen: { id: number; token: string; u: number | null; seed: number; from: number; to: number }; // no u where the greatest logit is taken
}

export interface Piece {
  id: number | null; // null for tokens that are not among the candidates
  token: string;
  from: number;
  to: number;
  chosen: boolean;
}

// What is left, laid between 0 and 1 in the order of ids, in which the sum runs that u falls into; tokens that are not
// among the candidates are in the gaps between them.
export function pieces(draw: Draw): Piece[] {
  const { chosen } = draw;
  const known = draw.candidates.some((one) => one.id === chosen.id) ? draw.candidates : [...draw.candidates, chosen];
  const line: Piece[] = [];
  let end = 0;
  const others = (to: number) => {
    if (to - end > 1e-6) line.push({ id: null, token: "other tokens", from: end, to, chosen: false });
  };
  for (const { id, token, from, to } of known.filter((one) => one.to > one.from).sort((one, other) => one.id - other.id)) {
    others(from);
    line.push({ id, token, from, to, chosen: id === chosen.id });
    end = to;
  }
  others(1);
  return line;
}

// The step that drops a candidate; null where it stays to the end.
export function droppedBy(candidate: Candidate): DrawingStep | null {
  for (const step of DRAWING) if (step !== "draw" && !(candidate.after[step] > 0)) return step;
  return null;
}

// What a step of drawing did, in words.
export function drawingSaid(step: DrawingStep, sampling: Sampling, draw: Draw): string {
  const best = draw.candidates[0];
  const left = (name: string) => number(draw.kept[name] ?? 0);
  const top = best ? `${best.token} has ${percent(best.after[step === "draw" ? "min_p" : step])}` : "";
  const { temperature, top_k, top_p, min_p } = sampling;
  const said: Record<DrawingStep, string> = {
    temperature:
      temperature === 0
        ? `Temperature 0: the greatest logit is taken, whatever the others are.`
        : `Every logit is divided by ${number(temperature)} before the softmax: ${top}, before ${percent(best?.probability ?? 0)}.`,
    top_k: top_k ? `Only the ${number(top_k)} greatest logits stay (${left("top_k")} do): ${top}.` : `Top-k is off: every token stays.`,
    top_p:
      top_p < 1
        ? `The fewest tokens that hold ${percent(top_p)} together stay: ${left("top_p")}; ${top}.`
        : `Top-p is off: every token that is left stays.`,
    min_p: min_p
      ? `Tokens below ${percent(min_p)} of the first one's probability go: ${left("min_p")} stay; ${top}.`
      : `Min-p is off: every token that is left stays.`,
    draw:
      draw.chosen.u === null
        ? `${draw.chosen.token} has the greatest logit, so it comes next.`
        : `u = ${draw.chosen.u.toFixed(4)} falls where the sum is at ${draw.chosen.token}, so it comes next.`,
  };
  return said[step];
}
