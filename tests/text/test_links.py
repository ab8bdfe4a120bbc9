"""Symbolic links among a tokenizer's files: none leads out of the folder, but in a hub cache, where they must."""

import json
import shutil
from pathlib import Path

import pytest

from pellucid.text import TextError, Tokenizer
from pellucid.text.finding import find_tokenizer

# every file that is read of a folder, under the files that make a tokenizer there
LIBRARY = json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}})
BESIDE = {"tokenizer_config.json": "{}", "special_tokens_map.json": "{}", "added_tokens.json": "{}"}
BESIDE |= {"generation_config.json": "{}", "chat_template.jinja": "hello"}
VOCAB, MERGES = '{"a": 0, "b": 1, "ab": 2}', "#version: 0.2\na b\n"
FOLDERS = {
    "tokenizer.json": {"tokenizer.json": LIBRARY, **BESIDE},
    "vocab.json": {"vocab.json": VOCAB, "merges.txt": MERGES},
    "encoder.json": {"encoder.json": VOCAB, "vocab.bpe": MERGES},
    "vocab.txt": {"vocab.txt": "[UNK]\na\n", "tokenizer_config.json": '{"tokenizer_class": "BertTokenizer"}'},
    "tokenizer.model": {"tokenizer.model": ""},
    "source.spm": {"source.spm": "", "vocab.json": VOCAB},
}
CASES = [(kind, name) for kind, files in FOLDERS.items() for name in files]


def filled(folder: Path, kind: str) -> Path:
    folder.mkdir(parents=True)
    for name, content in FOLDERS[kind].items():
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize("kind", ["tokenizer.json", "vocab.json", "encoder.json", "vocab.txt"])
def test_the_folders_themselves_open(kind, tmp_path):
    assert "a" in Tokenizer.from_folder(filled(tmp_path / "model", kind)).decode([0, 1 if kind == "vocab.txt" else 0])


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_sec_3_symlink_out_of_the_folder(kind, name, tmp_path):
    folder = filled(tmp_path / "model", kind)
    shutil.move(folder / name, tmp_path / "secret")
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(TextError, match=f"{name}: this symbolic link leads out of its folder"):
        find_tokenizer(folder)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_sec_3_symlink_that_leads_nowhere(kind, name, tmp_path):
    """It is not as if the file were absent: another, or none, would be taken in its place without a word."""
    folder = filled(tmp_path / "model", kind)
    (folder / name).unlink()
    (folder / name).symlink_to("absent")
    with pytest.raises(TextError, match=f"{name}: no such file"):
        find_tokenizer(folder)


@pytest.mark.parametrize("shared", [False, True])
def test_sec_3_hub_cache_opens(shared, tmp_path):
    """Where the hub keeps the bytes: in the repository's own blobs, or in those of the whole cache."""
    repository = tmp_path / "models--org--name"
    folder = filled(repository / "snapshots" / "0123abcd", "tokenizer.json")
    blobs = (tmp_path if shared else repository) / "blobs"
    blobs.mkdir()
    for name in FOLDERS["tokenizer.json"]:
        shutil.move(folder / name, blobs / f"of-{name}")
        (folder / name).symlink_to(blobs / f"of-{name}")
    assert Tokenizer.from_folder(folder).chat_template is not None
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").symlink_to("/etc/hostname")
    with pytest.raises(TextError, match="leads out of its folder, to /etc/hostname"):
        Tokenizer.from_folder(folder)


def test_sec_3_symlink_inside_the_folder(tmp_path):
    folder = filled(tmp_path / "model", "tokenizer.json")
    shutil.move(folder / "tokenizer.json", folder / "real")
    (folder / "tokenizer.json").symlink_to("real")
    assert Tokenizer.from_folder(folder).vocab_size == 1
