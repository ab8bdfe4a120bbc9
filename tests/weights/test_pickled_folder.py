"""Folders whose weights are pickled: Hugging Face's models written with torch.save, and hostile ones."""

import json
import os
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from pellucid.weights.errors import CheckpointError
from pellucid.weights.loading import load_checkpoint
from pellucid.weights.pickle_file import load_pickle

IDS = torch.arange(14).reshape(2, 7)
INDEX = "pytorch_model.bin.index.json"


@pytest.fixture
def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(8)
    sizes = {"vocab_size": 17, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).eval()


@pytest.fixture
def llama() -> LlamaForCausalLM:
    torch.manual_seed(9)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=17, **sizes, bos_token_id=1, eos_token_id=2)).eval()


def save(hf, folder: Path, zipped: bool = True) -> Path:
    hf.config.save_pretrained(folder)
    torch.save(hf.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    return folder


def save_shards(hf, folder: Path) -> Path:
    """Every weight whose name ends alike in one file, and an index."""
    hf.config.save_pretrained(folder)
    files: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in hf.state_dict().items():
        files.setdefault(f"pytorch_model-{len(name) % 3 + 1:05}-of-00003.bin", {})[name] = tensor
    for file, tensors in files.items():
        torch.save(tensors, folder / file)
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@torch.no_grad()
def assert_same(hf, folder: Path) -> None:
    ours, theirs = load_checkpoint(folder).transformer(IDS), hf(IDS).logits
    assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dtype", [None, "float64"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_one_file(family, dtype, zipped, request, tmp_path):
    """Tied weights, which state_dict names twice, stay one; older files, which cannot be mapped, read alike."""
    hf = request.getfixturevalue(family)
    folder = save(hf, tmp_path, zipped)
    assert_same(hf, folder)
    embedding = load_checkpoint(folder, dtype=dtype).transformer.embed.token.weight
    assert torch.equal(embedding, hf.get_input_embeddings().weight.to(embedding.dtype))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_ckpt_3_shards(family, request, tmp_path):
    hf = request.getfixturevalue(family)
    folder = save_shards(hf, tmp_path)
    assert len(list(folder.glob("*.bin"))) == 3
    assert_same(hf, folder)


def test_numbers_that_fill_pages_survive_another_precision(tmp_path):
    """A file that is not mapped lies in this process's memory, which must not be given back as if it were a file's."""
    torch.manual_seed(2)
    sizes = {"vocab_size": 300, "n_positions": 8, "n_embd": 64, "n_layer": 1, "n_head": 2}
    hf = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).eval()
    weights = load_checkpoint(save(hf, tmp_path, zipped=False), dtype="float64").transformer
    assert torch.equal(weights.embed.token.weight, hf.transformer.wte.weight.double())
    assert torch.equal(weights.blocks[0].ffn.up.weight, hf.transformer.h[0].mlp.c_fc.weight.double().T)


def test_safetensors_come_first(gpt2, tmp_path):
    gpt2.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    assert_same(gpt2, tmp_path)


def test_ckpt_3_missing_file(gpt2, tmp_path):
    folder = save_shards(gpt2, tmp_path)
    (folder / "pytorch_model-00002-of-00003.bin").unlink()
    with pytest.raises(CheckpointError, match=r"1 of its 3 files are missing.*'pytorch_model-00002-of-00003.bin'"):
        load_checkpoint(folder)


def test_ckpt_3_key_absent_from_its_shard(gpt2, tmp_path):
    folder = save_shards(gpt2, tmp_path)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["transformer.ghost"] = "pytorch_model-00001-of-00003.bin"
    del index["weight_map"]["transformer.wte.weight"]
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"not there: .transformer.ghost in.*does not name.*wte.weight"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["../x.bin", "/etc/hostname", "a/../../x", "sub/x"])
def test_sec_3_path_traversal(name, gpt2, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    gpt2.config.save_pretrained(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"wte.weight": name}}))
    with pytest.raises(CheckpointError, match="plain name of a file in this folder"):
        load_checkpoint(folder)


@pytest.mark.parametrize("linked", ["pytorch_model.bin", INDEX])
def test_sec_3_symlink_out(linked, gpt2, tmp_path):
    folder, outside = tmp_path / "model", tmp_path / "outside"
    folder.mkdir()
    gpt2.config.save_pretrained(folder)
    torch.save(gpt2.state_dict(), outside)
    os.symlink(outside, folder / linked)
    with pytest.raises(CheckpointError, match="leads out of its folder"):
        load_checkpoint(folder)


class Touches:
    """Pickled, a call that would make a file when it is read."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_sec_4_pickle(gpt2, tmp_path):
    marker = tmp_path / "marker"
    gpt2.config.save_pretrained(tmp_path)
    torch.save({**gpt2.state_dict(), "bad": Touches(marker)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="tensors and plain values only"):
        load_checkpoint(tmp_path)
    assert not marker.exists()


def test_packed_entries_are_refused(tmp_path):
    """A gigabyte of zeros packs into a megabyte; torch.save packs nothing."""
    torch.save({"w": torch.zeros(1000)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "packed.pt", "w") as packed:
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry), zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="whose entries are compressed"):
        load_pickle(tmp_path / "packed.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_numbers_that_are_not_there(zipped, tmp_path):
    """One number repeated over a matrix, and one matrix under many names, would fill the memory when copied."""
    wide = torch.ones(1).expand(10**6, 10**6)
    torch.save({"w": wide}, tmp_path / "wide.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match="claim 4000000000000 bytes, but only 4 are there; repeated: 'w'"):
        load_pickle(tmp_path / "wide.pt")
    many = torch.ones(100)
    torch.save({f"w{i}": many for i in range(5)}, tmp_path / "many.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"claim 2000 bytes, but only 400 are there\. Save"):
        load_pickle(tmp_path / "many.pt")
