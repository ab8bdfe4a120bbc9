"""Where weights may be put."""

import torch

from .errors import CheckpointError


def check_device(device: str | torch.device) -> None:
    """Raise CheckpointError for a device that this machine, or this build of torch, does not have."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"device {str(device)!r} cannot be used here: {reason}") from error
