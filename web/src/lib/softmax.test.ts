import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { Latest } from "./latest";
import { entropy, mixed, softmax, strongest, trialEdits, variance, without } from "./softmax";

const near = (found: ArrayLike<number>, wanted: number[]) =>
  wanted.forEach((each, at) => expect(found[at]).toBeCloseTo(each, 12));

describe("softmax", () => {
  it("is the shares of exponentials", () => near(softmax([0, Math.log(2), Math.log(5)]), [1 / 8, 2 / 8, 5 / 8]));
  it("takes a factor", () => near(softmax([0, Math.log(2)], 2), [1 / 5, 4 / 5]));
  it("leaves hidden keys at nothing, whatever the factor", () => {
    near(softmax([-Infinity, 0, 0]), [0, 0.5, 0.5]);
    near(softmax([-Infinity, 0, 0], -3), [0, 0.5, 0.5]);
    near(softmax([-Infinity, 4, 0], 0), [0, 0.5, 0.5]);
  });
  it("is of nothing where all is hidden, or nothing there", () => {
    near(softmax([-Infinity, -Infinity]), [0, 0]);
    expect(softmax([])).toHaveLength(0);
  });
  it("stays finite with large scores", () => {
    near(softmax([1e6, 1e6 - 1]), [1 / (1 + Math.exp(-1)), Math.exp(-1) / (1 + Math.exp(-1))]);
    near(softmax([1e308, 1e308, 0], 10), [0.5, 0.5, 0]);
    near(softmax([-1e300, -1e300]), [0.5, 0.5]);
  });
});

describe("what is told of it", () => {
  it("has the entropy in nats", () => {
    expect(entropy([0.25, 0.25, 0.25, 0.25, 0])).toBeCloseTo(Math.log(4), 12);
    expect(entropy([0, 1])).toBe(0);
    expect(entropy([])).toBe(0);
  });
  it("has the variance of what is finite", () => {
    expect(variance([2, 4, 4, 4, 5, 5, 7, 9, -Infinity])).toBe(4);
    expect(variance([-Infinity])).toBe(0);
  });
  it("mixes values", () => near(mixed([0.5, 0, 0.5], [1, 2, 100, 100, 3, 6], 2), [2, 4]));
  it("has the strongest first", () => expect(strongest([0.1, 0.4, 0.1, 0.4])).toEqual([1, 3, 0, 2]));
});

describe("trialEdits", () => {
  const plain = { site: "3.attention", head: 2, query: 5, scores: new Map(), scale: null, temperature: 1 };
  it("is nothing where nothing is changed", () => expect(trialEdits(plain)).toEqual([]));
  it("sets scores, then takes the scaling away, then the temperature", () => {
    const where = { site: "3.attention.scores", heads: [2] };
    expect(trialEdits({ ...plain, scores: new Map([[4, 1.5], [1, -2]]), scale: 0.125, temperature: 2 })).toEqual([
      { kind: "set", ...where, positions: [5], keys: [1, 4], value: [-2, 1.5] },
      { kind: "scale", ...where, factor: 8 },
      { kind: "scale", ...where, factor: 0.5 },
    ]); // prettier-ignore
  });
});

describe("without", () => {
  const set = (keys: number[] | undefined, value: unknown, heads = [2], site = "3.attention.scores") => ({
    kind: "set" as const, site, heads, positions: [5], ...(keys ? { keys } : {}), value,
  }); // prettier-ignore
  const others = [set([1], [7], [1]), set([1], [7], [2], "4.attention.scores"), set([3], [7])];
  it("takes away the scores that are set anew, and leaves all else", () => {
    expect(without([set([1, 4], [7, 8]), ...others], [set([1], [0])])).toEqual([set([4], [8]), ...others]);
    expect(without([set([1], 7), { ...set([1], 7), kind: "zero" }], [set([1], [0])])).toEqual([]);
    expect(without(others, [{ kind: "scale", site: "3.attention.scores", factor: 2 }])).toEqual(others);
  });
  it("leaves edits of more than one query of one head", () => {
    const wide = [set(undefined, 7), set([1], [7], [2, 3])];
    expect(without(wide, [set([1], [0])])).toEqual(wide);
  });
});

describe("Latest", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  const made = () => {
    const told: [unknown, boolean][] = [];
    const failed: unknown[] = [];
    const latest = new Latest<string>((answer, last) => told.push([answer, last]), (error) => failed.push(error), 100);
    return { told, failed, latest };
  };
  const slow = (answer: string, time: number) => () => new Promise<string>((done) => setTimeout(() => done(answer), time));

  it("asks for the newest only, once a pause has passed", async () => {
    const { told, latest } = made();
    for (const name of ["a", "b", "c"]) latest.ask(slow(name, 50));
    await vi.advanceTimersByTimeAsync(149);
    expect(told).toEqual([]);
    await vi.advanceTimersByTimeAsync(1);
    expect(told).toEqual([["c", true]]);
  });
  it("lets what runs end, then asks for the newest", async () => {
    const { told, latest } = made();
    latest.ask(slow("a", 500));
    await vi.advanceTimersByTimeAsync(200);
    latest.ask(slow("b", 10));
    latest.ask(slow("c", 10));
    await vi.advanceTimersByTimeAsync(1000);
    expect(told).toEqual([["a", false], ["c", true]]); // prettier-ignore
  });
  it("says nothing once it was stopped, and goes on when asked again", async () => {
    const { told, latest } = made();
    latest.ask(slow("a", 500));
    await vi.advanceTimersByTimeAsync(200);
    latest.stop();
    latest.ask(slow("b", 10));
    await vi.advanceTimersByTimeAsync(1000);
    expect(told).toEqual([["b", true]]);
  });
  it("tells what failed, and goes on", async () => {
    const { told, failed, latest } = made();
    latest.ask(() => Promise.reject(new Error("no")));
    await vi.advanceTimersByTimeAsync(100);
    expect(failed).toHaveLength(1);
    latest.ask(slow("b", 10));
    await vi.advanceTimersByTimeAsync(200);
    expect(told).toEqual([["b", true]]);
  });
});
