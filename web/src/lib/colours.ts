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

// Black or white, whichever has the greater contrast with a colour (by its relative luminance).
export function inkOn([red, green, blue]: RGB): string {
  const light = 0.2126 * (red / 255) ** 2.2 + 0.7152 * (green / 255) ** 2.2 + 0.0722 * (blue / 255) ** 2.2;
  return light > 0.19 ? "#111216" : "#ffffff";
}
