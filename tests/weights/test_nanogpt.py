"""nanoGPT's and llama2.c's training checkpoints, held against Hugging Face's models with the same weights."""

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from neighbours import assert_same_logits, assert_same_weights, meta_weights, tiny_llama
from pellucid.model.config import Config, Gelu, LayerNorm
from pellucid.weights.errors import CheckpointError
from pellucid.weights.loading import load_checkpoint
from pellucid.weights.nanogpt import LAYOUT
from pellucid.weights.outline import outline

IDS = torch.arange(14).reshape(2, 7) % 12
ARGS = {"n_layer": 2, "n_head": 2, "n_embd": 8, "block_size": 8, "bias": True, "vocab_size": 17, "dropout": 0.1}
MATRICES = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # [in, out] in Hugging Face's GPT-2


def tiny(bias: bool = True) -> GPT2LMHeadModel:
    """Exact GELU, as nanoGPT's nn.GELU(); without biases they are zero here and absent in nanoGPT's file."""
    torch.manual_seed(8)
    sizes = {"vocab_size": 17, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    hf = GPT2LMHeadModel(GPT2Config(**sizes, activation_function="gelu", bos_token_id=1, eos_token_id=2)).eval()
    with torch.no_grad():
        for name, weight in hf.named_parameters():
            weight.normal_(std=0.5)
            if not bias and name.endswith(".bias"):
                weight.zero_()
    return hf


def weights(hf: GPT2LMHeadModel, bias: bool = True) -> dict[str, torch.Tensor]:
    """nanoGPT's names are Hugging Face's; its matrices are torch.nn.Linear's."""
    return {
        name: weight.T.contiguous() if name.endswith(MATRICES) else weight
        for name, weight in hf.state_dict().items()
        if bias or not name.endswith(".bias")
    }


def save(path: Path, table: dict[str, torch.Tensor], zipped: bool = True, **args) -> Path:
    content = {
        "model": table,
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.95)}]},
        "model_args": ARGS | args,
        "iter_num": 2000,
        "best_val_loss": torch.tensor(1.5),
        "config": {"out_dir": "out", "compile": True, "wandb_log": False},
    }
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


@torch.no_grad()
def assert_same(hf: GPT2LMHeadModel, transformer: torch.nn.Module) -> None:
    ours, theirs = transformer(IDS), hf(IDS).logits
    assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_with_and_without_biases(bias, zipped, tmp_path):
    hf = tiny(bias)
    checkpoint = load_checkpoint(save(tmp_path / "ckpt.pt", weights(hf, bias), zipped, bias=bias))
    assert_same(hf, checkpoint.transformer)
    config = checkpoint.config
    assert (config.activation, config.norm) == (Gelu(), LayerNorm(1e-5, bias=bias))
    assert (config.qkv_bias, config.out_bias, config.ffn_bias, config.tied) == (bias, bias, bias, True)
    assert any(name.endswith("bias") for name in checkpoint.transformer.state_dict()) == bias
    assert checkpoint.folder == tmp_path


def test_every_tensor_bit_by_bit(tmp_path):
    hf = tiny()
    state = load_checkpoint(save(tmp_path / "ckpt.pt", weights(hf))).transformer.state_dict()
    theirs = dict(hf.transformer.named_parameters())
    assert torch.equal(state["embed.token.weight"], theirs["wte.weight"])
    assert torch.equal(state["embed.position.weight"], theirs["wpe.weight"])
    assert torch.equal(state["final_norm.bias"], theirs["ln_f.bias"])
    parts = {"attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj", "ffn.up": "mlp.c_fc"}
    for ours, name in (parts | {"ffn.down": "mlp.c_proj"}).items():
        for layer in (0, 1):
            assert torch.equal(state[f"blocks.{layer}.{ours}.weight"], theirs[f"h.{layer}.{name}.weight"].T)
            assert torch.equal(state[f"blocks.{layer}.{ours}.bias"], theirs[f"h.{layer}.{name}.bias"])
    for ours, name in {"attention.norm": "ln_1", "ffn.norm": "ln_2"}.items():
        for part in ("weight", "bias"):
            assert torch.equal(state[f"blocks.1.{ours}.{part}"], theirs[f"h.1.{name}.{part}"])


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod."])
def test_ckpt_1_key_prefixes(prefix, tmp_path):
    hf = tiny()
    table = {prefix + name: weight for name, weight in weights(hf).items()}
    assert_same(hf, load_checkpoint(save(tmp_path / "ckpt.pt", table)).transformer)


@pytest.mark.parametrize("gone", ["lm_head.weight", None])
def test_ckpt_2_tied(gone, tmp_path):
    """17 x 8 numbers, once, whether the file names them once or twice."""
    table = weights(tiny())
    table.pop(gone, None)
    transformer = load_checkpoint(save(tmp_path / "ckpt.pt", table)).transformer
    assert sum(weight.numel() for weight in transformer.parameters()) == sum(
        weight.numel() for weight in tiny().parameters()
    )


