// A link that says all that the page shows: its state as JSON, in base64 that an address can hold.

import type { Edit } from "./types";
import type { Chosen, Comparing, ViewName } from "./state.svelte";

export interface Link {
  model: string;
  text: string;
  sourceText: string;
  edits: Edit[];
  view: ViewName;
  chosen: Chosen;
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

// Null where the address says nothing that was written here.
export function fromLink(hash: string): Link | null {
  try {
    const text = atob(hash.slice(1).replace(/-/g, "+").replace(/_/g, "/"));
    const bytes = Uint8Array.from(text, (char) => char.charCodeAt(0));
    const link = JSON.parse(new TextDecoder().decode(bytes)) as Link;
    return typeof link.text === "string" && Array.isArray(link.edits) ? link : null;
  } catch {
    return null;
  }
}
