// The report card of a model's heads: made once on the server when it is asked for, and kept while the page is open.

import { SvelteMap } from "svelte/reactivity";

import type { Explorer } from "../../lib/state.svelte";
import type { Progress } from "../../lib/types";
import type { Card } from "./types";

interface Asked {
  card: Card | null;
  progress: Progress | null;
  error: string;
}

const asked = new SvelteMap<string, Asked>();

export const cardOf = (model: string): Asked => asked.get(model) ?? { card: null, progress: null, error: "" };

export async function askCard(x: Explorer): Promise<void> {
  const model = x.model?.id;
  if (!model || cardOf(model).progress || cardOf(model).card) return;
  const told = (change: Partial<Asked>) => asked.set(model, { ...cardOf(model), ...change });
  told({ progress: { stage: "heads", done: 0, total: 0 }, error: "" });
  try {
    told({ card: x.live ? await streamed(x, model, told) : await x.askModel<Card>("card"), progress: null });
  } catch (error) {
    told({ error: error instanceof Error ? error.message : String(error), progress: null });
  }
}

async function streamed(x: Explorer, model: string, told: (change: Partial<Asked>) => void): Promise<Card> {
  for await (const event of x.source.events(`models/${model}/card`, undefined)) {
    if (event.name === "progress") told({ progress: event.data as Progress });
    if (event.name === "error") throw new Error((event.data as { message: string }).message);
    if (event.name === "done") return event.data as Card;
  }
  throw new Error("the server broke off before the report card was complete");
}

interface Mark {
  letters: string;
  colour: string;
  count: number;
}

// A short mark for each kind of head that there is, unlike all others: the first letters of its first and last word. The
// most common kinds have colours of their own.
export function marks(card: Card): Map<string, Mark> {
  const counts = new Map<string, number>();
  for (const kind of card.kinds.flat()) if (kind) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const found = new Map<string, Mark>();
  const taken = new Set<string>();
  for (const [kind, count] of [...counts].sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1))) {
    const words = kind.split(" ");
    let letters = (words[0]?.[0] ?? "?").toUpperCase();
    if (words.length > 1) letters += (words.at(-1)?.[0] ?? "").toUpperCase();
    for (let next = 2; taken.has(letters); next++) letters = `${letters[0]}${next}`;
    taken.add(letters);
    found.set(kind, { letters, colour: `kind-${(found.size % 6) + 1}`, count });
  }
  return found;
}
