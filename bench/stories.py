"""The 260K-parameter story model of llama2.c: our greedy text beside a slow pass written out here in numpy.

    python bench/stories.py PATH/stories260K.bin [--tokens 200]

The file and its vocabulary (tok512.bin beside it) are not part of this project.
"""

import argparse
import struct
from pathlib import Path

import numpy as np

import pellucid


class Reference:
    """llama2.c's form in float64: rotation of neighbours, RMSNorm, SwiGLU, grouped queries, all of it step by step."""

    def __init__(self, path: Path):
        data = path.read_bytes()
        d, f, self.layers, self.heads, self.groups, vocab, _ = struct.unpack("7i", data[:28])
        self.K = d // self.heads
        numbers, at = np.frombuffer(data, np.float32, offset=28).astype(np.float64), 0
        narrow, shapes = self.groups * self.K, {}
        shapes["tokens"] = (abs(vocab), d)
        for name, rows, columns in (("norm1", 1, d), ("q", d, d), ("k", narrow, d), ("v", narrow, d), ("o", d, d),
                                    ("norm2", 1, d), ("gate", f, d), ("down", d, f), ("up", f, d)):  # fmt: skip
            shapes[name] = (self.layers, rows, columns)
        shapes["final"] = (d,)
        self.w = {}
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            self.w[name], at = numbers[at : at + size].reshape(shape), at + size

    def norm(self, x, gain):
        return gain * x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def turn(self, x):
        angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, self.K, 2) / self.K)
        turned = (x[:, ::2] + 1j * x[:, 1::2]) * np.exp(1j * angle)
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)

    def next(self, ids: list[int]) -> int:
        w, x = self.w, self.w["tokens"][ids]
        hidden = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
        for layer in range(self.layers):
            y, K = self.norm(x, w["norm1"][layer, 0]), self.K
            q, k, v = (y @ w[name][layer].T for name in "qkv")
            mixed = []
            for h in range(self.heads):
                g = h * self.groups // self.heads
                scores = self.turn(q[:, h * K : h * K + K]) @ self.turn(k[:, g * K : g * K + K]).T / np.sqrt(K) + hidden
                pattern = np.exp(scores - scores.max(-1, keepdims=True))
                mixed.append(pattern / pattern.sum(-1, keepdims=True) @ v[:, g * K : g * K + K])
            x = x + np.concatenate(mixed, -1) @ w["o"][layer].T
            y = self.norm(x, w["norm2"][layer, 0])
            gate = y @ w["gate"][layer].T
            x = x + (gate / (1 + np.exp(-gate)) * (y @ w["up"][layer].T)) @ w["down"][layer].T
        return int((self.norm(x[-1], w["final"]) @ w["tokens"].T).argmax())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("path", type=Path)
    options.add_argument("--tokens", type=int, default=200)
    given = options.parse_args()
    model, reference = pellucid.load(given.path), Reference(given.path)
    found = model.generate("Once upon a time", max_new_tokens=given.tokens)
    ids = list(found.prompt_ids)
    expected = [ids.append(reference.next(ids)) or ids[-1] for _ in found.ids]
    same = list(found.ids) == expected
    print(f"{model.budget().total:,} parameters; {len(expected)} greedy tokens {'equal' if same else 'DIFFER'}")
    print(found.text)
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
