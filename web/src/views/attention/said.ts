// One sentence on what is shown: the strongest keys, or what an edit has moved.

import { entropy } from "../../lib/softmax";
import type { TableData } from "../../lib/types";
import { number, percent } from "../../lib/words";
import type { Answer, Meta } from "./types";

interface Seen {
  meta: Meta;
  tokens: string[]; // with their positions
  before: ArrayLike<number>;
  now: ArrayLike<number>;
  tried: boolean;
  answer: Answer | null;
}

export function said({ meta, tokens, before, now, tried, answer }: Seen): string {
  if (!tried) return meta.says;
  let key = 0;
  const moved = (at: number) => (now[at] ?? 0) - (before[at] ?? 0);
  for (let at = 1; at < now.length; at++) if (Math.abs(moved(at)) > Math.abs(moved(key))) key = at;
  const spread = `entropy ${number(entropy(before))} → ${number(entropy(now))} nats`;
  if (Math.abs(moved(key)) < 1e-9) return `What you changed moves no probability: ${spread}.`;
  const first = `${tokens[key]} moves most: ${percent(before[key] ?? 0)} → ${percent(now[key] ?? 0)} (${spread}).`;
  return answer ? `${first} ${outcome(answer)}` : first;
}

// What becomes of the model's first choice.
export function outcome({ before, now }: Answer): string {
  const [old, then] = [top(before), top(now)];
  if (!old || !then) return "";
  if (old.token === then.token) return `The model still puts ${old.token} first: logit ${change(old.logit, then.logit)}.`;
  return `The model's first choice was ${old.token} and is now ${then.token}.`;
}

export const change = (from: number, to: number): string =>
  `${number(from)} → ${number(to)} (${to - from >= 0 ? "+" : ""}${number(to - from)})`;

function top(table: TableData | null): { token: string; logit: number } | null {
  const row = table?.rows[0];
  if (!table || !row) return null;
  return { token: String(row[table.columns.indexOf("token")]), logit: Number(row[table.columns.indexOf("logit")]) };
}
