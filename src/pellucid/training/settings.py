"""What a run is made of, read from TOML: every key is known, or refused with the nearest that is."""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model.checks import at_least, one_of, positive, whole
from ..model.plain import from_plain
from ..weights.files import check_regular
from .loop import Settings
from .lora import Lora
from .optimizers import Recipe
from .schedules import Constant, Cosine, InverseRoot, Linear, Schedule, WarmupStableDecay

SETTINGS = "run.json"  # in the folder of a run
ORDERS = ("windows", "sequential", "documents", "packed")
SCHEDULES = ("cosine", "linear", "stable", "inverse_root", "constant")


@dataclass(frozen=True)
class Data:
    """What is read. `text`: files, folders, .jsonl files whose texts stand under `field` (empty: "text"); none: the
    standard library's sources. `tokenizer`: "characters" or "bpe" (of at most `vocab_size` tokens), made of the text;
    or a model, whose own is taken; empty: that of the model the run starts from, or else characters.

    Or `tokens`: a token file, with its tokenizer's files beside it; `validation_tokens` another. Otherwise the last
    `validation` share of the tokens is kept to validate with. A batch has `rows` rows of `length` ids in the `order`
    "windows" (random), "sequential", "documents" (a row for each) or "packed" (several in a row, which do not see one
    another); empty: windows, and of conversations documents. `jobs` processes encode text.

    Instructions are conversations: .jsonl files whose messages stand under `field` (empty: "messages"). Translations
    are .jsonl files with `source_field` and `target_field`, or two text files whose lines belong together.
    """

    text: tuple[str, ...] | str = ()
    field: str = ""
    source_field: str = "source"
    target_field: str = "target"
    tokenizer: str = ""
    vocab_size: int = 1024
    tokens: str = ""
    validation_tokens: str = ""
    validation: float = 0.1
    order: str = ""
    rows: int = 12
    length: int = 64
    jobs: int = 0

    def __post_init__(self) -> None:
        for name in ("rows", "length", "vocab_size"):
            whole(f"data.{name}", vars(self)[name])
        one_of("data.order", self.order or ORDERS[0], ORDERS)
        at_least("data.jobs", self.jobs, 0)
        if not 0.0 <= self.validation < 1.0:
            raise ValueError(f"data.validation must lie in [0, 1), got {self.validation}")
        if self.text and self.tokens:
            raise ValueError("data.text and data.tokens are two sources of the same: give one of them")
        if self.validation_tokens and not self.tokens:
            raise ValueError("data.validation_tokens goes with data.tokens; of a text, data.validation is a share")

    @property
    def paths(self) -> tuple[str, ...]:
        """The files and folders of text."""
        return (self.text,) if isinstance(self.text, str) else self.text


@dataclass(frozen=True)
class Rate:
    """The learning rate: `name` is "cosine", "linear", "stable" (warm-up, stable, `decay` steps of decay),
    "inverse_root" (that of 2017, times `scale`; it has no peak) or "constant"."""

    name: str = "cosine"
    peak: float = 3e-3
    final: float = 1e-4
    warmup: int = 100
    decay: int = 0
    scale: float = 1.0

    def __post_init__(self) -> None:
        one_of("schedule.name", self.name, SCHEDULES)

    def schedule(self, steps: int, d_model: int) -> Schedule:
        """The schedule of a run of so many steps. Raises ValueError for numbers that do not fit together."""
        match self.name:
            case "cosine":
                return Cosine(self.peak, steps, self.warmup, self.final)
            case "linear":
                return Linear(self.peak, steps, self.warmup, self.final)
            case "stable":
                return WarmupStableDecay(self.peak, steps, self.warmup, self.decay, self.final)
            case "inverse_root":
                return InverseRoot(d_model, self.warmup, self.scale)
            case _:
                return Constant(self.peak, self.warmup)


@dataclass(frozen=True)
class Evaluate:
    """Validation after every so many steps (0: never) on the first `batches` (0: all) of `rows` rows of its data."""

    every: int = 250
    rows: int = 64
    batches: int = 20

    def __post_init__(self) -> None:
        at_least("evaluate.every", self.every, 0)
        at_least("evaluate.batches", self.batches, 0)
        whole("evaluate.rows", self.rows)


@dataclass(frozen=True)
class Sample:
    """A text written after every so many steps (0: never)."""

    every: int = 500
    prompt: str = "\n"
    tokens: int = 300
    temperature: float = 0.8

    def __post_init__(self) -> None:
        at_least("sample.every", self.every, 0)
        whole("sample.tokens", self.tokens)
        at_least("sample.temperature", self.temperature, 0.0)
        if not self.prompt:
            raise ValueError("sample.prompt must not be empty")


