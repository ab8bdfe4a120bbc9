"""A trace under the names of another library, for those who have code that reads them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from .elsewhere import hugging_face_names, transformer_lens_names
from .run import Run


@dataclass(frozen=True, eq=False)
class Renamed(Mapping[str, Tensor]):
    """A trace under the names of another library; a value is recomputed when it is asked for."""

    run: Run
    lines: dict[str, tuple[str, str]]  # theirs -> ours, and what they keep of it

    def __getitem__(self, name: str) -> Tensor:
        site, kept = self.lines[name]
        value = self.run[site]
        if kept == "1/":
            return 1 / value[..., None]
        return value.flatten(-2) if kept == "flat" else value

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)


def renamed(run: Run, family: str = "transformer_lens") -> Renamed:
    """A run's values under another library's names, each recomputed when it is asked for."""
    config = run.transformer.config
    lens = family == "transformer_lens"
    return Renamed(run, transformer_lens_names(config) if lens else hugging_face_names(config, family))
