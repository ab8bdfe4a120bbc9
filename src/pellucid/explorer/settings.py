"""How much one server does: what it accepts, what it keeps, how many may wait."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Settings:
    """Limits of a server. What is refused for one of them is refused with the number that came and the number here.

    `characters` are those of a text, `tokens` those that one run reads, `new_tokens` those that one request generates.
    `body` is a request's size in bytes, `held` what all runs that are kept may hold, `saved` what goes into one file;
    `paths` is how many answers that are. `waiting` is how many requests may wait for the model, `models` how many
    models are loaded at a time.
    """

    characters: int = 20_000
    tokens: int = 1024
    edits: int = 64
    new_tokens: int = 256
    body: int = 4_000_000
    held: int = 2_000_000_000
    saved: int = 100_000_000
    paths: int = 1_000
    waiting: int = 32
    models: int = 2

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{each.name} must be a whole number of at least 1, got {value!r}")
