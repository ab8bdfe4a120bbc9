// What the page is looking at: one model, one text, one trace, and what was chosen in it. Views read it and change it
// through its methods; nothing else holds state that two views share.

import { getContext, setContext } from "svelte";

import { address, type Parameters } from "./address";
import { fromLink, toLink, type Link } from "./link";
import type { Sampling } from "./passing";
import { Saved, Server, type SavedFile, type Source } from "./source";
import type { Edit, ModelInfo, Progress, SaidEdit, Status, TraceInfo } from "./types";

export const VIEWS = ["glance", "stream", "attention", "heads", "ffn", "pass"] as const;
export type ViewName = (typeof VIEWS)[number];

export interface Chosen {
  layer: number;
  head: number;
  part: "attention" | "cross";
  position: number;
  key: number;
  state: number;
  neuron: number;
  token: number | null; // the id that is followed; null is the token that the model finds most probable
}

export interface Hover {
  layer: number | null;
  head: number | null;
  position: number | null;
  key: number | null;
}

export type Comparing = "nothing" | "before" | "text" | "model";

const NOWHERE: Hover = { layer: null, head: null, position: null, key: null };
const LAST = 1_000_000; // more than any model has, so that the last is taken
const START: Chosen = { layer: 0, head: 0, part: "attention", position: 0, key: 0, state: LAST, neuron: 0, token: null };

export class Explorer {
  readonly source: Source;
  status = $state.raw<Status | null>(null);
  model = $state.raw<ModelInfo | null>(null);
  text = $state("");
  sourceText = $state("");
  edits = $state.raw<Edit[]>([]);
  trace = $state.raw<TraceInfo | null>(null);
  // Beside the trace: the run before its edits, another text's, or another model's.
  comparing = $state<Comparing>("nothing");
  otherText = $state("");
  otherModel = $state("");
  other = $state.raw<TraceInfo | null>(null);
  view = $state<ViewName>("glance");
  chosen = $state<Chosen>({ ...START });
  hover = $state<Hover>({ ...NOWHERE });
  sampling = $state<Sampling>({ temperature: 1, top_k: 0, top_p: 1, min_p: 0, seed: 1 });
  busy = $state.raw<Progress | null>(null);
  error = $state("");
  private ids: number[] | null = null; // what is run instead of the text, once tokens were appended to it
  private ran = $state.raw<Edit[]>([]); // the edits that the trace was made with: those of the list may be others
  private running: AbortController | null = null;
  private placed = false; // whether a link has said what is chosen in the trace to come

  constructor(saved: SavedFile | null) {
    this.source = saved ? new Saved(saved) : new Server();
    if (saved) this.restore(saved.state as unknown as Partial<Explorer>);
  }

  get live(): boolean {
    return this.source.live;
  }

  // The name of a site in this model: an encoder-decoder's decoder has its name before its own.
  site(name: string): string {
    return (this.model?.prefix ?? "") + name;
  }

  // --- Asking ---

  // What a resource says of the trace (or of another one).
  ask<Answer>(resource: string, parameters: Parameters = {}, of: TraceInfo | null = this.trace): Promise<Answer> {
    if (!of) return Promise.reject(new Error("nothing was run yet"));
    return this.source.get(address(`traces/${of.id}/${resource}`, parameters)) as Promise<Answer>;
  }

  // What a resource says of the model's weights.
  askModel<Answer>(resource: string, parameters: Parameters = {}): Promise<Answer> {
    return this.source.get(address(`models/${this.model?.id}/${resource}`, parameters)) as Promise<Answer>;
  }

  // Whether that can be answered: by a server always, by a saved file where it was saved.
  canAskModel(resource: string, parameters: Parameters = {}): boolean {
    return this.live || this.source.seen().includes(address(`models/${this.model?.id}/${resource}`, parameters));
  }

  // --- Running ---

  async start(): Promise<void> {
    if (!this.live) return;
    try {
      let status = await this.refresh();
      while (!status.models.length && status.loading) {
        this.busy = { stage: `loading ${status.loading}`, done: 0, total: 0 };
        await new Promise((later) => setTimeout(later, 400));
        status = await this.refresh();
      }
      if (!status.models.length && status.failed) this.error = status.failed;
    } catch (error) {
      this.error = said(error);
      return;
    } finally {
      this.busy = null;
    }
    await this.followed(location.hash);
  }

  async load(name: string): Promise<void> {
    await this.guarded(async (signal) => {
      await this.loaded(name, signal);
      this.edits = []; // they name sites of the model before
      this.ids = null;
      if (this.text) await this.traced(signal);
    });
  }

  // Run the text that is in the box.
  async run(): Promise<void> {
    if (!this.model) return; // the first one is still being loaded
    this.ids = null;
    await this.again();
  }

