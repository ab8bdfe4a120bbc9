"""Meta's consolidated folders, cut into shards here, held against Hugging Face's models with the same weights."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM, MistralConfig, MistralForCausalLM

from neighbours import IDS, assert_same_logits, assert_same_weights, meta_weights, tiny_llama
from pellucid.model.config import Causal, Config, RMSNorm, SwiGLU, Window
from pellucid.model.rotary import Llama3, Rotary
from pellucid.weights.errors import CheckpointError
from pellucid.weights.loading import load_checkpoint
from pellucid.weights.meta import config_with

# int(2/3 of 4 x 32) = 85, halved 42, rounded up to 44
PARAMS = {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": -1, "norm_eps": 1e-5}
PARAMS |= {"multiple_of": 4, "ffn_dim_multiplier": 0.5}
ROWS = ("wq", "wk", "wv", "w1", "w3", "output")
COLUMNS = ("wo", "w2")


def cut(weights: dict[str, torch.Tensor], count: int, embedding: int) -> list[dict[str, torch.Tensor]]:
    """What each of `count` machines holds: parts of the matrices, whole norms; the embedding along `embedding`."""

    def part(name: str, tensor: torch.Tensor, index: int) -> torch.Tensor:
        kind = name.split(".")[-2]
        if kind in (*ROWS, *COLUMNS, "tok_embeddings"):
            dimension = embedding if kind == "tok_embeddings" else int(kind in COLUMNS)
            return tensor.chunk(count, dimension)[index].clone()
        return tensor.clone()

    return [{name: part(name, tensor, index) for name, tensor in weights.items()} for index in range(count)]


def save(folder: Path, model, shards: int = 1, embedding: int = 1, zipped: bool = True, **params) -> Path:
    (folder / "params.json").write_text(json.dumps(PARAMS | params))
    weights = meta_weights(model) | {"rope.freqs": torch.ones(4)}
    for index, shard in enumerate(cut(weights, shards, embedding)):
        torch.save(shard, folder / f"consolidated.{index:02}.pth", _use_new_zipfile_serialization=zipped)
    return folder


@pytest.fixture
def model() -> LlamaForCausalLM:
    return tiny_llama(vocab_size=40)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("embedding", [0, 1])
@pytest.mark.parametrize("shards", [1, 2])
def test_shards(shards, embedding, zipped, model, tmp_path):
    """LLaMA 1 and 2 cut the embedding along the width, 3 along the vocabulary; the bits are the same either way."""
    checkpoint = load_checkpoint(save(tmp_path, model, shards, embedding, zipped))
    assert_same_weights(model, checkpoint.transformer)
    assert_same_logits(model, checkpoint.transformer)
    assert checkpoint.config == Config(
        vocab_size=40,
        context_length=4096,
        n_layers=2,
        d_model=32,
        n_heads=4,
        n_kv_heads=2,
        d_ff=44,
        positions=Rotary(),
        norm=RMSNorm(1e-5),
        activation=SwiGLU(),
        tied=False,
        qkv_bias=False,
        out_bias=False,
        ffn_bias=False,
    )


def test_four_shards_of_as_many_key_value_heads(tmp_path):
    model = tiny_llama(vocab_size=40, num_key_value_heads=4)
    checkpoint = load_checkpoint(save(tmp_path, model, shards=4, n_kv_heads=None))
    assert_same_weights(model, checkpoint.transformer)


def test_numbers_that_fill_pages_survive(tmp_path):
    """Joined shards lie in this process's memory, which must not be given back as if it were a file's."""
    model = tiny_llama(hidden_size=128, intermediate_size=172, vocab_size=400, num_hidden_layers=1)
    folder = save(tmp_path, model, 2, dim=128, n_layers=1)
    checkpoint = load_checkpoint(folder, dtype="float64")
    assert_same_weights(model.double(), checkpoint.transformer)


def test_scaled_rotation(tmp_path):
    """Llama 3.1's bands, as its published config.json states them."""
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    model = tiny_llama(hidden_size=128, intermediate_size=172, head_dim=32, rope_parameters=rope)
    folder = save(tmp_path, model, dim=128, rope_theta=500000.0, use_scaled_rope=True)
    checkpoint = load_checkpoint(folder)
    assert checkpoint.config.positions == Rotary(500000.0, scaling=Llama3(8.0, 1.0, 4.0, 8192))
    assert checkpoint.config.context_length == 131072
    assert_same_logits(model, checkpoint.transformer, IDS.repeat(1, 20))


