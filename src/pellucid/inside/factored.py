"""A matrix of low rank, kept as its two factors: whatever is asked of it is worked out without ever making it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

_CELLS = 2**22  # entries of the whole matrix that are looked through at a time
_ROUNDED = 1 + 1e-5  # what rounding may add to a product of lengths


@dataclass(frozen=True, eq=False, repr=False)
class Factored:
    """`left` @ `right`, n x m and of rank r at most."""

    left: Float[Tensor, "n r"]
    right: Float[Tensor, "r m"]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the product."""
        return self.left.shape[0], self.right.shape[1]

    @property
    def T(self) -> "Factored":
        """The transpose."""
        return Factored(self.right.T, self.left.T)

    def __matmul__(self, other: "Factored") -> "Factored":
        """The product with another one, of the smaller rank of the two. Raises ValueError where the sizes differ."""
        if self.shape[1] != other.shape[0]:
            raise ValueError(f"{self.shape} and {other.shape} do not fit: columns and rows must be equal")
        middle = self.right @ other.left
        if self.left.shape[1] <= other.right.shape[0]:
            return Factored(self.left, middle @ other.right)
        return Factored(self.left @ middle, other.right)

    def rows(self, at: int | Sequence[int]) -> Float[Tensor, "*rows m"]:
        """Some rows of the product."""
        return self.left[at] @ self.right

    def columns(self, at: int | Sequence[int]) -> Float[Tensor, "n *columns"]:
        """Some columns of the product."""
        return self.left @ self.right[:, at]

    def diagonal(self) -> Float[Tensor, "least"]:
        """The entries (i, i)."""
        least = min(self.shape)
        return (self.left[:least] * self.right[:, :least].T).sum(-1)

    def trace(self) -> float:
        """The sum of the diagonal of a square product."""
        self._square()
        return float(torch.einsum("nr,rn->", self.left, self.right))

    def norm(self) -> float:
        """The Frobenius norm, from the triangles R of QR: the r x r Gram matrix of a factor is R^T R."""
        return float(torch.linalg.matrix_norm(triangle(self.left) @ triangle(self.right.T).T))

    def singular_values(self) -> Float[Tensor, "r"]:
        """The singular values that can be other than 0, largest first."""
        return torch.linalg.svdvals(triangle(self.left) @ triangle(self.right.T).T)

    def eigenvalues(self) -> Complex[Tensor, "r"]:
        """The eigenvalues that can be other than 0, of a square product: those of the r x r matrix `right` @ `left`."""
        self._square()
        return torch.linalg.eigvals(self.right @ self.left)

    def balanced(self) -> "Factored":
        """The same matrix as (U sqrt(S)) (sqrt(S) V^T): an entry is at most its row's length times its column's, and
        with these factors that bound is seldom far away."""
        left, right = torch.linalg.qr(self.left), torch.linalg.qr(self.right.T)
        inner = torch.linalg.svd(left.R @ right.R.T, full_matrices=False)
        root = inner.S.sqrt()
        return Factored(left.Q @ (inner.U * root), (right.Q @ (inner.Vh.T * root)).T)

    def top(self, k: int) -> list[tuple[int, int, float]]:
        """The k largest entries as (row, column, value).

        Rows and columns are looked through longest first, and only as far as their lengths leave room for an entry
        larger than those found (Cauchy and Schwarz): of a large vocabulary that is mostly a small part.
        """
        size = self.shape[0] * self.shape[1]
        if not 1 <= k <= size:
            raise ValueError(f"k must lie in 1..{size} (the entries), got {k}")
        even = self.balanced()
        rows, columns = _largest(even.left, even.right.T, k)
        values = (self.left[rows] * self.right[:, columns].T).sum(-1)
        best = values.argsort(descending=True, stable=True)
        return list(zip(rows[best].tolist(), columns[best].tolist(), values[best].tolist(), strict=True))

    def _square(self) -> None:
        if self.shape[0] != self.shape[1]:
            raise ValueError(f"only a square matrix has eigenvalues and a trace, this one is {self.shape}")

    def __repr__(self) -> str:
        return f"Factored({self.shape[0]} x {self.shape[1]}, rank {self.left.shape[1]} at most)"


def triangle(factor: Float[Tensor, "*batch n r"]) -> Float[Tensor, "*batch least r"]:
    """R of the factor's QR: as long as the factor wherever it is multiplied from the right, and small."""
    return torch.linalg.qr(factor, mode="r").R


def _largest(
    left: Float[Tensor, "n r"], right: Float[Tensor, "m r"], k: int
) -> tuple[Int[Tensor, "k"], Int[Tensor, "k"]]:
    """Rows and columns of the k largest entries of left @ right^T, in no order."""
    height, rows = left.norm(dim=1).sort(descending=True)
    width, columns = right.norm(dim=1).sort(descending=True)
    left, right, size = left[rows], right[columns].T, len(columns)
    values, places = left.new_empty(0), torch.empty(0, dtype=torch.long, device=left.device)
    least, step = -torch.inf, max(1, _CELLS // size)
    for first in range(0, len(rows), step):
        reach = size if least <= 0 else int((height[first] * width * _ROUNDED >= least).sum())
        if not reach:
            break
        part = left[first : first + step] @ right[:, :reach]
        if float(part.max()) <= least:
            continue
        found = part.flatten().topk(min(k, part.numel()))
        values = torch.cat((values, found.values))
        places = torch.cat((places, (found.indices // reach + first) * size + found.indices % reach))
        best = values.topk(min(k, len(values))).indices
        values, places = values[best], places[best]
        least = float(values[-1]) if len(values) == k else -torch.inf
    return rows[places // size], columns[places % size]