def test_unembeddings_of_their_own_stay(tmp_path):
    hf = tiny()
    table = weights(hf) | {"lm_head.weight": torch.randn(17, 8)}
    checkpoint = load_checkpoint(save(tmp_path / "ckpt.pt", table))
    assert not checkpoint.config.tied
    hf.lm_head.weight = torch.nn.Parameter(table["lm_head.weight"])
    assert_same(hf, checkpoint.transformer)


def test_the_mask_of_a_model_without_flash_attention(tmp_path):
    hf = tiny()
    masks = {f"transformer.h.{layer}.attn.bias": torch.ones(8, 8).tril().view(1, 1, 8, 8) for layer in (0, 1)}
    assert_same(hf, load_checkpoint(save(tmp_path / "ckpt.pt", weights(hf) | masks)).transformer)


def test_cnt_1_padded_vocabulary():
    """GPT-2 small with 50,304 rows, as nanoGPT trains it."""
    transformer = outline(Config(50304, 1024, 12, 768, 12, activation=Gelu()))
    assert all(LAYOUT.of(name) for name in transformer.state_dict())
    assert sum(weight.numel() for weight in transformer.parameters()) == 124475904


def test_llama2c_training_checkpoints(tmp_path):
    model = tiny_llama(tie_word_embeddings=True)
    table = meta_weights(model)
    table |= {"output.weight": table["tok_embeddings.weight"], "freqs_cos": torch.ones(30, 4)}
    args = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 37, "multiple_of": 4}
    args |= {"hidden_dim": None, "ffn_dim_multiplier": 0.52, "max_seq_len": 30, "dropout": 0.0}
    torch.save({"model": {f"_orig_mod.{k}": v for k, v in table.items()}, "model_args": args}, tmp_path / "ckpt.pt")
    checkpoint = load_checkpoint(tmp_path / "ckpt.pt")
    assert (checkpoint.config.tied, checkpoint.config.context_length) == (True, 30)
    assert_same_weights(model, checkpoint.transformer)
    assert_same_logits(model, checkpoint.transformer)


# --- Hostile and unfit files ---


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"surprise": 1}, "model_args of .*ckpt.pt: unknown fields that might change the model: surprise=1"),
        ({"n_layer": 3}, "12 missing: 'h.2.attn.c_attn.bias'"),
        ({"n_layer": 10**9}, "n_layer must be at most 10000"),
        ({"n_embd": 2**61}, "n_embd must be at most"),
        ({"block_size": 9}, r"wpe.weight must have shape \[9, 8\], got \[8, 8\]"),
        ({"vocab_size": 50304}, r"wte.weight must have shape \[50304, 8\], got \[17, 8\]"),
        ({"n_head": 3}, "d_model must be a multiple of n_heads"),
        ({"dropout": float("nan")}, "dropout must be a number, got nan"),
        ({"dropout": float("inf")}, "dropout must be a number, got inf"),
        ({"dropout": 10**400}, "dropout must be a number, got 1000"),
        ({"n_embd": "8"}, "n_embd must be a whole number"),
        ({"n_embd": torch.tensor(8)}, "n_embd must be a whole number"),
        ({"bias": 1}, "bias must be true or false"),
    ],
)
def test_sizes_that_do_not_fit(args, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(save(tmp_path / "ckpt.pt", weights(tiny()), **args))


@pytest.mark.parametrize("content", [{"model": {"w": torch.ones(1)}}, {"w": torch.ones(1)}, {"model_args": [1]}])
def test_bare_weights_need_a_mapping(content, tmp_path):
    torch.save(content, tmp_path / "ckpt.pt")
    with pytest.raises(
        CheckpointError, match=r"sizes under model_args, as nanoGPT saves them.*mapping file \(\.toml\)"
    ):
        load_checkpoint(tmp_path / "ckpt.pt")


class Touches:
    """Pickled, a call that would make a file when it is read."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("where", ["vocab_size", "extra"])
def test_sec_4_pickle(where, tmp_path):
    marker = tmp_path / "marker"
    save(tmp_path / "ckpt.pt", weights(tiny()), **{where: Touches(marker)})
    with pytest.raises(CheckpointError, match="tensors and plain values only"):
        load_checkpoint(tmp_path / "ckpt.pt")
    assert not marker.exists()


def test_sec_2_cut_short(tmp_path):
    path = save(tmp_path / "ckpt.pt", weights(tiny()))
    data = path.read_bytes()
    for length in (0, 7, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"expected a torch\.save file"):
            load_checkpoint(path)
