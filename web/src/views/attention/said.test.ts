import { describe, expect, it } from "vitest";

import { outcome, said } from "./said";
import type { Answer, Meta, Shown } from "./types";

const meta = { says: "c (2) attends 50% to b (1)." } as Meta;
const table = (...rows: [string, number][]) => ({
  title: "", columns: ["token", "logit"], rows: rows.map((row) => [...row]), note: "",
}); // prettier-ignore
const answer = (before: [string, number], now: [string, number]): Answer => ({
  shown: {} as Shown, position: 2, before: table(before), now: table(now),
}); // prettier-ignore
const seen = { meta, tokens: ["a (0)", "b (1)", "c (2)"], before: [0.25, 0.5, 0.25], now: [0.75, 0.25, 0], answer: null };

describe("said", () => {
  it("is the run's own sentence where nothing is tried", () => expect(said({ ...seen, tried: false })).toBe(meta.says));
  it("names the key that moves most, and what spreads", () =>
    expect(said({ ...seen, tried: true })).toBe("a (0) moves most: 25% → 75% (entropy 1.040 → 0.5623 nats)."));
  it("says so where nothing moves", () =>
    expect(said({ ...seen, now: seen.before, tried: true })).toMatch("moves no probability: entropy 1.040 → 1.040 nats"));
  it("ends with what the model makes of it", () =>
    expect(said({ ...seen, tried: true, answer: answer(["x", 2], ["y", 3]) })).toMatch(/now y\.$/));
});

describe("outcome", () => {
  it("says by how much the first choice moved", () =>
    expect(outcome(answer(["x", 2.5], ["x", 2]))).toBe("The model still puts x first: logit 2.500 → 2 (−0.5000)."));
  it("says what took its place", () =>
    expect(outcome(answer(["x", 2.5], ["y", 3]))).toBe("The model's first choice was x and is now y."));
  it("says nothing of a model without logits", () =>
    expect(outcome({ shown: {} as Shown, position: 0, before: null, now: null })).toBe(""));
});
