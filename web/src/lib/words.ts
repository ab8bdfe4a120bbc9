// Numbers and tokens as people read them.

// Four significant digits or so; whole numbers with separators.
export function number(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined) return "";
  if (Number.isNaN(value)) return "not a number";
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US").replace("-", "−");
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-4 ? value.toExponential(2) : value.toFixed(size >= 100 ? 1 : size >= 1 ? digits : 4);
  return text.replaceAll("-", "−");
}

export const percent = (share: number): string =>
  share > 0 && share < 0.001 ? "< 0.1%" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;

// A signed number, always with its sign.
export const signed = (value: number): string => (value < 0 ? number(value) : `+${number(value)}`);

export const counted = (count: number, one: string, many = `${one}s`): string =>
  `${number(count)} ${count === 1 ? one : many}`;

// A token cut to some characters, with an ellipsis where something was cut.
export const shortened = (token: string, most = 12): string =>
  [...token].length > most ? `${[...token].slice(0, most - 1).join("")}…` : token;
