"""Which heads read what which earlier heads wrote, by their weights alone."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.transformer import Transformer
from ..views.table import Table
from .circuits import attention_of, embedding, exact, readers
from .factored import triangle
from .head_scores import number

KINDS = ("Q", "K", "V")
_DRAWS = 64


@dataclass(frozen=True, eq=False, repr=False)
class Composition:
    """How strongly each head (axes 3 and 4: layer, head) reads each earlier one (axes 1 and 2); NaN where not earlier.

    `null` is the mean for Gaussian factors of the same sizes and `sd` its spread over draws, so a z-score far from 0
    says that the weights are not random to each other, not that the pair does something: trained weights all share
    directions. Beside it stands each pair's z-score among all pairs of the model.
    """

    kind: str
    score: Float[Tensor, "L H L H"]
    null: float
    sd: float

    @property
    def z(self) -> Float[Tensor, "L H L H"]:
        """Standard deviations from the null of random factors."""
        return (self.score - self.null) / self.sd

    @property
    def z_among_pairs(self) -> Float[Tensor, "L H L H"]:
        """Standard deviations from the mean over all pairs of heads."""
        known = self.score[~self.score.isnan()]
        return (self.score - known.mean()) / known.std()

    def top(self, k: int = 10) -> Table:
        """The k pairs that compose most strongly."""
        flat = self.score.flatten().nan_to_num(-torch.inf)
        return self._table([i for i in flat.topk(min(k, flat.numel())).indices.tolist() if flat[i] > -torch.inf])

    def into(self, layer: int, head: int) -> Table:
        """Every earlier head, as one head reads it, strongest first."""
        L, H = self.score.shape[:2]
        if not (0 <= layer < L and 0 <= head < H):
            raise ValueError(f"heads are 0..{L - 1}, 0..{H - 1}, got {layer}, {head}")
        at = (torch.arange(layer * H) * L * H + layer * H + head).tolist()
        return self._table(sorted(at, key=self.score.flatten().tolist().__getitem__, reverse=True))

    def table(self) -> Table:
        """All pairs, in the order of the layers."""
        return self._table((~self.score.flatten().isnan()).nonzero().flatten().tolist())

    def to_json(self) -> dict[str, object]:
        """All pairs as plain data."""
        return {"kind": self.kind, "null": self.null, "sd": self.sd, **self.table().to_json()}

    def _table(self, places: list[int]) -> Table:
        L, H = self.score.shape[:2]
        tensors = [tensor.flatten() for tensor in (self.score, self.z, self.z_among_pairs)]
        rows = []
        for at in places:
            pair = (at // (H * L * H), at // (L * H) % H, at // H % L, at % H)
            rows.append((*pair, *(number(tensor[at]) for tensor in tensors)))
        columns = ("from layer", "from head", "to layer", "to head", "score", "z", "z among pairs")
        return Table(f"{self.kind}-composition", columns, tuple(rows), f"null {self.null:.4f}, sd {self.sd:.1e}")

    def __str__(self) -> str:
        return str(self.top(20))

    __repr__ = __str__


@torch.no_grad()
def composition(transformer: Transformer, kind: str, offset: int = 0, seed: int = 0) -> Composition:
    """Q-, K- or V-composition of every pair of heads in different layers (Elhage et al. 2021).

    Of the earlier head 1 and the later head 2, in Frobenius norms and row convention:
    Q |W_OV1 W_QK2| / (|W_OV1| |W_QK2|), K with W_QK2 transposed, V with W_OV2 in its place. The reading norm is folded
    in. Random factors of width d give about 1 / sqrt(d). Where positions are rotary, QK is that of a key `offset`
    before its query. In a post-norm model the norms between the two heads are left out.
    """
    if kind not in KINDS:
        raise ValueError(f"heads compose by 'Q', 'K' or 'V', got {kind!r}")
    config = transformer.config
    L, H, D, K = config.n_layers, config.n_heads, config.d_model, config.d_head
    wrote = [_writers(transformer, layer) for layer in range(L - 1)]
    score = torch.full((L, H, L, H), torch.nan, dtype=torch.float64)
    for later in range(1, L):
        read = _readers(transformer, later, kind, offset)
        for earlier in range(later):
            score[earlier, :, later] = _ratio(wrote[earlier], read).double().cpu()
    null, sd = _null(D, K, seed)
    return Composition(kind, score, null, sd)


@torch.no_grad()
def weight_prefix_matching(
    transformer: Transformer, previous: Float[Tensor, "L H"], offset: int = 0
) -> Float[Tensor, "L H"]:
    """Prefix matching by weights alone (Olsson et al. 2022): trace of W_E W_QK (sum of p_e W_OV_e)^T W_E^T by head.

    `previous` is each head's previous-token score p_e; the sum runs over heads e of earlier layers. Positive where a
    query fits keys whose previous token it is. Not normalised: compare heads of one model.
    """
    config = transformer.config
    words = embedding(transformer)
    gram = words.T @ words
    carried = torch.zeros_like(gram)
    found = torch.zeros(config.n_layers, config.n_heads, dtype=torch.float64)
    for layer in range(config.n_layers):
        query, key = readers(transformer, layer, "query", offset), readers(transformer, layer, "key")
        found[layer] = torch.einsum("hdk,de,hek->h", query, gram @ carried, key).double().cpu()
        weights = previous[layer].to(carried)
        carried = carried + torch.einsum(
            "h,hdk,hke->de", weights, readers(transformer, layer, "value"), exact(attention_of(transformer, layer).W_O)
        )
    return found


def _writers(transformer: Transformer, layer: int) -> Float[Tensor, "H K D"]:
    """R W_O with R the triangle of W_V: as long as W_OV whatever it is multiplied with."""
    return triangle(readers(transformer, layer, "value")) @ exact(attention_of(transformer, layer).W_O)


def _readers(transformer: Transformer, layer: int, kind: str, offset: int) -> Float[Tensor, "H D K"]:
    """The side of a head's circuit that reads the stream, the other side as a triangle."""
    if kind == "V":
        other = exact(attention_of(transformer, layer).W_O).transpose(1, 2)
        return readers(transformer, layer, "value") @ triangle(other).transpose(1, 2)
    query, key = readers(transformer, layer, "query", offset), readers(transformer, layer, "key")
    near, far = (query, key) if kind == "Q" else (key, query)
    return near @ triangle(far).transpose(1, 2)


def _ratio(wrote: Float[Tensor, "M K D"], read: Float[Tensor, "N D K"]) -> Float[Tensor, "M N"]:
    """|A B| / (|A| |B|) for all pairs; 0 where a head writes or reads nothing."""
    M, K, D = wrote.shape
    N, _, R = read.shape
    both = wrote.reshape(M * K, D) @ read.transpose(0, 1).reshape(D, N * R)
    norm = both.square().view(M, K, N, R).sum((1, 3)).sqrt()
    size = torch.linalg.matrix_norm(wrote)[:, None] * torch.linalg.matrix_norm(read)[None]
    return torch.where(size > 0, norm / size.clamp(min=torch.finfo(size.dtype).tiny), 0.0)


def _null(D: int, K: int, seed: int) -> tuple[float, float]:
    """Mean and standard deviation of the ratio for Gaussian factors of the model's sizes."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(_DRAWS):
        value, out, near, far = (torch.randn(D, K, dtype=torch.float64, generator=draw) for _ in range(4))
        wrote = (triangle(value) @ out.T)[None]
        found.append(_ratio(wrote, (near @ triangle(far).T)[None])[0, 0])
    ratios = torch.stack(found)
    return float(ratios.mean()), float(ratios.std())
