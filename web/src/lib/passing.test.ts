import { describe, expect, it } from "vitest";

import { across, drawingSaid, droppedBy, jumped, labelOf, nearest, pieces, remark, stepsOf, withoutRepeats } from "./passing";
import type { Candidate, Draw, Stage } from "./passing";
import type { ModelInfo } from "./types";

const layer = (prefix: string, at: number) =>
  ["stream", "attention.scores", "attention.pattern", "ffn.update"].map((name) => `${prefix}${at}.${name}`);

function model(sites: string[], layers: number, over: Partial<ModelInfo> = {}): ModelInfo {
  const table = { title: "", note: "", columns: ["site", "symbol"], rows: sites.map((site) => [site, ""]) };
  return { sites: table, config: { n_layers: layers }, causal: true, prefix: "", ...over } as unknown as ModelInfo;
}

const GPT = model(["embed.token", ...layer("", 0), ...layer("", 1), ...layer("", 2), "3.stream", "final.normed", "logits"], 3);
const BERT = model(["embed.token", ...layer("", 0), "1.stream", "head.dense", "logits", "pooled"], 1, { causal: false });
const BOTH = model(
  ["encoder.embed.token", ...layer("encoder.", 0), "encoder.1.stream", "encoder.final.normed"].concat(
    ["decoder.embed.token", ...layer("decoder.", 0), "decoder.1.stream", "decoder.logits"],
  ),
  1,
  { prefix: "decoder.", config: { n_layers: 1, encoder: { n_layers: 1 } } as unknown as ModelInfo["config"] },
);

describe("steps", () => {
  it("follow the data, with the mask after the scores and the drawing after the logits", () => {
    const steps = stepsOf(GPT);
    expect(steps.slice(0, 6).map((step) => [step.layer, step.site])).toEqual([
      [-1, "embed.token"],
      [0, "0.stream"],
      [0, "0.attention.scores"],
      [0, "0.attention.mask"],
      [0, "0.attention.pattern"],
      [0, "0.ffn.update"],
    ]);
    expect(steps.slice(-8).map((step) => step.site)).toEqual(
      ["3.stream", "final.normed", "logits", "temperature", "top_k", "top_p", "min_p", "draw"],
    );
    expect(steps.slice(-8).every((step) => step.layer === 3)).toBe(true);
  });

  it("draw nothing where a text cannot be continued", () => {
    expect(stepsOf(BERT).map((step) => step.site).slice(-3)).toEqual(["head.dense", "logits", "pooled"]);
  });

  it("go through the encoder first", () => {
    const steps = stepsOf(BOTH);
    expect(steps.map((step) => step.side).lastIndexOf("encoder")).toBe(7);
    expect(steps[7]).toMatchObject({ site: "encoder.final.normed", layer: 1 });
    expect(steps[8]).toMatchObject({ site: "decoder.embed.token", layer: -1, side: "" });
    expect(steps.at(-1)).toMatchObject({ drawing: "draw", layer: 1 });
  });

  it("leave out what is the same in every layer", () => {
    const kept = withoutRepeats(stepsOf(GPT), GPT).map((step) => step.site);
    expect(kept.filter((site) => /^[012]\./.test(site))).toEqual([
      "0.stream", "0.attention.scores", "0.attention.mask", "0.attention.pattern", "0.ffn.update", "1.stream", "2.stream",
    ]); // prettier-ignore
    expect(kept.at(-1)).toBe("draw");
  });

  it("stay near where they were when some are left out", () => {
    const [all, kept] = [stepsOf(GPT), withoutRepeats(stepsOf(GPT), GPT)];
    expect(kept[nearest(all, kept, "1.attention.mask")]!.site).toBe("1.stream");
    expect(kept[nearest(all, kept, "0.attention.mask")]!.site).toBe("0.attention.mask");
    expect(nearest(all, kept, "none")).toBe(0);
  });

  it("jump from layer to layer", () => {
    const steps = stepsOf(BOTH);
    const site = (at: number) => steps[at]!.site;
    const at = (name: string) => steps.findIndex((step) => step.site === name);
    expect(site(jumped(steps, at("encoder.0.attention.mask"), 1))).toBe("encoder.1.stream");
    expect(site(jumped(steps, at("encoder.1.stream"), 1))).toBe("decoder.embed.token");
    expect(site(jumped(steps, at("draw"), 1))).toBe("draw");
    expect(site(jumped(steps, at("decoder.0.ffn.update"), -1))).toBe("decoder.embed.token");
    expect(site(jumped(steps, at("decoder.0.stream"), -1))).toBe("decoder.embed.token");
    expect(site(jumped(steps, 0, -1))).toBe("encoder.embed.token");
  });
});

describe("across layers", () => {
  it("the same step is found again", () => {
    const steps = stepsOf(GPT);
    const at = (name: string) => steps.findIndex((step) => step.site === name);
    expect(across(steps, at("0.attention.mask"), 1)).toBe(at("1.attention.mask"));
    expect(across(steps, at("2.attention.mask"), -1)).toBe(at("1.attention.mask"));
    expect(across(steps, at("2.attention.mask"), 1)).toBe(at("3.stream"));
    expect(across(steps, at("0.attention.mask"), -1)).toBe(at("embed.token"));
  });

  it("a step has a name in two parts", () => {
    const names = stepsOf(BOTH).map(labelOf);
    expect(names[0]).toEqual(["embed", "token"]);
    expect(names[1]).toEqual(["", "stream"]);
    expect(names[2]).toEqual(["attention", "scores"]);
    expect(names.at(-3)).toEqual(["next token", "top-p"]);
  });
});

