// The formula of a norm, for vectors that a person types: gamma (x - mean) / sqrt(variance + eps) + beta.

export interface Steps {
  mean: number;
  variance: number;
  deviation: number; // sqrt(variance + eps)
  centred: number[];
  divided: number[];
  gained: number[];
  result: number[];
}

// `centres` is LayerNorm; without it, RMSNorm: no mean is taken away, and the variance is the mean of squares.
export function normalised(x: number[], gain: number[], shift: number[], eps: number, centres: boolean): Steps {
  const mean = centres ? average(x) : 0;
  const centred = x.map((value) => value - mean);
  const variance = average(centred.map((value) => value * value));
  const deviation = Math.sqrt(variance + eps);
  const divided = centred.map((value) => value / deviation);
  const gained = divided.map((value, at) => value * pick(gain, at));
  const result = gained.map((value, at) => value + pick(shift, at));
  return { mean, variance, deviation, centred, divided, gained, result };
}

// Numbers between commas, blanks or brackets. Throws for what is none.
export function numbersOf(text: string): number[] {
  const words = text.replace(/[[\](),;]/g, " ").trim().split(/\s+/).filter(Boolean);
  return words.map((word) => {
    const value = Number(word.replace("−", "-"));
    if (!Number.isFinite(value)) throw new Error(`“${word.slice(0, 20)}” is no number`);
    return value;
  });
}

// One number stands for all.
const pick = (values: number[], at: number): number => (values.length === 1 ? values[0] : values[at]) ?? 0;
const average = (values: number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
