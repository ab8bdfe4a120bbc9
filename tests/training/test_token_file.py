"""Token files: what is written comes back, and what is not one is refused in a line."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.training.token_file import HEADER, MAGIC, TokenFileError, open_tokens, writing


def written(path, documents, vocab_size=1000):
    with writing(path, vocab_size, b"f" * 16) as writer:
        for document in documents:
            writer.add(document)
    return open_tokens(path)


@given(st.lists(st.lists(st.integers(0, 69_999), max_size=9), min_size=1, max_size=6), st.booleans())
def test_what_is_written_comes_back(tmp_path_factory, documents, wide):
    vocab_size = 70_000 if wide else 65_536
    documents = [[id % vocab_size for id in document] for document in documents]
    path = tmp_path_factory.mktemp("tokens") / "a.tokens"
    if not any(documents):
        with pytest.raises(TokenFileError, match="no tokens"):
            written(path, documents, vocab_size)
        assert list(path.parent.iterdir()) == []
        return
    file = written(path, documents, vocab_size)
    assert file.tokens.tolist() == [id for document in documents for id in document]
    assert file.ends.tolist() == np.cumsum([len(document) for document in documents if document]).tolist()
    assert (file.vocab_size, file.fingerprint, file.tokens.itemsize) == (vocab_size, b"f" * 16, 4 if wide else 2)
    assert len(file) == len(file.tokens)


def test_the_layout_is_the_one_that_is_described(tmp_path):
    written(tmp_path / "a", [[1, 2], [3]])
    expected = struct.pack("<8sIIQQQ16s8x", b"PELLUTOK", 1, 2, 1000, 3, 2, b"f" * 16)
    expected += struct.pack("<HHHxx", 1, 2, 3) + struct.pack("<QQ", 2, 3)
    assert (tmp_path / "a").read_bytes() == expected


@pytest.mark.parametrize("id", [-1, 1000, 65_536 + 5, 2**32 + 5])
def test_ids_that_do_not_fit_are_refused_never_wrapped(tmp_path, id):
    with pytest.raises(TokenFileError, match=rf"id {id} lies outside the vocabulary of 1000"):
        written(tmp_path / "a", [[1], [2, id]])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("vocab_size", [0, -3, 2**32 + 1])
def test_a_vocabulary_that_no_file_holds_is_refused(tmp_path, vocab_size):
    with pytest.raises(TokenFileError, match="a vocabulary has 1 to"):
        written(tmp_path / "a", [[1]], vocab_size)


def test_a_file_that_stands_there_stays_when_writing_fails(tmp_path):
    written(tmp_path / "a", [[1, 2, 3]])
    with pytest.raises(TokenFileError, match="id 10 lies outside"):
        written(tmp_path / "a", [[1], [10]], vocab_size=10)
    assert open_tokens(tmp_path / "a").tokens.tolist() == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def header(version=1, width=2, vocab_size=10, count=4, documents=1):
    return HEADER.pack(MAGIC, version, width, vocab_size, count, documents, bytes(16))


FOUR = struct.pack("<4H", 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a token file"),
        (MAGIC, "not a token file"),
        (b"x" * 200, "not a token file"),
        (header(version=2) + FOUR + struct.pack("<Q", 4), "version 2"),
        (header(width=3) + FOUR + struct.pack("<Q", 4), "ids of 3 bytes"),
        (header(width=0) + FOUR + struct.pack("<Q", 4), "ids of 0 bytes"),
        (header(vocab_size=65_537) + FOUR + struct.pack("<Q", 4), "65537 ids does not fit ids of 2 bytes"),
        (header(vocab_size=0) + FOUR + struct.pack("<Q", 4), "vocabulary of 0"),
        (header(count=0, documents=0), "cut short or damaged"),
        (header() + FOUR, "cut short or damaged"),
        (header() + FOUR + struct.pack("<Q", 4) + b"\0", "cut short or damaged"),
        (header(count=2**63) + FOUR + struct.pack("<Q", 4), "cut short or damaged"),
        (header(documents=2**61) + FOUR + struct.pack("<Q", 4), "cut short or damaged"),
        (header() + FOUR + struct.pack("<Q", 3), "do not rise to 4"),
        (header() + FOUR + struct.pack("<Q", 2**63), "do not rise to 4"),
        (header(documents=2) + FOUR + struct.pack("<QQ", 0, 4), "do not rise to 4"),
        (header(documents=2) + FOUR + struct.pack("<QQ", 4, 4), "do not rise to 4"),
        (header(documents=3) + FOUR + struct.pack("<QQQ", 3, 2, 4), "do not rise to 4"),
    ],
)
def test_a_hostile_file_is_refused_in_one_line(tmp_path, data, said):
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(TokenFileError, match=said) as caught:
        open_tokens(tmp_path / "a")
    assert "\n" not in str(caught.value)


def test_an_id_outside_the_vocabulary_is_refused_when_it_is_read(tmp_path):
    (tmp_path / "a").write_bytes(header(vocab_size=4) + FOUR + struct.pack("<Q", 4))
    file = open_tokens(tmp_path / "a")
    assert file.checked(file.tokens[:3]).tolist() == [1, 2, 3]
    with pytest.raises(TokenFileError, match="holds id 4, but its vocabulary has 4 ids"):
        file.checked(file.tokens)


def test_a_path_that_is_no_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        open_tokens(tmp_path / "absent")
    with pytest.raises(ValueError, match="folder"):
        open_tokens(tmp_path)
    with pytest.raises(TokenFileError, match="does not exist"):
        written(tmp_path / "absent" / "a", [[1]])
