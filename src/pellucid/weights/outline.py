"""A transformer's shapes, without memory for its weights."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..model.config import Config
from ..model.transformer import Transformer
from .errors import CheckpointError

_DRAWS = frozenset({torch.nn.init.normal_, torch.Tensor.normal_, torch.Tensor.zero_, torch.Tensor.fill_})


class _NothingDrawn(TorchFunctionMode):
    """Leaves weights as they are made: on the meta device a draw does nothing, but loads torch's compiler (2 s)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def outline(config: Config) -> Transformer:
    """A transformer on torch's meta device, in eval mode: every weight has its shape and no numbers.

    Raises CheckpointError where a matrix would have more numbers than can be addressed.
    """
    try:
        with torch.device("meta"), _NothingDrawn():
            return Transformer(config).eval()
    except (RuntimeError, OverflowError) as error:
        raise CheckpointError(f"no machine can hold weights of these sizes: {config}") from error