const stage = (over: Partial<Stage>): Stage =>
  ({ site: "0.stream", values: [], at: [], norm: 0, of: (over.values ?? []).length, ...over }) as Stage;

describe("what stands out", () => {
  it("is the strongest of the heads", () => {
    const pattern = stage({ site: "0.attention.pattern", values: [0.9, 0.1, 0, 0.02, 0.98, 0], at: [2, 3] });
    expect(remark(pattern, [], ["a", "b", "c"])).toMatch(/^Head 1 attends 98% to b, more/);
    const scores = stage({ site: "0.attention.scores", values: [-3, -2, null, -5, -4, null], at: [2, 3] });
    expect(remark(scores, [], ["a", "b", "c"])).toMatch(/^Head 0 scores highest, with −2, at b/);
  });

  it("is how many keys are hidden", () => {
    expect(remark(stage({ site: "0.attention.mask", values: [0, 0, null], at: [3] }), [], [])).toBe("1 of 3 keys are hidden from this token.");
    expect(remark(stage({ site: "0.attention.mask", values: [0, 0], at: [2] }), [], [])).toMatch(/^None of 2 keys/);
  });

  it("is how much is added", () => {
    const before = [stage({ site: "0.stream", norm: 8 }), stage({ site: "0.stream.mid", norm: 4 }), stage({ norm: 5, site: "0.ffn.up" })];
    expect(remark(stage({ site: "0.ffn.update", norm: 2, values: [2, 0] }), before, [])).toMatch(/^The update is 0\.5000 times .* \(2 beside 4\)/);
  });

  it("is the largest number beside the typical one", () => {
    expect(remark(stage({ values: [1, -7, 1, 1], norm: Math.sqrt(52) }), [], [])).toBe(
      "Number 1 is the largest: −7, 1.9 times the typical size (3.606).",
    );
    const heads = { axes: ["H", "K"], at: [2, 2], values: [1, -1, 1, 7] };
    expect(remark(stage({ ...heads, norm: Math.sqrt(52) }), [], [])).toMatch(/^Head 1's number 1 is the largest: 7,/);
    expect(remark(stage({ site: "0.ffn.input.scale", values: [0.5], norm: 0.5 }), [], [])).toBe("It is 0.5000.");
  });

  it("is the candidate that leads", () => {
    const logits = stage({ site: "logits", ids: [3, 4], labels: ["␣x", "␣y"], probabilities: [0.5, 0.25] });
    expect(remark(logits, [], [])).toBe("␣x leads with 50%; ␣y follows with 25%.");
  });
});

const candidate = (id: number, after: number[], from = 0, to = 0): Candidate => {
  const [temperature, top_k, top_p, min_p] = after as [number, number, number, number];
  return { id, token: `t${id}`, logit: 0, probability: temperature, after: { temperature, top_k, top_p, min_p }, from, to };
};
const DRAW: Draw = {
  candidates: [
    candidate(7, [0.5, 0.6, 0.75, 0.75], 0.25, 1),
    candidate(2, [0.2, 0.24, 0.25, 0.25], 0, 0.25),
    candidate(9, [0.13, 0.16, 0, 0], 1, 1),
    candidate(1, [0.1, 0, 0, 0]),
  ],
  kept: { temperature: 50, top_k: 3, top_p: 2, min_p: 2 },
  chosen: { id: 7, token: "t7", u: 0.3, seed: 1, from: 0.25, to: 1 },
};

describe("drawing", () => {
  it("lays the tokens between 0 and 1 in the order of their ids", () => {
    const line = pieces(DRAW);
    expect(line.map((piece) => [piece.id, piece.from, piece.to, piece.chosen])).toEqual([
      [2, 0, 0.25, false],
      [7, 0.25, 1, true],
    ]);
    expect(line.find((piece) => piece.from <= 0.3 && 0.3 < piece.to)?.id).toBe(DRAW.chosen.id);
  });

  it("leaves gaps for other tokens, and has the chosen one even if it is no candidate", () => {
    const chosen = { id: 8, token: "t8", u: 0.5, seed: 1, from: 0.45, to: 0.55 };
    const candidates = [candidate(9, [0.3, 0.3, 0.3, 0.3], 0.6, 0.9), candidate(2, [0.4, 0.4, 0.4, 0.4], 0, 0.4)];
    expect(pieces({ candidates, kept: {}, chosen }).map((piece) => [piece.id, piece.from, piece.to])).toEqual([
      [2, 0, 0.4],
      [null, 0.4, 0.45],
      [8, 0.45, 0.55],
      [null, 0.55, 0.6],
      [9, 0.6, 0.9],
      [null, 0.9, 1],
    ]);
  });

  it("knows what dropped a candidate", () => {
    expect(DRAW.candidates.map(droppedBy)).toEqual([null, null, "top_p", "top_k"]);
  });

  it("is told step by step", () => {
    const sampling = { temperature: 0.5, top_k: 3, top_p: 0.9, min_p: 0, seed: 1 };
    expect(drawingSaid("temperature", sampling, DRAW)).toContain("divided by 0.5");
    expect(drawingSaid("top_k", sampling, DRAW)).toBe("Only the 3 greatest logits stay (3 do): t7 has 60%.");
    expect(drawingSaid("top_p", sampling, DRAW)).toContain("stay: 2; t7 has 75%");
    expect(drawingSaid("min_p", sampling, DRAW)).toContain("off");
    expect(drawingSaid("draw", sampling, DRAW)).toContain("u = 0.3000 falls");
    expect(drawingSaid("draw", sampling, { ...DRAW, chosen: { ...DRAW.chosen, u: null } })).toContain("greatest logit");
  });
});
