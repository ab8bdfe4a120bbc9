import { describe, expect, it } from "vitest";

import { address } from "./address";
import { fromLink, toLink } from "./link";
import { half, unpack } from "./packed";

describe("half", () => {
  it.each([
    [0x3c00, 1],
    [0xc000, -2],
    [0x3555, 0.333251953125],
    [0x0001, 2 ** -24],
    [0x7bff, 65504],
    [0x7c00, Infinity],
    [0xfc00, -Infinity],
  ])("%i is %d", (bits, value) => expect(half(bits)).toBe(value));

  it("has what is not a number", () => expect(half(0x7e00)).toBeNaN());
});

// Bytes as the head of views/packed.py describes them.
function packed(header: object, bytes: number[]): Uint8Array {
  let text = JSON.stringify(header);
  text += " ".repeat((8 - ((4 + text.length) % 8)) % 8);
  const head = new TextEncoder().encode(text);
  const all = new Uint8Array(4 + head.length + bytes.length);
  new DataView(all.buffer).setUint32(0, head.length, true);
  all.set(head, 4);
  all.set(bytes, 4 + head.length);
  return all;
}

describe("unpack", () => {
  const one = { name: "a", start: 0, low: 0, high: 0, error: 0, triangle: false };

  it("gives 8-bit numbers their range", () => {
    const header = { meta: { layer: 3 }, arrays: [{ ...one, kind: "uint8", shape: [3], low: -1, high: 1 }] };
    const { meta, arrays } = unpack<{ layer: number }>(packed(header, [0, 255, 51]));
    expect(meta.layer).toBe(3);
    expect([...arrays["a"]!.values()].map((value) => value.toFixed(4))).toEqual(["-1.0000", "1.0000", "-0.6000"]);
  });

  it("puts triangles where they belong", () => {
    const header = { meta: {}, arrays: [{ ...one, kind: "uint8", shape: [1, 2, 2], high: 255, triangle: true }] };
    const array = unpack(packed(header, [7, 8, 9])).arrays["a"]!;
    expect([...array.values()]).toEqual([7, 0, 8, 9]);
    expect([array.at(0, 0, 0), array.at(0, 0, 1), array.at(0, 1, 0), array.at(0, 1, 1)]).toEqual([7, 0, 8, 9]);
  });

  it("refuses what is cut off", () => {
    const header = { meta: {}, arrays: [{ ...one, kind: "float32", shape: [4] }] };
    expect(() => unpack(packed(header, [0, 0, 0, 0]))).toThrow("cut off");
  });
});

describe("address", () => {
  it("is written as Python writes it", () => {
    const given = { position: 3, site: "3.attention.input", k: undefined, by: "head and source", token: "a/b'é" };
    expect(address("traces/x/next", given)).toBe(
      "traces/x/next?by=head%20and%20source&position=3&site=3.attention.input&token=a/b%27%C3%A9",
    );
    expect(address("next", {})).toBe("next");
  });
});

describe("link", () => {
  const chosen = { layer: 1, head: 2, part: "attention" as const, position: 3, key: 0, state: 0, neuron: 0, token: null };
  const link = {
    model: "m", text: "é 𝄞 <b>", sourceText: "", edits: [{ kind: "zero" as const, site: "1.stream" }], view: "heads" as const,
    chosen, comparing: "nothing" as const, otherText: "", otherModel: "", ids: null,
  }; // prettier-ignore

  it("comes back", () => expect(fromLink(toLink(link))).toEqual(link));
  it("is null for what was not written here", () => {
    expect(fromLink("")).toBeNull();
    expect(fromLink("#%%")).toBeNull();
    expect(fromLink("#e30")).toBeNull();
  });
});
