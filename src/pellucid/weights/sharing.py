"""Do tensors have memory in common? Parts of one fused matrix do not, even interleaved ones; tied weights do."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class Span(NamedTuple):
    """The bytes from a tensor's first element to its last, of which a strided tensor uses only some."""

    device: str
    start: int
    end: int
    name: str


def sharing(tensors: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """The names of two tensors that have an element in common, or None."""
    for cluster in _clusters(sorted(_span(name, tensor) for name, tensor in tensors.items() if tensor.numel())):
        for before, after in pairwise(cluster):
            dense = tensors[before.name].is_contiguous() and tensors[after.name].is_contiguous()
            if dense and after.start < before.end:
                return before.name, after.name
        if len(cluster) > 1 and (pair := _marked_twice(cluster, tensors)):
            return pair
    return None


def _span(name: str, tensor: Tensor) -> Span:
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return Span(str(tensor.device), start, start + (last + 1) * tensor.element_size(), name)


def _clusters(spans: list[Span]) -> Iterator[list[Span]]:
    """Runs of spans that reach into one another."""
    cluster: list[Span] = []
    for span in spans:
        if cluster and (span.device != cluster[0].device or span.start >= max(each.end for each in cluster)):
            yield cluster
            cluster = []
        cluster.append(span)
    if cluster:
        yield cluster


def _marked_twice(cluster: list[Span], tensors: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Mark every byte each tensor uses, one tensor after another: exact for any strides."""
    base = cluster[0].start
    marks = torch.zeros(max(span.end for span in cluster) - base, dtype=torch.bool)

    def bytes_of(span: Span) -> Tensor:
        tensor = tensors[span.name]
        size = tensor.element_size()
        strides = [stride * size for stride in tensor.stride()]
        return marks.as_strided((*tensor.shape, size), (*strides, 1), span.start - base)

    for span in cluster:
        if bytes_of(span).any():
            marks.zero_()
            bytes_of(span).fill_(True)
            return next((other.name, span.name) for other in cluster if bytes_of(other).any())
        bytes_of(span).fill_(True)
    return None