  // Run the same tokens and further ones, as after these were drawn.
  async append(more: number[]): Promise<void> {
    if (this.trace) await this.exactly([...this.trace.ids, ...more]);
  }

  // Run the same tokens with another one at a position, as where a mask is filled.
  async replace(position: number, id: number): Promise<void> {
    if (this.trace) await this.exactly(this.trace.ids.map((one, at) => (at === position ? id : one)));
  }

  // A run of the same tokens with other edits, which nothing on the page follows.
  async peek(edits: Edit[], signal: AbortSignal): Promise<TraceInfo> {
    if (!this.trace) throw new Error("nothing was run yet");
    const body = { model: this.trace.model, ids: this.trace.ids, source: this.asSource(), edits };
    return this.finished<TraceInfo>("traces", body, signal, false);
  }

  stop(): void {
    this.running?.abort();
  }

  // --- Edits ---

  async addEdit(...edits: Edit[]): Promise<void> {
    this.edits = [...this.edits, ...edits];
    await this.again();
  }

  async removeEdit(at: number): Promise<void> {
    this.edits = this.edits.filter((_, index) => index !== at);
    await this.again();
  }

  async moveEdit(from: number, to: number): Promise<void> {
    if (to < 0 || to >= this.edits.length) return;
    const edits = [...this.edits];
    edits.splice(to, 0, ...edits.splice(from, 1));
    this.edits = edits;
    await this.again();
  }

  async setEdits(edits: Edit[]): Promise<void> {
    this.edits = edits;
    await this.again();
  }

  // What the server says of each edit in the list; nothing of those that no run was made with yet.
  get said(): (SaidEdit | undefined)[] {
    return this.edits.map((edit) => this.trace?.edits[this.ran.indexOf(edit)]);
  }

  // --- Choosing ---

  choose(chosen: Partial<Chosen>): void {
    Object.assign(this.chosen, chosen);
    this.clamp();
  }

  point(hover: Partial<Hover>): void {
    this.hover = { ...NOWHERE, ...hover };
  }

  // --- Comparing ---

  async compare(how: Comparing): Promise<void> {
    this.comparing = how;
    await this.guarded((signal) => this.comparedWith(signal));
  }

  // --- Links and files ---

  get link(): Link {
    const { text, sourceText, edits, view, comparing, otherText, otherModel } = this;
    const model = this.model?.name ?? "";
    return { model, text, sourceText, edits, view, chosen: { ...this.chosen }, comparing, otherText, otherModel, ids: this.ids };
  }

  get linkText(): string {
    return toLink(this.link);
  }

  // What stands behind the # of an address; nothing changes where that is no link.
  async followed(hash: string): Promise<void> {
    this.model ??= this.status?.models[0] ?? null;
    const link = fromLink(hash);
    if (link) await this.follow(link);
    else if (hash.length > 1) this.error = "This address holds no link that the page can read: it was cut off or changed.";
  }

  async follow(link: Link): Promise<void> {
    const { text, sourceText, edits, view, comparing, otherText, otherModel, ids } = link;
    Object.assign(this, { text, sourceText, edits, comparing, otherText, otherModel, ids });
    if (VIEWS.includes(view)) this.view = view;
    this.trace = null;
    this.other = null;
    this.chosen = { ...START, ...link.chosen };
    this.placed = true;
    const here = this.status?.models.find((one) => one.name === link.model);
    if (here) this.model = here;
    await this.guarded(async (signal) => {
      if (link.model && !here) await this.loaded(link.model, signal);
      if (text || ids) await this.traced(signal);
    });
  }

  // One HTML file of what was seen so far.
  async file(): Promise<Blob> {
    if (!this.trace) throw new Error("nothing was run yet");
    const { model, trace, other, view, text, sourceText } = this;
    const state = { model, trace, other, view, text, sourceText, chosen: { ...this.chosen }, comparing: this.comparing };
    // The report card came as a stream of events; the file finds it, if there is one, under its address.
    const paths = [...this.source.seen(), `models/${trace.model}/card`];
    return (await this.source.post(`traces/${trace.id}/file`, { state, paths })).blob();
  }

  // --- The ways between ---

  private async again(): Promise<void> {
    await this.guarded((signal) => this.traced(signal));
  }

  // Ids instead of the text; where they cannot be run, what was run before stays.
  private async exactly(ids: number[]): Promise<void> {
    const before = this.ids;
    this.ids = ids;
    await this.again();
    if (this.trace?.ids.join() === ids.join()) this.text = this.trace.text;
    else if (this.ids === ids) this.ids = before;
  }

