// What the lens says at every state and position that was seen: tiles are asked for one after another as they come into
// view, and put into one map.

import type { Packed } from "./packed";
import type { Explorer } from "./state.svelte";
import type { TraceInfo } from "./types";

export interface Tile {
  first_state: number;
  last_state: number;
  step: number;
  first: number;
  last: number;
}

interface Said {
  indexes: number[];
  first: number;
  labels: Record<string, string>;
}

export const WIDE = 64; // tokens of a tile
const HIGH = 8; // states of a tile

// The tiles of some positions, last states first: what the model ends with is the most telling.
export function tilesOf(indexes: number[], step: number, first: number, last: number): Tile[] {
  const tiles: Tile[] = [];
  for (let end = indexes.length; end > 0; end -= HIGH) {
    const some = indexes.slice(Math.max(0, end - HIGH), end);
    for (let from = first - (first % WIDE); from <= last; from += WIDE) {
      tiles.push({ first_state: some[0]!, last_state: some[some.length - 1]!, step, first: from, last: from + WIDE - 1 });
    }
  }
  return tiles;
}

export class LensMap {
  version = $state(0); // counts what came in, so that what shows the map is drawn again
  failed = $state("");
  waits = $state(false);
  readonly errors = { probability: 0, entropy: 0 }; // how far packed numbers may be off
  readonly top: Int32Array;
  readonly probability: Float32Array;
  readonly entropy: Float32Array;
  readonly labels = new Map<number, string>();
  private readonly tokens: number;
  private readonly read = new Set<string>();
  private round = 0;

  constructor(
    private readonly x: Explorer,
    private readonly trace: TraceInfo,
  ) {
    this.tokens = trace.ids.length;
    const cells = trace.states.length * this.tokens;
    this.top = new Int32Array(cells).fill(-1);
    this.probability = new Float32Array(cells).fill(NaN);
    this.entropy = new Float32Array(cells).fill(NaN);
  }

  at = (state: number, position: number): number => state * this.tokens + position;
  label = (state: number, position: number): string => this.labels.get(this.top[this.at(state, position)] ?? -1) ?? "";

  // Asks for tiles one by one; what is asked for later takes the place of what was not yet asked.
  async see(tiles: Tile[]): Promise<void> {
    const own = ++this.round;
    const missing = tiles.filter((tile) => !this.read.has(JSON.stringify(tile)));
    this.waits = missing.length > 0;
    for (const tile of missing) {
      if (own !== this.round) return;
      const asked = { ...tile, last: Math.min(tile.last, this.tokens - 1) };
      try {
        this.put(await this.x.ask<Packed<Said>>("depths", asked, this.trace));
        this.read.add(JSON.stringify(tile));
        this.failed = "";
      } catch (error) {
        this.failed = error instanceof Error ? error.message : String(error);
        if (this.x.live) break;
      }
    }
    if (own === this.round) this.waits = false;
  }

  stop(): void {
    this.round++;
    this.waits = false;
  }

  private put({ meta, arrays }: Packed<Said>): void {
    const { top, probability, entropy } = arrays;
    if (!top || !probability || !entropy) throw new Error("a tile lacks its numbers");
    const [rows = 0, columns = 0] = top.shape;
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const place = this.at(meta.indexes[row] ?? 0, meta.first + column);
        this.top[place] = top.at(row, column);
        this.probability[place] = probability.at(row, column);
        this.entropy[place] = entropy.at(row, column);
      }
    }
    for (const [id, label] of Object.entries(meta.labels)) this.labels.set(Number(id), label);
    this.errors.probability = Math.max(this.errors.probability, probability.error);
    this.errors.entropy = Math.max(this.errors.entropy, entropy.error);
    this.version++;
  }
}
