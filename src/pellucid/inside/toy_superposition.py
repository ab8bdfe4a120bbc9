"""The toy model of superposition (Elhage et al. 2022): n sparse features kept in m < n dimensions.

Axes: B examples, N features, M hidden dimensions.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.checks import positive, whole
from ..views.table import Table


@dataclass(frozen=True)
class ToySettings:
    """What is learned: `features` in `dimensions`, each 0 with the probability `sparsity` and else uniform in 0..1.

    Feature i counts `decay` to the i in the loss. `rows` examples are drawn anew in each of `steps` steps of Adam; its
    rate falls from `rate` to 0 in a straight line.
    """

    features: int = 20
    dimensions: int = 5
    sparsity: float = 0.9
    decay: float = 0.9
    steps: int = 1500
    rows: int = 512
    rate: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("features", "dimensions", "steps", "rows"):
            whole(name, vars(self)[name])
        if not 0.0 <= self.sparsity < 1.0:
            raise ValueError(f"sparsity must lie in [0, 1), got {self.sparsity}")
        if not 0.0 < self.decay <= 1.0:
            raise ValueError(f"decay must lie in (0, 1], got {self.decay}")
        positive("rate", self.rate)

    @property
    def importance(self) -> Float[Tensor, "N"]:
        """How much each feature's error counts."""
        return self.decay ** torch.arange(self.features, dtype=torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class ToyModel:
    """x' = ReLU(W^T W x + b) as it was learned; `W` has one column for each feature. `loss` is over new examples."""

    settings: ToySettings
    W: Float[Tensor, "M N"]
    bias: Float[Tensor, "N"]
    loss: float

    @property
    def norms(self) -> Float[Tensor, "N"]:
        """|W_i|: near 1 for a feature that is represented, near 0 for one that is not."""
        return self.W.norm(dim=0)

    @property
    def dimensionality(self) -> Float[Tensor, "N"]:
        """|W_i|^2 / sum over j of (W_i / |W_i| . W_j)^2: a dimension of its own is 1, one shared by two 1/2; else 0."""
        overlap = (self.W.T @ self.W).square().sum(1)
        return torch.where(overlap > 0, self.norms**4 / overlap.clamp(min=1e-300), 0.0)

    @property
    def stored(self) -> int:
        """How many features are represented: those of a norm above 1/2."""
        return int((self.norms > 0.5).sum())

    def table(self) -> Table:
        """Every feature: how much it counts, how strongly it is represented, and in how much of a dimension."""
        s = self.settings
        columns = (s.importance, self.norms, self.dimensionality, self.bias)
        rows = tuple(zip(range(s.features), *(column.tolist() for column in columns), strict=True))
        note = (
            f"{self.stored} of {s.features} features stored in {s.dimensions} dimensions; each is 0 with probability "
            f"{s.sparsity}; loss {self.loss:.2e}"
        )
        title = "toy model of superposition"
        return Table(title, ("feature", "importance", "norm", "dimensionality", "bias"), rows, note)

    def top(self, k: int = 10) -> Table:
        """The k features that count most."""
        return self.table().top(k)

    def to_json(self) -> dict[str, object]:
        """Settings, weights and what follows from them, as plain data."""
        learned = {"W": self.W.tolist(), "bias": self.bias.tolist(), "loss": self.loss, "stored": self.stored}
        found = {"norms": self.norms.tolist(), "dimensionality": self.dimensionality.tolist()}
        return {**vars(self.settings), **learned, **found}

    def __str__(self) -> str:
        return str(self.table())

    __repr__ = __str__


def toy_model(settings: ToySettings = ToySettings()) -> ToyModel:
    """Learn one: Adam on the mean over examples of sum_i importance_i (x_i - x'_i)^2. Seeded; seconds on the CPU."""
    s, draws = settings, torch.Generator().manual_seed(settings.seed)
    W = torch.randn(s.dimensions, s.features, generator=draws).mul_(s.features**-0.5).requires_grad_()
    bias = torch.zeros(s.features, requires_grad=True)
    importance = s.importance.float()
    optimizer = torch.optim.Adam([W, bias], lr=s.rate)
    for step in range(s.steps):
        for group in optimizer.param_groups:
            group["lr"] = s.rate * (1 - step / s.steps)
        optimizer.zero_grad()
        _loss(W, bias, importance, _examples(s, s.rows, draws)).backward()
        optimizer.step()
    with torch.no_grad():
        loss = _loss(W, bias, importance, _examples(s, 20 * s.rows, draws))
    return ToyModel(s, W.detach().double(), bias.detach().double(), float(loss))


def _examples(s: ToySettings, rows: int, draws: torch.Generator) -> Float[Tensor, "B N"]:
    x = torch.rand(rows, s.features, generator=draws)
    return x * (torch.rand(rows, s.features, generator=draws) >= s.sparsity)


def _loss(
    W: Float[Tensor, "M N"], bias: Float[Tensor, "N"], importance: Float[Tensor, "N"], x: Float[Tensor, "B N"]
) -> Float[Tensor, ""]:
    rebuilt = torch.relu(x @ W.T @ W + bias)
    return ((x - rebuilt).square() * importance).sum(1).mean()
