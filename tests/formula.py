"""The lessons' formulas, written out slowly for one unpadded row: an oracle that shares no code with the model.

It reads weights by their names in the state dict and follows the papers: no caches, no fused kernels, one head and one
position at a time where that is the clearer way.
"""

import math

import torch

from pellucid.model.config import (
    Bidirectional,
    Config,
    Gelu,
    GeluTanh,
    Learned,
    Parallel,
    PostNorm,
    Relu,
    RMSNorm,
    Sinusoidal,
    Window,
)  # fmt: skip
from pellucid.model.rotary import Linear, Llama3, Rotary, Yarn


class Formula:
    """One stack (a decoder, an encoder, an encoder-only model) with its weights."""

    def __init__(self, config: Config, weights: dict[str, torch.Tensor], words: torch.Tensor | None = None):
        self.config, self.w = config, weights
        self.words = weights["embed.token.weight"] if words is None else words

    def logits(self, ids, types=None, source=None):
        memory = None
        if self.config.encoder is not None:
            inner = {name.removeprefix("encoder."): w for name, w in self.w.items() if name.startswith("encoder.")}
            shared = self.words if self.config.shared_embedding else None
            memory = Formula(self.config.encoder, inner, shared).hidden(source)
        x = self.hidden(ids, types, memory)
        if "head.dense.weight" in self.w:
            x = self.norm("head.norm", self.activate(x @ self.w["head.dense.weight"].T + self.w["head.dense.bias"]))
        out = x @ self.w.get("unembed.weight", self.words).T + self.w.get("unembed.bias", 0)
        return out * self.config.logit_scale

    def hidden(self, ids, types=None, memory=None):
        x = self.embedding(ids, types)
        for layer in range(self.config.n_layers):
            x = self.block(x, layer, memory)
        return self.norm("final_norm", x) if "final_norm.weight" in self.w else x

    def embedding(self, ids, types):
        config = self.config
        x = self.words[ids] * config.embedding_scale
        if isinstance(config.positions, Learned):
            x = x + self.w["embed.position.weight"][: len(ids)]
        if isinstance(config.positions, Sinusoidal):
            x = x + torch.tensor(
                [wave(config.positions.layout, t, config.d_model) for t in range(len(ids))], dtype=torch.float64
            )
        if config.n_token_types:
            x = x + self.w["embed.types.weight"][torch.zeros_like(ids) if types is None else types]
        return self.norm("embed.norm", x) if config.embedding_norm else x

    def block(self, x, layer, memory):
        name, form = f"blocks.{layer}.", self.config.block
        mask = self.config.masks[layer % len(self.config.masks)]

        def attend(y):
            return self.attention(name + "attention", y, y, layer, mask)

        if isinstance(form, Parallel):
            first = self.norm(name + ("norm" if form.norms == 1 else "attention.norm"), x)
            second = first if form.norms == 1 else self.norm(name + "ffn.norm", x)
            return x + attend(first) + self.ffn(name + "ffn", second)
        parts = [("attention.norm", attend), ("ffn.norm", lambda y: self.ffn(name + "ffn", y))]
        if memory is not None:
            cross = lambda y: self.attention(name + "cross", y, memory, layer, Bidirectional())  # noqa: E731
            parts.insert(1, ("cross.norm", cross))
        for norm, part in parts:
            if isinstance(form, PostNorm):
                x = self.norm(name + norm, x + part(x))
            else:
                x = x + part(self.norm(name + norm, x))
        return x

    def attention(self, name, y, keys_from, layer, mask):
        config, K = self.config, self.config.d_head
        H, G = config.n_heads, config.n_kv_heads
        scales = config.attention_scales
        scale = scales[layer % len(scales)] if scales else 1 / math.sqrt(K)
        if name.endswith("cross"):
            q = y @ self.w[name + ".query.weight"].T + self.w.get(name + ".query.bias", 0)
            kv = keys_from @ self.w[name + ".kv.weight"].T + self.w.get(name + ".kv.bias", 0)
            k, v = kv[:, : G * K], kv[:, G * K :]
        else:
            qkv = y @ self.w[name + ".qkv.weight"].T + self.w.get(name + ".qkv.bias", 0)
            q, k, v = qkv[:, : H * K], qkv[:, H * K : (H + G) * K], qkv[:, (H + G) * K :]
        update = self.w.get(name + ".out.bias", torch.zeros(config.d_model).double()).expand(len(y), -1).clone()
        for h in range(H):
            g = h * G // H
            qh, kh, vh = q[:, h * K : (h + 1) * K], k[:, g * K : (g + 1) * K], v[:, g * K : (g + 1) * K]
            if isinstance(config.positions, Rotary) and not name.endswith("cross"):
                qh, kh = turn(config.positions, qh), turn(config.positions, kh)
            for t in range(len(y)):
                seen = [s for s in range(len(kh)) if sees(mask, t, s)]
                pattern = torch.softmax(kh[seen] @ qh[t] * scale, 0)
                update[t] += self.w[name + ".out.weight"][:, h * K : (h + 1) * K] @ (pattern @ vh[seen])
        return update

    def ffn(self, name, y):
        z = y @ self.w[name + ".up.weight"].T + self.w.get(name + ".up.bias", 0)
        if name + ".gate.weight" in self.w:
            gate = y @ self.w[name + ".gate.weight"].T + self.w.get(name + ".gate.bias", 0)
            neurons = z * gate * torch.sigmoid(gate)
        else:
            neurons = self.activate(z)
        return neurons @ self.w[name + ".down.weight"].T + self.w.get(name + ".down.bias", 0)

    def activate(self, z):
        match self.config.activation:
            case Gelu():
                return z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))
            case GeluTanh():
                return 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
            case Relu():
                return z.clamp(min=0)
        raise AssertionError(self.config.activation)

    def norm(self, name, x):
        record = self.config.norm
        if isinstance(record, RMSNorm):
            return self.w[name + ".weight"] * x / (x.pow(2).mean(-1, keepdim=True) + record.eps).sqrt()
        centred = x - x.mean(-1, keepdim=True)
        y = self.w[name + ".weight"] * centred / (centred.pow(2).mean(-1, keepdim=True) + record.eps).sqrt()
        return y + self.w.get(name + ".bias", 0)