def test_a_stated_scaling_factor(model, tmp_path):
    folder = save(tmp_path, model, rope_theta=5e5, use_scaled_rope=True, rope_scaling_factor=32, vocab_size=40)
    assert load_checkpoint(folder).config.positions == Rotary(5e5, scaling=Llama3(32.0, 1.0, 4.0, 8192))


@pytest.mark.parametrize("stored", [True, False])
def test_ckpt_2_tied(stored, tmp_path):
    model = tiny_llama(tie_word_embeddings=True)
    folder = save(tmp_path, model)
    if stored:
        weights = meta_weights(model)
        weights["output.weight"] = weights["tok_embeddings.weight"].clone()
        torch.save(weights, folder / "consolidated.00.pth")
    checkpoint = load_checkpoint(folder)
    assert checkpoint.config.tied
    assert_same_weights(model, checkpoint.transformer)


@pytest.mark.parametrize(
    ("params", "length"),
    [
        ({"norm_eps": 1e-6}, 2048),
        ({"norm_eps": 1e-5}, 4096),
        ({"rope_theta": 1e6}, 16384),
        ({"rope_theta": 5e5}, 8192),
        ({"rope_theta": 5e5, "use_scaled_rope": True}, 131072),
        ({"hidden_dim": 44}, 32768),
        ({"max_seq_len": 77, "rope_theta": 5e5}, 77),
    ],
)
def test_the_releases_contexts(params, length, model, tmp_path):
    assert load_checkpoint(save(tmp_path, model, **params)).config.context_length == length


@pytest.mark.parametrize(
    ("params", "width"),
    [
        ({"dim": 4096, "multiple_of": 256}, 11008),
        ({"dim": 5120, "multiple_of": 256}, 13824),
        ({"dim": 6656, "multiple_of": 256}, 17920),
        ({"dim": 8192, "multiple_of": 256}, 22016),
        ({"dim": 8192, "multiple_of": 4096, "ffn_dim_multiplier": 1.3}, 28672),
        ({"dim": 4096, "multiple_of": 1024, "ffn_dim_multiplier": 1.3}, 14336),
        ({"dim": 2048, "multiple_of": 256, "ffn_dim_multiplier": 1.5}, 8192),
        ({"dim": 3072, "multiple_of": 256, "ffn_dim_multiplier": 1.0}, 8192),
    ],
)
def test_the_releases_feed_forward_widths(params, width):
    """7B, 13B, 33B, 65B, 2-70B, 3-8B, 3.2-1B and 3.2-3B."""
    tensors = {"tok_embeddings.weight": torch.empty(5, 1), "output.weight": torch.ones(5, 1)}
    values = {"n_layers": 1, "n_heads": 8, "vocab_size": -1, **params}
    assert config_with(tensors, values, Path("params.json")).d_ff == width


def mistral(window: int | None) -> MistralForCausalLM:
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 37, "rms_norm_eps": 1e-5, "head_dim": 8}
    rope = {"rope_type": "default", "rope_theta": 1e4 if window else 1e6}
    hf = MistralForCausalLM(MistralConfig(**sizes, sliding_window=window, rope_parameters=rope)).eval()
    for weight in hf.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return hf


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("pickled", [True, False])
def test_mistral(window, pickled, tmp_path):
    """Its params.json states the widths; the base follows from whether there is a window, as its own code has it."""
    hf = mistral(window)
    params = {"dim": 32, "n_layers": 2, "head_dim": 8, "hidden_dim": 44, "n_heads": 4, "n_kv_heads": 2}
    params |= {"norm_eps": 1e-5, "vocab_size": 37} | ({"sliding_window": window} if window else {})
    (tmp_path / "params.json").write_text(json.dumps(params))
    if pickled:
        torch.save(meta_weights(hf), tmp_path / "consolidated.00.pth")
    else:
        save_file(meta_weights(hf), tmp_path / "consolidated.safetensors")
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.config.masks == (Window(7) if window else Causal(),)
    assert_same_weights(hf, checkpoint.transformer)
    assert_same_logits(hf, checkpoint.transformer)


def test_a_config_json_beside_it_comes_first(model, tmp_path):
    save(tmp_path, model)
    model.save_pretrained(tmp_path)
    assert load_checkpoint(tmp_path).config.context_length == model.config.max_position_embeddings


@pytest.mark.parametrize(
    ("content", "found"), [(b"\n\x0e\n\x05<unk>", True), (b"IQ== 0\nIg== 1\n", False), (None, True)]
)
def test_only_a_sentencepiece_model_is_a_tokenizer(content, found, model, tmp_path):
    """Llama 3 keeps another format under the same name."""
    save(tmp_path, model)
    if content:
        (tmp_path / "tokenizer.model").write_bytes(content)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.folder == (tmp_path if found else None)


