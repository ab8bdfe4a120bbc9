// One question at a time, and always the newest next: what a slider asks while it moves.

type Work<Answer> = (signal: AbortSignal) => Promise<Answer>;

export class Latest<Answer> {
  private waiting: Work<Answer> | null = null;
  private running: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;

  constructor(
    private readonly answered: (answer: Answer, last: boolean) => void,
    private readonly failed: (error: unknown) => void,
    private readonly pause = 120, // milliseconds between what changes and what is asked
  ) {}

  ask(work: Work<Answer>): void {
    this.waiting = work;
    this.later();
  }

  // Forget what runs and what waits.
  stop(): void {
    this.waiting = null;
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
    this.running?.abort();
    this.running = null;
  }

  private later(): void {
    if (this.running || this.timer !== null || !this.waiting) return;
    this.timer = setTimeout(() => void this.now(), this.pause);
  }

  private async now(): Promise<void> {
    this.timer = null;
    const work = this.waiting;
    if (!work) return;
    this.waiting = null;
    const own = (this.running = new AbortController());
    try {
      const answer = await work(own.signal);
      if (this.running === own) this.answered(answer, this.waiting === null);
    } catch (error) {
      if (this.running === own) this.failed(error);
    }
    if (this.running !== own) return;
    this.running = null;
    this.later();
  }
}
