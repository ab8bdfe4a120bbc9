"""How tokens are chosen, as one frozen record; nonsense cannot be built."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the logits, and when to stop.

    The logits are changed in this order, each option off at its default:

    1. ids without text, `forbidden_ids`, and before `min_new_tokens` also the stop ids, are forbidden (-inf);
    2. `repetition_penalty` r: logits of tokens in the prompt or the output are divided by r where positive and
       multiplied by r where negative (Keskar et al. 2019, as Hugging Face counts);
    3. `presence_penalty` a and `frequency_penalty` b: minus a [c > 0] + b c, where c is how often the token was
       generated (OpenAI's definition: the prompt does not count);
    4. `logit_bias`: pairs (id, what is added), or a mapping;
    5. `temperature`: 0 takes the most probable token, and nothing below applies; else the logits are divided by it;
    6. `top_k`: the k highest logits are kept, and those equal to the k-th; more than there are keeps all;
    7. `top_p`: of the rest, renormalised, the fewest most probable tokens that hold at least p; the first one always;
    8. `min_p`: of the rest, those at least min_p times as probable as the first.

    `max_new_tokens` 0 generates nothing. `min_new_tokens` holds back the stop ids, not the stop strings. `stop` strings
    end the text wherever they appear, also across tokens, and are cut off; `stop_ids` are ids that end it, beside the
    tokenizer's own. Every prompt of a batch has its own random numbers: with `seed` s row i draws as one prompt alone
    with seed s + i, a tuple names one seed per row, and None takes seeds from torch's global generator.

    Raises ValueError, naming what was expected and what came.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    forbidden_ids: tuple[int, ...] = ()
    seed: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        checked = {
            "temperature": _number("temperature", self.temperature, 0.0),
            "top_p": _number("top_p", self.top_p, 0.0, 1.0),
            "min_p": _number("min_p", self.min_p, 0.0, 1.0),
            "logit_bias": _bias(self.logit_bias),
            "stop": _strings(self.stop),
            "stop_ids": _wholes("stop_ids", self.stop_ids),
            "forbidden_ids": _wholes("forbidden_ids", self.forbidden_ids),
        }
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            checked[name] = _number(name, vars(self)[name])
        for name in ("top_k", "max_new_tokens", "min_new_tokens"):
            checked[name] = _whole(name, vars(self)[name])
        if self.seed is not None:
            several = isinstance(self.seed, list | tuple)
            checked["seed"] = _wholes("seed", self.seed) if several else _whole("seed", self.seed)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty must be above 0 (1 changes nothing), got {self.repetition_penalty}")
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens must not exceed max_new_tokens, got {self.min_new_tokens} and {self.max_new_tokens}"
            )


def _number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number beyond the largest float
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    if not low <= number <= high:
        bounds = f"lie in [{low:g}, {high:g}]" if high < math.inf else f"be at least {low:g}"
        raise ValueError(f"{name} must {bounds}, got {value!r}")
    return number


def _whole(name: str, value: Any) -> int:
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else -1
    if not 0 <= number < 2**63:
        raise ValueError(f"{name} must be a whole number of at least 0 and below 2^63, got {value!r}")
    return number


def _wholes(name: str, values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple):
        raise ValueError(f"{name} must be a tuple of whole numbers, got {values!r}")
    return tuple(_whole(f"{name}[{i}]", value) for i, value in enumerate(values))


def _strings(values: Any) -> tuple[str, ...]:
    values = (values,) if isinstance(values, str) else values
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) and value for value in values):
        raise ValueError(f"stop must hold strings of at least one character, got {values!r}")
    return tuple(values)


def _bias(values: Any) -> tuple[tuple[int, float], ...]:
    pairs = tuple(values.items()) if isinstance(values, Mapping) else values
    if not isinstance(pairs, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
    ):
        raise ValueError(f"logit_bias must be a mapping from id to number, or such pairs, got {values!r}")
    bias = {
        _whole("every id of logit_bias", token): _number(f"logit_bias of id {token}", value) for token, value in pairs
    }
    if len(bias) < len(pairs):
        raise ValueError(f"logit_bias must name every id once, got {values!r}")
    return tuple(bias.items())
