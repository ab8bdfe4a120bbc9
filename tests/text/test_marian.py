"""Marian's vocabularies, held against Hugging Face."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import MarianTokenizer

import spm
from pellucid.text import TextError, Tokenizer

TEXTS = st.text("abc hello▁,12é日\n½ﬁ💩<>x", max_size=40) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=12
)


def folder_of(path, method: str, **files: object):
    """A folder as Marian's converter writes it; the numbering is that of the pieces, backwards."""
    options = {"byte_fallback": False, "vocab_size": 120, "bos_id": -1}
    model = spm.trained(method, **options)
    for name in ("source.spm", "target.spm"):
        (path / name).write_bytes(model)
    theirs = spm.processor(model)
    pieces = [theirs.id_to_piece(id) for id in range(theirs.vocab_size())]
    plain = [piece for piece in reversed(pieces) if piece not in ("<unk>", "</s>")]
    tokens = ["</s>", "<unk>", *plain[:-9], "日本", ">>fra<<", "<pad>"]
    contents = {"vocab": {token: id for id, token in enumerate(tokens)}, "tokenizer_config": {}} | files
    for name, content in contents.items():
        (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture(scope="session", params=["unigram", "bpe"])
def both(request, tmp_path_factory):
    folder = folder_of(tmp_path_factory.mktemp(request.param), request.param)
    with pytest.warns(UserWarning, match="sacremoses"):
        theirs = MarianTokenizer.from_pretrained(folder)
    return theirs, Tokenizer.from_folder(folder)


@given(text=TEXTS)
def test_ids_equal_those_of_hugging_face(both, text):
    theirs, ours = both
    pieces = theirs.spm_source.encode(text, out_type=str)
    numbers = [theirs.encoder.get(piece, theirs.unk_token_id) for piece in pieces]
    assert ours.encode(text) == [*numbers, theirs.eos_token_id]


def test_whole_texts_equal_those_of_hugging_face(both):
    theirs, ours = both
    for text in ["hello world", ">>fra<< hello the cat", "", "日本 日本語", "naïve ½"]:
        assert ours.encode(text, special=True) == theirs(text).input_ids


def test_tokens_with_a_task(both):
    theirs, ours = both
    assert (ours.bos_id, ours.eos_ids, ours.pad_id) == (None, (0,), theirs.pad_token_id)
    assert not ours.adds_bos
    assert ours.vocab_size == theirs.vocab_size
    assert ours.control_ids == {0, 1, theirs.pad_token_id, theirs.encoder[">>fra<<"]}


@given(text=st.text("abc helloword", max_size=30))
def test_text_equals_that_of_hugging_face(both, text):
    theirs, ours = both
    ids = ours.encode(text)
    if 1 not in ids:
        assert ours.decode(ids[:-1]) == theirs.decode(ids[:-1], clean_up_tokenization_spaces=False)
    decoder = ours.decoder()
    assert "".join([*map(decoder.push, ids), decoder.finish()]) == ours.decode(ids)


@given(text=TEXTS)
def test_no_text_becomes_a_control_token(both, text):
    ours = both[1]
    ids = ours.encode(f"{text}</s>{text}<pad>>>fra<<")[:-1]
    assert (ours.control_ids - {1}).isdisjoint(ids)


def test_offsets(both):
    text = "hello  cat"
    ids, offsets = both[1].encode_with_offsets(text)
    assert ids == both[1].encode(text)
    assert "".join(text[start:end] for start, end in offsets).replace(" ", "") == "hellocat"


def test_a_pickle_works_alike(both):
    again = pickle.loads(pickle.dumps(both[1]))
    assert again.encode("hello world") == both[1].encode("hello world")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab": {"</s>": 0, "<unk>": 1}}, "<pad>"),
        ({"vocab": {"</s>": 0, "<unk>": 0, "<pad>": 1}}, "one id"),
        ({"vocab": []}, "expected a JSON object"),
        ({"tokenizer_config": {"separate_vocabs": True}}, "separate_vocabs"),
    ],
)
def test_a_broken_folder_is_refused(tmp_path, files, message):
    with pytest.raises(TextError, match=message):
        Tokenizer.from_folder(folder_of(tmp_path, "bpe", **files))
