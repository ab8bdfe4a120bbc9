// Numbers as colours: from the ground to one colour for what has no sign, to one of two for what has.

import { theme } from "./theme.svelte";

type RGB = [number, number, number];
export type Painter = (value: number) => RGB;

export function mix(from: RGB, to: RGB, share: number): RGB {
  const part = Math.max(0, Math.min(1, share));
  return [0, 1, 2].map((at) => Math.round((from[at] ?? 0) + ((to[at] ?? 0) - (from[at] ?? 0)) * part)) as RGB;
}

// What paints a value between `low` and `high`; `signed` counts from 0 to both sides by the larger of the two.
export function painter(low: number, high: number, signed = false): Painter {
  const ground = theme.colour("panel");
  if (!signed) {
    const heat = theme.colour("heat");
    return (value) => mix(ground, heat, high > low ? (value - low) / (high - low) : 0);
  }
  const [plus, minus] = [theme.colour("plus"), theme.colour("minus")];
  const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
  return (value) => mix(ground, value < 0 ? minus : plus, Math.abs(value) / most);
}

export const css = ([red, green, blue]: RGB): string => `rgb(${red} ${green} ${blue})`;

// Black or white, whichever is read more easily on a colour (by its luma).
export const inkOn = ([red, green, blue]: RGB): string =>
  0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111216" : "#ffffff";
