// Patterns as pictures, straight to pixels: hundreds of them are drawn at once.

import { painter } from "../../lib/colours";
import type { PackedArray } from "../../lib/packed";

// Colours for 256 steps of attention; they grow by its square root, so that a tenth is seen beside the whole.
export function palette(): Uint8ClampedArray {
  const paint = painter(0, 1);
  const found = new Uint8ClampedArray(256 * 3);
  for (let step = 0; step < 256; step++) found.set(paint(Math.sqrt(step / 255)), step * 3);
  return found;
}

// One head of an array [heads, rows, columns], in a picture of some pixels; where these are fewer, the largest stays.
export function picture(
  values: Float32Array,
  shape: number[],
  head: number,
  colours: Uint8ClampedArray,
  width: number,
  height: number,
): ImageData {
  const [, rows = 1, columns = 1] = shape;
  const found = new ImageData(width, height);
  const start = head * rows * columns;
  for (let y = 0; y < height; y++) {
    const top = Math.floor((y * rows) / height);
    const bottom = Math.max(top + 1, Math.ceil(((y + 1) * rows) / height));
    for (let x = 0; x < width; x++) {
      const left = Math.floor((x * columns) / width);
      const right = Math.max(left + 1, Math.ceil(((x + 1) * columns) / width));
      let most = 0;
      for (let row = top; row < bottom; row++) {
        for (let column = left; column < right; column++) {
          most = Math.max(most, values[start + row * columns + column] ?? 0);
        }
      }
      const step = Math.round(255 * Math.min(1, most)) * 3;
      const at = (y * width + x) * 4;
      for (let colour = 0; colour < 3; colour++) found.data[at + colour] = colours[step + colour] ?? 0;
      found.data[at + 3] = 255;
    }
  }
  return found;
}

// The number that is largest in a row, and where.
export function largest(array: PackedArray, head: number, row: number): { at: number; value: number } {
  let found = { at: 0, value: -Infinity };
  for (let column = 0; column < (array.shape[2] ?? 0); column++) {
    const value = array.at(head, row, column);
    if (value > found.value) found = { at: column, value };
  }
  return found;
}
