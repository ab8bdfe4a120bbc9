import { describe, expect, it } from "vitest";

import { fromLink, toLink, type Link } from "./link";

const LINK: Link = {
  model: "gpt2",
  text: "שלום 👩‍👧 \n</script>",
  sourceText: "",
  edits: [{ kind: "zero", site: "0.attention.heads", heads: [1] }],
  view: "heads",
  chosen: { layer: 1, head: 2, part: "cross", position: 3, key: 4, state: 5, neuron: 6, token: 7 },
  comparing: "text",
  otherText: "b",
  otherModel: "",
  ids: [1, 2],
};
const changed = (change: object) => fromLink(toLink({ ...LINK, ...change } as Link));

describe("links", () => {
  it("say all that they were made of", () => expect(fromLink(toLink(LINK))).toEqual(LINK));

  it.each(["", "#", "#%%%", "#e30", "#bnVsbA", "#W10", "#MQ", toLink(LINK).slice(0, 40)])("%s is none", (hash) =>
    expect(fromLink(hash)).toBeNull(),
  );

  it.each([
    { text: 5 },
    { edits: null },
    { edits: [null] },
    { edits: [[]] },
    { edits: [{ kind: {}, site: "a" }] },
    { edits: [{ kind: "zero" }] },
    { ids: "abc" },
    { ids: ["1"] },
    { ids: [0.5] },
  ])("with %j are none", (change) => expect(changed(change)).toBeNull());

  it("leave out what is chosen and cannot be", () => {
    const chosen = { layer: "x", head: null, part: 5, position: 0.5, key: [], state: {}, neuron: true, token: 2 };
    expect(changed({ chosen })?.chosen).toEqual({ token: 2 });
    expect(changed({ chosen: null })?.chosen).toEqual({});
    expect(changed({ chosen: [1] })?.chosen).toEqual({});
  });

  it("have words where words belong", () => {
    const odd = changed({ model: 5, sourceText: null, view: {}, comparing: 9, otherText: [], otherModel: 1 });
    expect(odd).toEqual({ ...LINK, model: "", sourceText: "", view: "", comparing: "nothing", otherText: "", otherModel: "" });
  });
});
