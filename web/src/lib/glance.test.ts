import { describe, expect, it } from "vitest";

import { areas, shares, sum } from "./glance";
import { squarified, type Box } from "./treemap";
import type { Config, TableData } from "./types";

const overlap = (one: Box, other: Box): number => {
  const wide = Math.min(one.left + one.width, other.left + other.width) - Math.max(one.left, other.left);
  const high = Math.min(one.top + one.height, other.top + other.height) - Math.max(one.top, other.top);
  return Math.max(0, wide) * Math.max(0, high);
};

function fills(boxes: Box[], sizes: number[], within: Box): void {
  const total = sizes.reduce((one, other) => one + other, 0);
  const all = within.width * within.height;
  boxes.forEach((box, at) => {
    expect(box.width * box.height).toBeCloseTo((all * (sizes[at] ?? 0)) / total, 6);
    expect(box.left).toBeGreaterThanOrEqual(within.left - 1e-9);
    expect(box.left + box.width).toBeLessThanOrEqual(within.left + within.width + 1e-6);
    expect(box.top + box.height).toBeLessThanOrEqual(within.top + within.height + 1e-6);
    for (const other of boxes.slice(at + 1)) expect(overlap(box, other)).toBeLessThan(1e-6);
  });
}

describe("squarified", () => {
  it("gives each size its share of the area, and nothing twice", () => {
    const within = { left: 3, top: 5, width: 100, height: 60 };
    for (const sizes of [[6, 6, 4, 3, 2, 2, 1], [1], [1, 1e6], [5, 0, 5], [0.001, 3, 77, 1e5, 2, 2]]) {
      fills(squarified(sizes, within), sizes, within);
    }
  });

  it("is as square as the paper's example", () => {
    const boxes = squarified([6, 6, 4, 3, 2, 2, 1], { left: 0, top: 0, width: 6, height: 4 });
    expect(boxes[0]).toEqual({ left: 0, top: 0, width: 3, height: 2 });
    expect(boxes[1]).toEqual({ left: 0, top: 2, width: 3, height: 2 });
  });

  it("has nothing to lay where there is nothing", () => {
    expect(squarified([], { left: 0, top: 0, width: 9, height: 9 })).toEqual([]);
    expect(squarified([0], { left: 0, top: 0, width: 9, height: 9 })[0]).toMatchObject({ width: 0, height: 0 });
  });
});

const budget: TableData = {
  title: "",
  columns: ["part", "within", "formula", "parameters", "share"],
  rows: [
    ["token embedding", "", "10 x 4", 40, 0.2],
    ["blocks", "", "3 x 50", 150, 0.75],
    ["attention W_Q", "blocks", "4 x 4", 16, null],
    ["feed-forward", "blocks", "2 x 4 x 4", 30, null],
    ["one norm", "blocks", "1 x 4", 4, null],
    ["final norm", "", "10", 10, 0.05],
  ],
  note: "",
};
const config = { n_layers: 3, encoder: null } as unknown as Config;

describe("the budget's areas", () => {
  it("add up to all parameters, blocks times layers", () => {
    const all = shares(budget, config);
    expect(sum(all)).toBe(200);
    expect(all.map((share) => [share.part, share.count, share.kind])).toEqual([
      ["token embedding", 40, 1],
      ["attention W_Q", 48, 2],
      ["feed-forward", 90, 3],
      ["one norm", 12, 6],
      ["final norm", 10, 6],
    ]);
    expect(all[2]?.formula).toBe("3 × (2 x 4 x 4)");
  });

  it("are in proportion", () => {
    const found = areas(shares(budget, config), 50);
    fills(found.map((area) => area.box), found.map((area) => area.count), { left: 0, top: 0, width: 100, height: 50 });
  });
});
