// A link that says all that the page shows: its state as JSON, in base64 that an address can hold.

import type { Edit } from "./types";
import type { Chosen, Comparing, ViewName } from "./state.svelte";

type Fields = Record<string, unknown>;

export interface Link {
  model: string;
  text: string;
  sourceText: string;
  edits: Edit[];
  view: ViewName;
  chosen: Partial<Chosen>;
  comparing: Comparing;
  otherText: string;
  otherModel: string;
  ids: number[] | null;
}

export function toLink(link: Link): string {
  const bytes = new TextEncoder().encode(JSON.stringify(link));
  const text = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return `#${btoa(text).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "")}`;
}

// Null where the address says nothing that was written here. Addresses are cut off, changed by hand and sent by others:
// what is chosen in one and is no choice is left out, and the page chooses by itself.
export function fromLink(hash: string): Link | null {
  try {
    const text = atob(hash.slice(1).replace(/-/g, "+").replace(/_/g, "/"));
    const bytes = Uint8Array.from(text, (char) => char.charCodeAt(0));
    return linkOf(JSON.parse(new TextDecoder().decode(bytes)));
  } catch {
    return null;
  }
}

function linkOf(read: unknown): Link | null {
  if (!isFields(read) || typeof read["text"] !== "string") return null;
  const { edits, ids } = read;
  if (!Array.isArray(edits) || !edits.every(isEdit)) return null;
  if (ids !== undefined && ids !== null && !(Array.isArray(ids) && ids.every(Number.isSafeInteger))) return null;
  return {
    model: words(read["model"]),
    text: read["text"],
    sourceText: words(read["sourceText"]),
    edits,
    view: words(read["view"]) as ViewName,
    chosen: chosenOf(isFields(read["chosen"]) ? read["chosen"] : {}),
    comparing: (words(read["comparing"]) || "nothing") as Comparing,
    otherText: words(read["otherText"]),
    otherModel: words(read["otherModel"]),
    ids: (ids as number[] | null | undefined) ?? null,
  };
}

function chosenOf(read: Fields): Partial<Chosen> {
  const names = ["layer", "head", "position", "key", "state", "neuron"] as const;
  const chosen: Partial<Chosen> = {};
  for (const name of names) if (Number.isSafeInteger(read[name])) chosen[name] = read[name] as number;
  if (read["part"] === "cross" || read["part"] === "attention") chosen.part = read["part"];
  if (read["token"] === null || Number.isSafeInteger(read["token"])) chosen.token = read["token"] as number | null;
  return chosen;
}

const isFields = (read: unknown): read is Fields => typeof read === "object" && read !== null && !Array.isArray(read);
const isEdit = (read: unknown): read is Edit =>
  isFields(read) && typeof read["kind"] === "string" && typeof read["site"] === "string";
const words = (read: unknown): string => (typeof read === "string" ? read : "");
