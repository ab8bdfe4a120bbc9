import { expect, test } from "vitest";

import { normalised, numbersOf } from "./norm";

test("the lessons' vector has mean 5 and variance 4", () => {
  const steps = normalised([2, 4, 4, 4, 5, 5, 7, 9], [1], [0], 0, true);
  expect(steps.mean).toBe(5);
  expect(steps.variance).toBe(4);
  expect(steps.centred).toEqual([-3, -1, -1, -1, 0, 0, 2, 4]);
  expect(steps.result).toEqual([-1.5, -0.5, -0.5, -0.5, 0, 0, 1, 2]);
});

test("gamma = the deviation and beta = the mean undo it, one number or one for each", () => {
  expect(normalised([2, 4, 4, 4, 5, 5, 7, 9], [2], [5], 0, true).result).toEqual([2, 4, 4, 4, 5, 5, 7, 9]);
  expect(normalised([-3, 1], [1, 2], [10, 20], 0, true).result).toEqual([9, 22]);
});

test("RMSNorm takes no mean away, and eps stands under the root", () => {
  const steps = normalised([3, 4], [1], [0], 12.5, false);
  expect([steps.mean, steps.variance, steps.deviation]).toEqual([0, 12.5, 5]);
  expect(steps.result).toEqual([0.6, 0.8]);
});

test("numbers are read out of what people write", () => {
  expect(numbersOf(" [2, 4;−5e-1\n7] ")).toEqual([2, 4, -0.5, 7]);
  expect(numbersOf("")).toEqual([]);
  expect(() => numbersOf("1, two")).toThrow("“two” is no number");
});