# --- Hostile and unfit folders ---


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"surprise": 1}, "params.json: unknown fields that might change the model: surprise=1"),
        ({"moe": {"num_experts": 8}}, "unknown fields.*moe"),
        ({"quantization_args": {"scheme": "int4"}}, "unknown fields.*quantization_args"),
        ({"vocab_size": 39}, "vocab_size=39 is not supported, only -1 or 40"),
        ({"norm_eps": float("nan")}, "norm_eps must be a number, got nan"),
        ({"rope_theta": float("inf")}, "rope_theta must be a number, got inf"),
        ({"ffn_dim_multiplier": 1e308}, "no feed-forward width follows"),
        ({"multiple_of": 0}, "no feed-forward width follows"),
        ({"dim": 10**400}, "dim must be at most 2147483647, got 1000"),
        ({"dim": -32}, "dim must be at least 1, got -32"),
        ({"dim": None}, "dim is missing"),
        ({"multiple_of": 256}, r"w1.weight must have shape \[256, 32\], got \[44, 32\]"),
        ({"n_layers": 10**9}, "n_layers must be at most 10000"),
        ({"n_layers": 3}, "9 missing: 'layers.2.attention.wk.weight'"),
        ({"n_heads": 5, "n_kv_heads": 5}, "params.json: d_model must be a multiple of n_heads"),
        ({"sliding_window": 0}, "sliding_window must be at least 1"),
    ],
)
def test_params_that_do_not_fit(params, message, model, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(save(tmp_path, model, **params))


def test_ckpt_3_a_missing_shard(model, tmp_path):
    folder = save(tmp_path, model, shards=2)
    (folder / "consolidated.01.pth").unlink()
    with pytest.raises(CheckpointError, match=r"w1.weight must have shape \[44, 32\], got \[22, 32\]"):
        load_checkpoint(folder)
    save(tmp_path, model, shards=2)
    (folder / "consolidated.00.pth").unlink()
    with pytest.raises(CheckpointError, match=r"consolidated.00.pth and so on without a gap: 'consolidated.01.pth'"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm.weight": None}, "'norm.weight' in one of them only"),
        ({"ghost.weight": torch.ones(3)}, "'ghost.weight' in one of them only"),
        ({"norm.weight": torch.ones(32)}, "'norm.weight' do not go together: each shard should hold the whole"),
        ({"layers.0.attention.wq.weight": torch.ones(16, 31)}, r"shapes \[16, 32\], \[16, 31\]"),
        ({"layers.0.attention.wo.weight": torch.ones(16)}, r"shapes \[32, 16\], \[16\]"),
        ({"output.weight": torch.ones(20, 32).half()}, "precisions torch.float32, torch.float16"),
    ],
)
def test_shards_that_do_not_go_together(change, message, model, tmp_path):
    folder = save(tmp_path, model, shards=2)
    shard = torch.load(folder / "consolidated.01.pth", weights_only=True) | change
    torch.save({name: tensor for name, tensor in shard.items() if tensor is not None}, folder / "consolidated.01.pth")
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


@pytest.mark.parametrize("linked", ["params.json", "consolidated.00.pth", "tokenizer.model"])
def test_sec_3_symlink_out(linked, model, tmp_path):
    folder, outside = tmp_path / "model", tmp_path / "outside"
    folder.mkdir()
    save(folder, model)
    outside.write_bytes(b"\n")
    (folder / linked).unlink(missing_ok=True)
    os.symlink(outside, folder / linked)
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        load_checkpoint(folder)


class Touches:
    """Pickled, a call that would make a file when it is read."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_sec_4_pickle(model, tmp_path):
    folder = save(tmp_path, model)
    marker = tmp_path / "marker"
    torch.save({**meta_weights(model), "bad": Touches(marker)}, folder / "consolidated.00.pth")
    with pytest.raises(CheckpointError, match="tensors and plain values only"):
        load_checkpoint(folder)
    assert not marker.exists()


@pytest.mark.parametrize("text", ["[1]", "{", '{"dim": 32, "dim": 32}', "version https://git-lfs.github.com/spec/v1\n"])
def test_params_that_are_none(text, model, tmp_path):
    folder = save(tmp_path, model)
    (folder / "params.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"params\.json"):
        load_checkpoint(folder)


def test_a_folder_without_weights(model, tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(PARAMS))
    with pytest.raises(CheckpointError, match=r"expected consolidated\.safetensors, or consolidated\.00\.pth"):
        load_checkpoint(tmp_path)
