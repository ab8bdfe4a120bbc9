"""The right tokenizer for what lies beside the weights."""

import pytest

from pellucid.text.errors import TextError
from pellucid.text.finding import find_tokenizer


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert find_tokenizer(tmp_path) is None
    assert find_tokenizer() is None


def test_a_folder_with_one_is_read(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nis\n")
    found = find_tokenizer(tmp_path)
    assert found is not None
    assert found.encode("is") == [2, 5, 3]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "tokenizer.model.v3", "tok512.bin"])
def test_one_file_is_read_by_what_it_is(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(TextError, match=name.replace(".", r"\.")):
        find_tokenizer(file=tmp_path / name)


def test_a_gguf_file_without_a_tokenizer_has_none():
    assert find_tokenizer(metadata={"general.architecture": "llama"}) is None
    with pytest.raises(TextError, match="expected a text, got nothing"):
        find_tokenizer(metadata={"tokenizer.ggml.tokens": ["a"]})