  private async loaded(name: string, signal: AbortSignal): Promise<void> {
    const model = await this.finished<ModelInfo>("models", { name }, signal);
    await this.refresh();
    this.model = model;
    this.trace = null;
    this.other = null;
  }

  private async traced(signal: AbortSignal): Promise<void> {
    if (!this.model) return;
    const what = this.ids ? { ids: this.ids } : { text: this.text };
    const { edits, trace: before } = this;
    const body = { model: this.model.id, ...what, source: this.asSource(), edits };
    const trace = await this.finished<TraceInfo>("traces", body, signal);
    if (!this.placed && before?.ids.length !== trace.ids.length) this.chosen.position = trace.ids.length - 1;
    this.placed = false;
    this.trace = trace;
    this.ran = edits;
    this.clamp();
    await this.comparedWith(signal);
  }

  private async comparedWith(signal: AbortSignal): Promise<void> {
    const body = this.otherRun();
    try {
      this.other = body ? await this.finished<TraceInfo>("traces", body, signal) : null;
    } catch (error) {
      this.other = null; // the one before was beside another run
      throw error;
    }
  }

  private otherRun(): Record<string, unknown> | null {
    if (!this.trace || !this.model) return null;
    const { ids, model } = this.trace;
    const source = this.asSource();
    if (this.comparing === "before") return { model, ids, source, edits: [] };
    if (this.comparing === "text" && this.otherText) return { model, text: this.otherText, source, edits: this.edits };
    const other = this.status?.models.find((one) => one.name === this.otherModel);
    if (this.comparing === "model" && other) return { model: other.id, text: this.text, source, edits: [] };
    return null;
  }

  private asSource(): string | null {
    return this.model?.family === "encoder-decoder" ? this.sourceText : null;
  }

  // The answer at the end of a stream of events; what comes before it is progress.
  private async finished<Answer>(path: string, body: unknown, signal: AbortSignal, shown = true): Promise<Answer> {
    for await (const event of this.source.events(path, body, signal)) {
      if (event.name === "progress" && shown) this.busy = event.data as Progress;
      if (event.name === "error") throw new Error((event.data as { message: string }).message);
      if (event.name === "done") return event.data as Answer;
    }
    throw new Error("the server broke off before its answer was complete");
  }

  // One thing at a time: what is asked later takes the place of what is still running.
  private async guarded(work: (signal: AbortSignal) => Promise<void>): Promise<void> {
    this.running?.abort();
    const own = (this.running = new AbortController());
    this.error = "";
    this.busy = { stage: "asking", done: 0, total: 0 };
    try {
      await work(own.signal);
    } catch (error) {
      if (!own.signal.aborted) this.error = said(error);
    } finally {
      if (this.running === own) {
        this.busy = null;
        this.running = null;
      }
    }
  }

  private async refresh(): Promise<Status> {
    return (this.status = (await this.source.fresh("status")) as Status);
  }

  private clamp(): void {
    const { model, trace, chosen } = this;
    if (!model || !trace) return;
    const within = (value: number, size: number) => Math.max(0, Math.min(size - 1, value));
    chosen.layer = within(chosen.layer, model.config.n_layers);
    chosen.head = within(chosen.head, model.config.n_heads);
    chosen.position = within(chosen.position, trace.ids.length);
    chosen.state = within(chosen.state, trace.states.length);
    chosen.neuron = within(chosen.neuron, model.config.d_ff);
    if (chosen.part === "cross" && model.family !== "encoder-decoder") chosen.part = "attention";
    if (chosen.token !== null && !(chosen.token >= 0 && chosen.token < model.vocab_size)) chosen.token = null;
    const keys = chosen.part === "cross" ? (trace.source_tokens?.length ?? 1) : trace.ids.length;
    chosen.key = within(chosen.key, keys);
  }

  private restore(state: Partial<Explorer>): void {
    const { model, trace, other, view, text, sourceText, comparing } = state;
    this.model = model ?? null;
    this.trace = trace ?? null;
    this.other = other ?? null;
    this.view = view ?? "glance";
    this.text = text ?? trace?.text ?? "";
    this.sourceText = sourceText ?? "";
    this.comparing = comparing ?? "nothing";
    this.edits = (trace?.edits ?? []).map((edit) => edit.json);
    this.ran = this.edits;
    const last = (trace?.ids.length ?? 1) - 1;
    this.chosen = { ...START, position: last, ...(state.chosen ?? {}) };
    this.clamp();
  }
}

const said = (error: unknown): string => (error instanceof Error ? error.message : String(error));

const KEY = Symbol("explorer");

export function provide(found: Explorer): Explorer {
  return setContext(KEY, found);
}

export function explorer(): Explorer {
  return getContext<Explorer>(KEY);
}
