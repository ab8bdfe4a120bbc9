"""One thread that does all work with models, one piece after another, and forgets what nobody waits for any more."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .refusals import RefusedError

LINGERS = 2.0  # seconds that the thread waits for more work before it ends


class LeftError(Exception):
    """Whoever asked has gone: the work is broken off."""


@dataclass(frozen=True)
class Event:
    """Something that is told while work goes on: its name, and plain data."""

    name: str
    data: Any


@dataclass(frozen=True)
class End:
    """The end of a piece of work: what came of it, or the error that it ended with."""

    value: Any = None
    error: BaseException | None = None


class Job:
    """A piece of work and the ear of whoever waits for it. The work is given the job, to tell and to ask."""

    def __init__(
        self, work: Callable[["Job"], Any], hear: Callable[[Event | End], object], forget: Callable[..., None]
    ):
        self._work, self._hear, self._forget = work, hear, forget
        self._left = threading.Event()

    @property
    def is_left(self) -> bool:
        """Whether nobody waits any more."""
        return self._left.is_set()

    def leave(self) -> None:
        """Nobody waits any more: work that has not begun never does, other work ends at its next check."""
        self._left.set()
        self._forget(self)

    def check(self) -> None:
        """Raise LeftError if nobody waits any more; work calls this between its steps."""
        if self._left.is_set():
            raise LeftError

    def tell(self, name: str, data: Any) -> None:
        """Tell of the work while it goes on; a check too."""
        self.check()
        self._hear(Event(name, data))

    def run(self) -> None:
        """Do the work; its end is told whatever happens."""
        try:
            with torch.no_grad():
                end = End(self._work(self))
        except BaseException as error:
            end = End(error=error)
        self._hear(end)


class Worker:
    """Does jobs in the order in which they came; at most `waiting` of them wait beside the one that is being done."""

    def __init__(self, waiting: int):
        self._most, self._waiting = waiting, deque[Job]()
        self._running: Job | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def length(self) -> int:
        """How many jobs wait or are being done."""
        with self._changed:
            return self._length()

    @property
    def running(self) -> Job | None:
        """The job that is being done."""
        return self._running

    def submit(self, work: Callable[[Job], Any], hear: Callable[[Event | End], object] = lambda said: None) -> Job:
        """Put work at the end of the queue. `hear` is called from the worker's thread.

        Raises RefusedError where too many wait, or the server is about to end.
        """
        job = Job(work, hear, self._forget)
        with self._changed:
            if self._closed:
                raise RefusedError(503, "closing", "the server is about to end")
            if len(self._waiting) >= self._most:
                raise RefusedError(
                    503,
                    "busy",
                    f"too many requests wait: at most {self._most}, got {len(self._waiting) + 1}; try again",
                )
            self._waiting.append(job)
            if self._thread is None:
                # No daemon: Python, when it ends, unwinds those through torch's C++, which then aborts the process. So
                # that none is waited for then, it ends by itself soon after its work does.
                self._thread = threading.Thread(target=self._go_on, name="pellucid worker")
                self._thread.start()
            self._changed.notify_all()
        return job

    def close(self) -> None:
        """Take no more work, and break off what goes on."""
        with self._changed:
            self._closed = True
            jobs = [*self._waiting, *([self._running] if self._running else [])]
            thread = self._thread
            self._changed.notify_all()
        for job in jobs:
            job.leave()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2)

    def wait_until(self, length: int, timeout: float = 60) -> bool:
        """Wait until no more than `length` jobs wait or are being done; False where that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._length() <= length, timeout)

    def _length(self) -> int:
        return len(self._waiting) + (self._running is not None)

    def _forget(self, job: Job) -> None:
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._changed.notify_all()

    def _go_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed, timeout=LINGERS)
                if not self._waiting:
                    self._thread = None
                    return
                self._running = self._waiting.popleft()
            self._running.run()
            with self._changed:
                self._running = None
                self._changed.notify_all()
