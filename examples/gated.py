"""SwiGLU beside GELU, with as many parameters (Shazeer 2020).

    python examples/gated.py [--steps 300] [--seeds 3] [--figure docs/gated.png]

A gated feed-forward layer has three matrices where a plain one has two: with a width of 8/3 d in place of 4 d both have
8 d^2 weights, and biases nowhere. All else is the same.
"""

from comparing import compare, options

WIDTH = 96
COMMON = {
    "model": {"n_layers": 3, "d_model": WIDTH, "n_heads": 4, "ffn_bias": False},
    "schedule": {"peak": 3e-3, "final": 3e-4, "warmup": 50},
    "evaluate": {"every": 50},
}
VARIANTS = {
    "GELU": {"model": {"activation": {"kind": "Gelu"}, "d_ff": 4 * WIDTH}},
    "SwiGLU": {"model": {"activation": {"kind": "SwiGLU"}, "d_ff": 8 * WIDTH // 3}},
}

if __name__ == "__main__":
    compare(options(__doc__, "runs/gated", 300), COMMON, VARIANTS)
