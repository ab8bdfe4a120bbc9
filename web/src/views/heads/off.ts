// Heads that are switched off: edits that set their outputs to zero, one edit for all of a layer.

import type { Edit } from "../../lib/types";

export interface At {
  layer: number;
  head: number;
}

const isOff = (edit: Edit, site: string): boolean =>
  edit.kind === "zero" && edit.site === site && !edit.positions && (edit.heads?.length ?? 0) > 0;

export const site = (prefix: string, layer: number, part: string): string => `${prefix}${layer}.${part}.heads`;

export const offIn = (edits: Edit[], at: string): Set<number> =>
  new Set(edits.filter((edit) => isOff(edit, at)).flatMap((edit) => edit.heads ?? []));

// The edits after some heads are switched off, or on again; all other edits stay as they are.
export function switched(edits: Edit[], prefix: string, part: string, heads: At[], off: boolean): Edit[] {
  let found = [...edits];
  for (const layer of new Set(heads.map((one) => one.layer))) {
    const at = site(prefix, layer, part);
    const here = new Set(heads.filter((one) => one.layer === layer).map((one) => one.head));
    const known = offIn(found, at);
    const left = off ? new Set([...known, ...here]) : new Set([...known].filter((head) => !here.has(head)));
    const where = found.findIndex((edit) => isOff(edit, at));
    found = found.filter((edit, index) => index === where || !isOff(edit, at));
    const zero: Edit[] = left.size ? [{ kind: "zero", site: at, heads: [...left].sort((a, b) => a - b) }] : [];
    if (where < 0) found.push(...zero);
    else found.splice(where, 1, ...zero);
  }
  return found;
}

export const withoutOff = (edits: Edit[]): Edit[] =>
  edits.filter((edit) => !(/\.(attention|cross)\.heads$/.test(edit.site) && isOff(edit, edit.site)));