@dataclass(frozen=True)
class Save:
    """A checkpoint after every so many steps and at the end; the last `keep` and the best stay."""

    every: int = 250
    keep: int = 2

    def __post_init__(self) -> None:
        whole("save.every", self.every)
        whole("save.keep", self.keep)


@dataclass(frozen=True)
class Log:
    """`curve`: curve.png of loss and learning rate, if matplotlib is there. `tensorboard`: its files too. `watches` are
    taken after every so many steps."""

    curve: bool = True
    tensorboard: bool = False
    watch_every: int = 100

    def __post_init__(self) -> None:
        whole("log.watch_every", self.watch_every)


@dataclass(frozen=True)
class RunSettings:
    """A whole run. The defaults are nanoGPT's small setting for a processor (characters, 4 layers, 4 heads, width 128,
    2,000 steps), at three times its learning rate.

    `model` holds fields of `Config` (`vocab_size` comes from the tokenizer, `context_length` is `data.length` unless it
    is given), or `preset`, a published shape with changes, or `start`, a checkpoint to train on.
    `objective` is "next_token", "masked", "translation" or "instruction"; `smoothing` that of its labels.
    `lora`: low-rank adapters of `start` are trained, and nothing else.
    `threads` 0 leaves their number to torch. `compile`: the sublayers, by torch.compile.
    """

    folder: str = "runs/first"
    steps: int = 2000
    seed: int = 1337
    device: str = "cpu"
    threads: int = 0
    compile: bool = False
    objective: str = "next_token"
    smoothing: float = 0.0
    model: dict = field(default_factory=dict)
    data: Data = Data()
    optimizer: Recipe = Recipe(beta2=0.99)
    schedule: Rate = Rate()
    lora: Lora | None = None
    loop: Settings = Settings()
    evaluate: Evaluate = Evaluate()
    sample: Sample = Sample()
    save: Save = Save()
    log: Log = Log()

    def __post_init__(self) -> None:
        whole("steps", self.steps)
        at_least("seed", self.seed, 0)
        at_least("threads", self.threads, 0)
        positive("the length of folder", len(self.folder))
        if not 0.0 <= self.smoothing < 1.0:
            raise ValueError(f"smoothing must lie in [0, 1), got {self.smoothing}")
        self.schedule.schedule(self.steps, 1)
        if self.lora is not None and "start" not in self.model:
            raise ValueError("lora adapts a checkpoint: name it under model.start")


def read_run(path: str | os.PathLike[str] | None = None, changes: Sequence[str] = ()) -> RunSettings:
    """The settings in a TOML file or of the run in a folder (None: the defaults), changed as "data.length=128" says.

    The value of a change is TOML; what is none is a text. Raises ValueError that names the key, and the nearest known
    one.
    """
    values: dict[str, Any] = {}
    where = "the run"
    if path is not None:
        path = Path(path).expanduser()
        here, path = path, path / SETTINGS if path.is_dir() else path
        check_regular(path)
        where = str(path)
        try:
            text = path.read_bytes().decode("utf-8")
            values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except ValueError as error:
            raise ValueError(f"{path}: not a {path.suffix[1:].upper() or 'TOML'} file ({error})") from error
        if here.is_dir():
            values["folder"] = str(here)  # the run's, wherever it was moved or copied to
    for change in changes:
        _change(values, change)
    return run_from(values, where)


def run_from(values: Mapping[str, Any], where: str) -> RunSettings:
    """The settings in plain data, as `dataclasses.asdict` gives them. Raises ValueError."""
    sections = {"": values, **{name: part for name, part in values.items() if name != "model"}}
    for name, part in sections.items():
        # `from_plain` passes over kinds, which no section has.
        if isinstance(part, Mapping) and "kind" in part:
            raise ValueError(f"{where} has no key {f'{name}.kind'.lstrip('.')!r}")
    settings = from_plain(RunSettings, values, where)
    if settings.loop.first_step:
        raise ValueError(f"{where}: loop.first_step is the run's own: leave it out")
    return settings


def _change(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    *parents, last = key.strip().split(".")
    if not equals or not last:
        raise ValueError(f"a change is written as key=value, for example data.length=128; got {change!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ValueError(f"{change!r}: {parent} is a value, not a table of others")
    values[last] = value
