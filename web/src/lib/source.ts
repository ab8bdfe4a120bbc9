// Where answers come from: a server, or what a file was saved with. Views ask both in the same way.

import { unpack, type Packed } from "./packed";

export class AnswerError extends Error {
  constructor(
    message: string,
    readonly code: string,
  ) {
    super(message);
  }
}

export interface Event {
  name: string;
  data: unknown;
}

export interface Source {
  readonly live: boolean;
  // The addresses that were answered so far: what a saved file has to hold.
  readonly seen: () => string[];
  get(path: string, signal?: AbortSignal): Promise<unknown>;
  fresh(path: string): Promise<unknown>; // what may have changed since it was asked for
  post(path: string, body: unknown, signal?: AbortSignal): Promise<Response>;
  events(path: string, body: unknown | undefined, signal?: AbortSignal): AsyncGenerator<Event>;
}

const KEPT = 200; // answers

export class Server implements Source {
  readonly live = true;
  private readonly kept = new Map<string, Promise<unknown>>();

  constructor(private readonly root = "api/") {}

  seen(): string[] {
    return [...this.kept.keys()];
  }

  // Answers never change under their address, so each is asked for once.
  get(path: string, signal?: AbortSignal): Promise<unknown> {
    const known = this.kept.get(path);
    if (known) {
      this.kept.delete(path);
      this.kept.set(path, known);
      return known;
    }
    const asked = this.fetched(path, signal);
    this.kept.set(path, asked);
    asked.catch(() => this.kept.delete(path));
    for (const old of [...this.kept.keys()].slice(0, -KEPT)) this.kept.delete(old);
    return asked;
  }

  fresh(path: string): Promise<unknown> {
    return this.fetched(path);
  }

  async post(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
    return checked(await reached(this.root + path, posted(body, signal)));
  }

  async *events(path: string, body: unknown | undefined, signal?: AbortSignal): AsyncGenerator<Event> {
    const how = body === undefined ? { signal: signal ?? null } : posted(body, signal);
    const response = await checked(await reached(this.root + path, how));
    if (!response.body) throw new AnswerError("the server sent nothing", "empty");
    yield* parsed(response.body);
  }

  private async fetched(path: string, signal?: AbortSignal): Promise<unknown> {
    const response = await checked(await reached(this.root + path, { signal: signal ?? null }));
    const packed = response.headers.get("content-type")?.startsWith("application/x-pellucid");
    const body = await received(response.arrayBuffer());
    return packed ? unpack(new Uint8Array(body)) : JSON.parse(new TextDecoder().decode(body));
  }
}

interface SavedAnswer {
  json?: unknown;
  packed?: string;
}

export interface SavedFile {
  state: Record<string, unknown>;
  responses: Record<string, SavedAnswer>;
}

export class Saved implements Source {
  readonly live = false;
  private readonly kept = new Map<string, Promise<unknown>>();

  constructor(private readonly file: SavedFile) {}

  seen(): string[] {
    return Object.keys(this.file.responses);
  }

  get(path: string): Promise<unknown> {
    let answer = this.kept.get(path);
    if (!answer) this.kept.set(path, (answer = this.opened(path)));
    return answer;
  }

  fresh(): Promise<unknown> {
    return Promise.reject(new AnswerError(OFFLINE, "offline"));
  }

  post(): Promise<Response> {
    return Promise.reject(new AnswerError(OFFLINE, "offline"));
  }

  // eslint-disable-next-line require-yield
  async *events(): AsyncGenerator<Event> {
    throw new AnswerError(OFFLINE, "offline");
  }

  private async opened(path: string): Promise<unknown> {
    const saved = this.file.responses[path];
    if (!saved) throw new AnswerError("This was not saved in this file: open the model in the explorer to see it.", "not saved");
    if (saved.packed === undefined) return saved.json;
    return unpack(await inflated(saved.packed));
  }
}

const OFFLINE = "This is a saved file: it has no model to run. Open the model in the explorer for that.";

// The bytes that Python deflated (zlib) and wrote in base64.
async function inflated(text: string): Promise<Uint8Array> {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function posted(body: unknown, signal?: AbortSignal): RequestInit {
  return {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal: signal ?? null,
  };
}

const reached = (path: string, how: RequestInit): Promise<Response> => received(fetch(path, how));

// What a browser says of a server that is gone depends on the browser, and on how much of an answer had come.
async function received<Part>(coming: Promise<Part>): Promise<Part> {
  try {
    return await coming;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new AnswerError("The server does not answer. Is `pellucid explore` still running?", "gone");
  }
}

async function checked(response: Response): Promise<Response> {
  if (response.ok) return response;
  let message = `the server answered with status ${response.status}`;
  let code = String(response.status);
  try {
    const { error } = (await response.json()) as { error: { code: string; message: string } };
    ({ code, message } = error);
  } catch {
    // What is no answer of ours has only its status to tell.
  }
  throw new AnswerError(message, code);
}

// Server-sent events: lines "event: name" and "data: ...", and an empty line after each.
export async function* parsed(body: ReadableStream<Uint8Array>): AsyncGenerator<Event> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await received(reader.read());
      held += decoder.decode(value ?? new Uint8Array(), { stream: !done });
      const blocks = held.split(/\r?\n\r?\n/);
      held = blocks.pop() ?? "";
      for (const block of blocks) {
        const event = eventOf(block);
        if (event) yield event;
      }
      if (done) return;
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function eventOf(block: string): Event | null {
  let name = "message";
  const data: string[] = [];
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { name, data: JSON.parse(data.join("\n")) } : null;
}

export type { Packed };