def sees(mask, query, key):
    if isinstance(mask, Bidirectional):
        return True
    return key <= query and not (isinstance(mask, Window) and key <= query - mask.width)


def wave(layout, t, d):
    """The paper's PE, or its two rearrangements."""
    if layout == "interleaved":
        return [(math.sin if i % 2 == 0 else math.cos)(t / 10000 ** ((i - i % 2) / d)) for i in range(d)]
    if layout == "halves":
        angles = [t / 10000 ** (2 * i / d) for i in range(d // 2)]
    else:
        angles = [t * math.exp(-i * math.log(10000) / (d // 2 - 1)) for i in range(d // 2)]
    return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]


def turn(rotary, x):
    """Pairs (i, i + n/2) as complex numbers, each turned by position * frequency."""
    n = int(x.shape[-1] * rotary.fraction)
    frequencies = [rotary.base ** (-2 * i / n) for i in range(n // 2)]
    stretch, frequencies = scaled(rotary, frequencies, n)
    angles = torch.arange(len(x)).double()[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    turned = torch.complex(x[:, : n // 2], x[:, n // 2 : n]) * torch.polar(torch.full_like(angles, stretch), angles)
    return torch.cat((turned.real, turned.imag, x[:, n:]), -1)


def scaled(rotary, frequencies, n):
    match rotary.scaling:
        case Linear(factor):
            return 1.0, [f / factor for f in frequencies]
        case Llama3(factor, low, high, original):
            return 1.0, [banded(f, factor, low, high, original) for f in frequencies]
        case Yarn(factor, original, fast, slow):
            ends = [n * math.log(original / (r * 2 * math.pi)) / (2 * math.log(rotary.base)) for r in (fast, slow)]
            start, end = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), n - 1)
            ramp = [min(max((i - start) / ((end - start) or 0.001), 0), 1) for i in range(n // 2)]
            mixed = [f * (1 - r) + f / factor * r for f, r in zip(frequencies, ramp, strict=True)]
            return 0.1 * math.log(factor) + 1, mixed
    return 1.0, frequencies


def banded(f, factor, low, high, original):
    wavelength = 2 * math.pi / f
    if wavelength < original / high:
        return f
    if wavelength > original / low:
        return f / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * f / factor + smooth * f
