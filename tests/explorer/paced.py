"""A model whose steps a test counts, and lets go on one by one."""

import threading

from pellucid.model.transformer import Transformer

PATIENCE = 60


class Pace:
    """Every step of a model waits for leave; `steps` counts those that were begun.

    A step is a pass through the whole stack, or with `layers` through one block of it.
    """

    def __init__(self, transformer: Transformer, layers: bool = False):
        self.steps, self._leave, self._changed = 0, 0, threading.Condition()
        if layers:
            for block in transformer.blocks:
                block.attention.register_forward_pre_hook(lambda *_: self._step())
            return
        whole = transformer.run

        def run(*args, **options):
            self._step()
            return whole(*args, **options)

        transformer.run = run

    def _step(self) -> None:
        with self._changed:
            self.steps += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._leave >= self.steps, PATIENCE), "nobody let the model go on"

    def allow(self, steps: int) -> None:
        """Let it go on until so many steps in all are done."""
        with self._changed:
            self._leave = steps
            self._changed.notify_all()

    def wait_for(self, steps: int) -> None:
        """Until so many steps were begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.steps >= steps, PATIENCE), f"only {self.steps} steps"
