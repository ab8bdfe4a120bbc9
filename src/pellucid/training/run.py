"""A run: a folder in which a model learns, and from which the run goes on after any stop."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from weakref import finalize

import torch

from ..model.transformer import Transformer
from ..weights.saving import save_checkpoint, tokenizer_files
from . import checkpoints
from .adapters import save_adapter
from .assembly import Material, Task, build, gather, objective_of
from .batch import Batch, Objective
from .loop import Record, train
from .lora import adapters_of
from .optimizers import optimizer_of
from .recording import Recorder, Report
from .run_folder import check_machine, claim, lock
from .samples import write
from .settings import RunSettings
from .sublayers import compile_sublayers
from .tokenizing import encoder
from .world import World

Watch = Callable[[Transformer], Mapping[str, float]]
MODEL, ADAPTER = "model", "adapter"
WRITES = ("next_token", "instruction")  # the objectives whose models go on with a text


class Run:
    """A model in training. Iterating takes the steps that are left and yields a report of each; `export` saves the best
    weights (the last ones, where nothing was validated) as a model in the folder `model`.

    The folder holds run.json (all settings), what was made of the text, metrics.jsonl (a line for each step),
    samples.jsonl, watches.jsonl, curve.png and the checkpoints. A new run needs a folder without one; `resume` goes on
    with the one that is there, from its last checkpoint. `watches` are measures taken every `log.watch_every` steps,
    when the gradients of the step are still there. `task` is told of what takes long before the first step.
    `objective` stands for the one that the settings name. `world` is that of the processes that train one
    model; each of them makes this run.

    Raises ValueError, before the first step, for settings that do not fit the data, the folder or this machine.
    """

    def __init__(
        self,
        settings: RunSettings,
        resume: bool = False,
        watches: Mapping[str, Watch] | None = None,
        task: Task = lambda what, size: lambda done: None,
        objective: Objective | None = None,
        world: World | None = None,
    ):
        self.settings, self.watches, self.stopping = settings, dict(watches or {}), False
        self.world = world = world or World()
        check_machine(settings, world.size)
        self.folder = Path(settings.folder).expanduser().resolve()
        material = world.first(lambda: self._prepare(resume, task))
        data, evaluate = settings.data, settings.evaluate
        self.tokenizer, self.reader = material.tokenizer, material.reader(data, settings.seed)
        self.start_id = material.start_id
        self.held_back = material.held_back(data.length, evaluate.rows, evaluate.batches)
        self._check_prompt()
        torch.manual_seed(settings.seed)
        self.transformer = build(settings, material)
        if settings.compile:
            compile_sublayers(self.transformer)
        self.objective = world.spread(self.transformer, objective or objective_of(settings))
        self.schedule = settings.schedule.schedule(settings.steps, self.transformer.config.d_model)
        self.optimizer = optimizer_of(self.transformer, settings.optimizer)
        saved = checkpoints.checkpoints(self.checkpoints)
        self.steps = checkpoints.restore(saved[-1], self.transformer, self.optimizer, world).steps if saved else 0
        found = checkpoints.best(self.checkpoints)
        self.best = math.inf if found is None else checkpoints.progress_of(found).validation or math.inf

    def _check_prompt(self) -> None:
        """Tell now, not after hours, that the text which samples begin with has no tokens."""
        if self.tokenizer is None or not self.settings.sample.every or self.settings.objective not in WRITES:
            return
        try:
            encoder(self.tokenizer)(self.settings.sample.prompt)
        except ValueError as error:
            cure = "give another, or set sample.every=0"
            raise ValueError(f"sample.prompt {self.settings.sample.prompt!r}: {error}; {cure}") from error

    def _prepare(self, resume: bool, task: Task) -> Material:
        if self.world.leads:
            self._held = finalize(self, os.close, claim(self.folder, self.settings, resume))
        return gather(self.settings, self.folder, task)

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"

    def stop(self) -> None:
        """End after the step at hand, with a checkpoint."""
        self.stopping = True

    def __iter__(self) -> Iterator[Report]:
        loop = replace(self.settings.loop, first_step=self.steps)
        with ExitStack() as stack:
            recorder = self._recorder(stack) if self.world.leads else None
            for record in train(self.transformer, self._batches(), self.objective, self.optimizer, self.schedule, loop):
                self.steps = record.step + 1
                report = self._report(record)
                if recorder is not None:
                    recorder.write(report)
                self._keep(report)
                yield report
                if self.world.any(self.stopping):
                    self._save(report)
                    return

    def _recorder(self, stack: ExitStack) -> Recorder:
        """What writes down the steps; until it ends, the folder is this process's alone."""
        if not self._held.alive:  # an earlier iteration has let go
            self._held = finalize(self, os.close, lock(self.folder))
        stack.callback(self._held)
        recorder = Recorder(self.folder, self.steps, self.settings.log)
        stack.callback(recorder.close)
        return recorder

    def export(self) -> Path:
        """Save the best weights as a model that `load` opens. The transformer holds these weights afterwards.

        Raises CheckpointError for a shape that no layout has room for.
        """
        return self.world.first(lambda: self._export() if self.world.leads else self.folder / MODEL)

    def _export(self) -> Path:
        best = checkpoints.best(self.checkpoints) or checkpoints.checkpoints(self.checkpoints)[-1]
        transformer = self.world.form(self.transformer)
        checkpoints.load_weights(best, transformer)
        words = self.tokenizer
        ids = {} if words is None else {"bos_token_id": words.bos_id, "eos_token_id": list(words.eos_ids) or None}
        if self.start_id is not None:
            ids["decoder_start_token_id"] = self.start_id
        files = tokenizer_files(self.folder)
        adapters, lora = adapters_of(transformer), self.settings.lora
        if adapters is None or lora is None:
            return save_checkpoint(self.folder / MODEL, transformer, generation=ids, beside=files)
        path = save_adapter(self.folder / ADAPTER, adapters, str(self.settings.model["start"]))
        if not lora.merge:
            return path
        with adapters.merged():
            return save_checkpoint(self.folder / MODEL, transformer, generation=ids, beside=files)

    def validate(self) -> float | None:
        """The mean loss of the validation data's targets; None where there is none."""
        total, targets, device = 0.0, 0, self.transformer.W_U.device
        self.transformer.eval()
        with torch.no_grad():
            for batch in self.held_back:
                losses, count = self.objective(self.transformer, self.world.share(batch()).to(device))
                total, targets = total + losses.item(), targets + count
        self.transformer.train()
        return total / targets if targets else None

    def _report(self, record: Record) -> Report:
        settings, text, watched = self.settings, None, {}
        watching = bool(self.watches) and self._due(settings.log.watch_every)
        sampling = self._due(settings.sample.every)
        # First, as long as the gradients are those of the step.
        whole = self.world.whole(self.transformer) if watching or sampling else None
        if watching and whole is not None:
            watched = {name: watch(whole) for name, watch in self.watches.items()}
        if sampling and whole is not None:
            text = self._sample(whole)
        validation = self.validate() if self._due(settings.evaluate.every) else None
        return Report(record, validation, text, watched or None)

    def _batches(self) -> Iterator[Batch]:
        """This process's rows of the steps that are left."""
        for step in range(self.steps, self.settings.steps):
            self.world.seed(self.settings.seed, step)
            yield self.world.share(self.reader(step))

    def _sample(self, transformer: Transformer) -> str | None:
        config = transformer.config
        if self.tokenizer is None or not config.causal or config.head is None or config.encoder is not None:
            return None
        return write(transformer, self.tokenizer, self.settings.sample, self.settings.seed + self.steps)

    def _keep(self, report: Report) -> None:
        """Save a checkpoint when it is time, and when it is the best."""
        validation = report.validation
        better = validation is not None and validation < self.best
        if validation is not None and better:
            self.best = validation
        if better or self._due(self.settings.save.every):
            self._save(report)

    def _save(self, report: Report) -> None:
        progress = checkpoints.Progress(self.steps, report.validation, report.record.skipped)
        checkpoints.save(self.checkpoints, self.transformer, self.optimizer, progress, self.world)
        if self.world.leads:
            checkpoints.prune(self.checkpoints, self.settings.save.keep)

    def _due(self, every: int) -> bool:
        """Whether what is done every so many steps (0: never), and after the last one, is due."""
        return every > 0 and (self.steps % every == 0 or self.steps == self.settings.steps)
