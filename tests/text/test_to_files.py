"""Tokenizers as tokenizer.json and tokenizer_config.json: Hugging Face's libraries and ours read the same ids."""

import json

import pytest
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import generate_merges

import spm
from pellucid.text import TextError, Tokenizer

HARD = [
    "", " ", "   ", "\n",
    "a  1  b12 345\n\n 6", "I'LL say she's HE'S won't 'tis", "price: $1,234.56 (+7%) `x` ~~ <=> |",
    "tab\t\tand\r\n\r\n  indented\n    code = {'k': [1, 2]}  # end  ", "naïve e\u0301a\u0300 ½²٣ Ⅷ10",
    "日本語 テキスト、한국어 12 мир", "👩‍👧 \u200b\u00a0\u2003x", "a<s>b [MASK]<|im_start|></s>", "▁a ▁▁ b",
    "aaaa" * 40,
    "Hello, world! Unaffable Café",
]  # fmt: skip
IDENTITY = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}


def saved(one: Tokenizer, folder):
    """Hugging Face's reader and ours, of the files."""
    files = one.to_files()
    assert sorted(files) == ["tokenizer.json", "tokenizer_config.json"]
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return AutoTokenizer.from_pretrained(folder), Tokenizer.from_folder(folder)


def assert_same(one: Tokenizer, theirs, back: Tokenizer) -> None:
    for text in HARD:
        # Hugging Face finds control tokens in text, which we do when asked
        assert theirs.encode(text) == one.encode(text, special=True), text
        assert theirs.encode(text, split_special_tokens=True) == one.encode(text), text
        assert back.encode(text) == one.encode(text), text
        assert back.encode(text, special=True) == one.encode(text, special=True), text
        assert back.decode(one.encode(text)) == one.decode(one.encode(text))
    for said in ("bos_id", "eos_ids", "pad_id", "cls_id", "sep_id", "mask_id", "adds_bos", "control_ids", "vocab_size"):
        assert getattr(back, said) == getattr(one, said), said
    named = (theirs.bos_token_id, theirs.pad_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id)
    assert named == (one.bos_id, one.pad_id, one.cls_id, one.sep_id, one.mask_id)


def test_smollm2(smollm2, tmp_path):
    theirs, back = saved(smollm2, tmp_path)
    assert_same(smollm2, theirs, back)
    assert (theirs.eos_token_id, theirs.unk_token_id) == (2, 0)
    talk = [{"role": "user", "content": "What is 2 + 2?"}]
    assert theirs.apply_chat_template(talk, add_generation_prompt=True)["input_ids"] == smollm2.encode_chat(talk)
    assert back.encode_chat(talk) == smollm2.encode_chat(talk)


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True}])
def test_what_is_put_around_a_text(tiny_metadata, flags, tmp_path):
    one = Tokenizer.from_gguf(tiny_metadata | {f"tokenizer.ggml.{key}": value for key, value in flags.items()})
    theirs, back = saved(one, tmp_path)
    assert_same(one, theirs, back)
    assert theirs.encode("a", "b") == [*one.encode("a"), *one.encode("b")]


def test_wordpiece(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"helowrdcaf,!'12", "un", "##aff", "##able", "##llo", "##e"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    one = Tokenizer.from_folder(tmp_path)
    theirs, back = saved(one, tmp_path)
    assert_same(one, theirs, back)
    assert (theirs("hello", "a")["input_ids"], theirs("hello", "a")["token_type_ids"]) == one.encode_pair("hello", "a")
    assert back.encode_pair("hello", "a") == one.encode_pair("hello", "a")


@pytest.mark.parametrize("options", [{}, {"add_dummy_prefix": False}, {"byte_fallback": False}])
def test_sentencepiece(options, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(spm.trained("bpe", **IDENTITY, **options))
    one = Tokenizer.from_folder(tmp_path)
    theirs, back = saved(one, tmp_path)
    for text in HARD:
        assert theirs.encode(text, split_special_tokens=True) == one.encode(text) == back.encode(text), text
        assert theirs.encode(text) == one.encode(text, special=True) == back.encode(text, special=True), text
        assert back.decode(back.encode(text)) == one.decode(one.encode(text))


def test_merges_are_those_that_hugging_face_makes_of_scores(tmp_path):
    model = spm.trained("bpe", **IDENTITY)
    (tmp_path / "tokenizer.model").write_bytes(model)
    found = json.loads(Tokenizer.from_folder(tmp_path).to_files()["tokenizer.json"])["model"]
    theirs = spm.processor(model)
    pieces = {theirs.id_to_piece(id): id for id in range(theirs.vocab_size())}
    assert found["vocab"] == pieces
    scores = {text: theirs.get_score(id) for text, id in pieces.items()}
    assert [tuple(pair) for pair in found["merges"]] == generate_merges(pieces, scores)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("unigram", {}, "cut by Unigram's scores"),
        ("bpe", {"normalization_rule_name": "nmt_nfkc"}, "rewrites characters"),
        ("bpe", {"remove_extra_whitespaces": True}, "extra blanks"),
        ("bpe", {"user_defined_symbols": ["<u>"]}, "users defined"),
    ],
)
def test_vocabularies_that_merges_cannot_follow(method, options, message, tmp_path):
    (tmp_path / "m.model").write_bytes(spm.trained(method, **{**IDENTITY, **options}))
    with pytest.raises(TextError, match=f"no tokenizer.json does exactly what this SentencePiece .*{message}"):
        Tokenizer.from_sentencepiece(tmp_path / "m.model").to_files()


def test_a_blank_at_the_beginning_alone_cannot_be_followed(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(spm.trained("bpe", **IDENTITY))
    (tmp_path / "tokenizer_config.json").write_text('{"legacy": false}')
    with pytest.raises(TextError, match="only a text's beginning"):
        Tokenizer.from_folder(tmp_path).to_files()


def test_equal_scores_cannot_be_followed(tmp_path):
    pieces = [*spm.SPECIAL, *spm.BYTES, *((c, 0.0, spm.NORMAL) for c in "abc"), ("ab", -1.0, 1), ("bc", -1.0, 1)]
    (tmp_path / "m.model").write_bytes(spm.written(pieces, trainer=spm.entry(35, 1)))
    with pytest.raises(TextError, match="pieces have equal scores, 'ab' among them"):
        Tokenizer.from_sentencepiece(tmp_path / "m.model").to_files()
