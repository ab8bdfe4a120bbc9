// Arrays as few bytes: the other half of views/packed.py, where the form is described.

export type Kind = "uint8" | "float16" | "float32" | "int32";

interface Header {
  name: string;
  kind: Kind;
  shape: number[];
  start: number;
  low: number;
  high: number;
  triangle: boolean;
  error: number;
}

export class PackedArray {
  readonly shape: number[];
  readonly error: number;
  readonly kind: Kind;
  readonly triangle: boolean;
  private readonly numbers: Uint8Array | Uint16Array | Float32Array | Int32Array;

  constructor(
    private readonly header: Header,
    bytes: Uint8Array,
  ) {
    this.shape = header.shape;
    this.error = header.error;
    this.kind = header.kind;
    this.triangle = header.triangle;
    const count = stored(header);
    const at = bytes.byteOffset + header.start;
    if (header.start + count * SIZES[header.kind] > bytes.byteLength) {
      throw new Error(`the array ${header.name} is cut off`);
    }
    if (header.kind === "uint8") this.numbers = new Uint8Array(bytes.buffer, at, count);
    else if (header.kind === "float16") this.numbers = new Uint16Array(bytes.buffer, at, count);
    else if (header.kind === "int32") this.numbers = new Int32Array(bytes.buffer, at, count);
    else this.numbers = new Float32Array(bytes.buffer, at, count);
  }

  // One number; above the diagonal of a triangle there is nothing, which is 0.
  at(...indices: number[]): number {
    const { shape } = this;
    let place = 0;
    const plain = this.triangle ? shape.length - 2 : shape.length;
    for (let axis = 0; axis < plain; axis++) place = place * (shape[axis] ?? 0) + (indices[axis] ?? 0);
    if (this.triangle) {
      const size = shape[shape.length - 1] ?? 0;
      const row = indices[plain] ?? 0;
      const column = indices[plain + 1] ?? 0;
      if (column > row) return 0;
      place = place * ((size * (size + 1)) / 2) + (row * (row + 1)) / 2 + column;
    }
    return this.decoded(place);
  }

  // All numbers in the order of the axes; a triangle gets its zeros back.
  values(): Float32Array {
    const total = this.shape.reduce((product, size) => product * size, 1);
    const all = new Float32Array(total);
    if (!this.triangle) {
      for (let place = 0; place < total; place++) all[place] = this.decoded(place);
      return all;
    }
    const size = this.shape[this.shape.length - 1] ?? 0;
    let place = 0;
    for (let first = 0; first < total; first += size * size) {
      for (let row = 0; row < size; row++) {
        for (let column = 0; column <= row; column++) all[first + row * size + column] = this.decoded(place++);
      }
    }
    return all;
  }

  private decoded(place: number): number {
    const number = this.numbers[place] ?? 0;
    if (this.header.kind === "uint8") return this.header.low + (this.header.high - this.header.low) * (number / 255);
    return this.header.kind === "float16" ? half(number) : number;
  }
}

export interface Packed<Meta = Record<string, unknown>> {
  meta: Meta;
  arrays: Record<string, PackedArray>;
}

export function unpack<Meta>(bytes: Uint8Array): Packed<Meta> {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const text = new TextDecoder().decode(bytes.subarray(4, 4 + length));
  const head = JSON.parse(text) as { meta: Meta; arrays: Header[] };
  // A copy begins where every kind of number may.
  const body = bytes.slice(4 + length);
  return { meta: head.meta, arrays: Object.fromEntries(head.arrays.map((one) => [one.name, new PackedArray(one, body)])) };
}

const SIZES: Record<Kind, number> = { uint8: 1, float16: 2, float32: 4, int32: 4 };

function stored(header: Header): number {
  if (!header.triangle) return header.shape.reduce((product, size) => product * size, 1);
  const size = header.shape[header.shape.length - 1] ?? 0;
  return header.shape.slice(0, -2).reduce((product, one) => product * one, 1) * ((size * (size + 1)) / 2);
}

// IEEE 754 binary16: a sign, five bits of exponent, ten of fraction.
export function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
