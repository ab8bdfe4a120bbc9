"""The vocabulary files of llama2.c: written as its own script writes them, from a model that SentencePiece trained."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spm
from pellucid.text import TextError, Tokenizer


def exported(theirs) -> bytes:
    """What llama2.c's tokenizer.py writes."""
    pieces = []
    for id in range(theirs.vocab_size()):
        text = {1: "\n<s>\n", 2: "\n</s>\n"}.get(id, theirs.id_to_piece(id))
        pieces.append((theirs.get_score(id), text.replace("▁", " ").encode()))
    longest = max(len(text) for _, text in pieces)
    return struct.pack("<I", longest) + b"".join(struct.pack("<fI", score, len(text)) + text for score, text in pieces)


@pytest.fixture(scope="session")
def both(tmp_path_factory):
    model = spm.trained("bpe", normalization_rule_name="identity", remove_extra_whitespaces=False)
    path = tmp_path_factory.mktemp("llama2c") / "tok.bin"
    path.write_bytes(exported(spm.processor(model)))
    return spm.processor(model), Tokenizer.from_llama2c(path), path


@given(text=st.text("abc hello▁,12é日\n💩<>", max_size=40) | st.text(max_size=12))
def test_ids_equal_those_of_the_model(both, text):
    theirs, ours, _ = both
    assert ours.encode(text) == [1, *theirs.encode(text)]
    assert ours.decode(ours.encode(text)) == "<s>" + text.replace("▁", " ")


def test_what_the_file_says(both):
    theirs, ours, _ = both
    assert (ours.bos_id, ours.eos_ids, ours.adds_bos) == (1, (2,), True)
    assert ours.vocab_size == theirs.vocab_size()
    assert ours.control_ids == {0, 1, 2}
    assert ours.encode("<s>a</s>", special=True)[-1] == 2
    assert ours.control_ids.isdisjoint(ours.encode("<s>\n</s>\n", bos=False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"", "0 pieces"),
        (lambda content: content[:9], "ends within piece 0"),
        (lambda content: content[:-1], "ends within piece"),
        (lambda content: content[:4] + content[8:], "ends within piece|is not <unk>"),
        (lambda content: content[:8] + struct.pack("<i", -1) + content[12:], "ends within piece 0"),
        (lambda content: content[:12] + b"\xff" + content[13:], "no UTF-8"),
        (lambda content: struct.pack("<i", 2) + content[4:], "the longest said to be 2"),
        (lambda content: content[:4] + struct.pack("<f", float("nan")) + content[8:], "finite score"),
        (lambda content: content.replace(b"<unk>", b"<ABC>"), "piece 0 is not <unk>"),
        (lambda content: content.replace(b"<0x41>", b"<0x42>"), "there twice"),
        (lambda content: content[:60], "pieces|ends within"),
    ],
)
def test_a_broken_file_is_refused(both, tmp_path, change, message):
    path = tmp_path / "broken.bin"
    path.write_bytes(change(both[2].read_bytes()))
    with pytest.raises(TextError, match=message):
        Tokenizer.from_llama2c(path)
