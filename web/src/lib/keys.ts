// Keys that work everywhere on the page but where something is written.

import { TABS } from "./views";
import type { Explorer } from "./state.svelte";

export const KEYS: [string, string][] = [
  ["1 … 6", "the six views"],
  ["/", "write in the text box; Enter runs it"],
  ["[ and ]", "the layer before, the layer after"],
  ["; and '", "the head before, the head after"],
  [", and .", "the token before, the token after"],
  ["arrow keys", "move within a row of tokens, a grid, or the tabs"],
  ["Escape", "stop what is running, close this help"],
  ["?", "this help"],
];

export function keyed(event: KeyboardEvent, x: Explorer, help: () => void): void {
  const target = event.target as HTMLElement;
  if (event.key === "Escape") return x.stop();
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.matches("input, textarea, select, [contenteditable]")) return;
  const { layer, head, position } = x.chosen;
  const does: Record<string, () => void> = {
    "/": () => document.getElementById("text")?.focus(),
    "?": help,
    "[": () => x.choose({ layer: layer - 1 }),
    "]": () => x.choose({ layer: layer + 1 }),
    ";": () => x.choose({ head: head - 1 }),
    "'": () => x.choose({ head: head + 1 }),
    ",": () => x.choose({ position: position - 1 }),
    ".": () => x.choose({ position: position + 1 }),
  };
  TABS.forEach((tab, index) => (does[String(index + 1)] = () => (x.view = tab.name)));
  const act = does[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}
