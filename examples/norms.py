"""Pre-norm beside post-norm, each with and without warm-up (Xiong et al. 2020).

    python examples/norms.py [--steps 200] [--seeds 3] [--figure docs/norms.png]

In a post-norm block the norm stands after the sum, and every gradient goes through all of the norms; in a pre-norm one
the stream runs past them. Six layers, so that it matters; the learning rate falls as a cosine from the same peak.
"""

from comparing import compare, options

COMMON = {
    "model": {"n_layers": 6, "d_model": 64, "n_heads": 4},
    "schedule": {"peak": 1e-3, "final": 1e-4},
    "evaluate": {"every": 25},
}
BLOCKS = {"pre-norm": {"kind": "PreNorm"}, "post-norm": {"kind": "PostNorm"}}
VARIANTS = {
    f"{name}, {how}": {"model": {"block": block}, "schedule": {"warmup": warmup}}
    for name, block in BLOCKS.items()
    for how, warmup in (("warm-up", 50), ("no warm-up", 0))
}

if __name__ == "__main__":
    compare(options(__doc__, "runs/norms", 200), COMMON, VARIANTS)
