"""SentencePiece's models, held against SentencePiece itself, and broken files."""

import copy
import json
import pickle
import re
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import spm
from pellucid.text import TextError, Tokenizer

IDENTITY = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
KINDS = {
    "llama": ("bpe", IDENTITY),
    "no_prefix": ("bpe", {**IDENTITY, "add_dummy_prefix": False}),
    "collapsing": ("bpe", {"normalization_rule_name": "identity"}),
    "nfkc": ("bpe", {}),
    "case_folding": ("bpe", {"normalization_rule_name": "nmt_nfkc_cf", "remove_extra_whitespaces": False}),
    "unknowns": ("bpe", {"byte_fallback": False, "vocab_size": 120}),
    "defined": ("bpe", {"user_defined_symbols": ["<u>", "ab", "abb", "cat", "\n", "½"], **IDENTITY}),
    "defined_nfkc": ("bpe", {"user_defined_symbols": ["<u>", "ab", " x", "½"]}),
    "controls": ("bpe", {"control_symbols": ["[INST]", "hello"], **IDENTITY}),
    "across_words": ("bpe", {"split_by_whitespace": False, **IDENTITY}),
    "unigram": ("unigram", IDENTITY),
    "unigram_nfkc": ("unigram", {}),
    "unigram_unknowns": ("unigram", {"byte_fallback": False, "vocab_size": 120}),
    "unigram_defined": ("unigram", {"user_defined_symbols": ["<u>", "ab", "cat"], **IDENTITY}),
    "unigram_controls": ("unigram", {"control_symbols": ["[INST]", "hello"], **IDENTITY}),
}
TEXTS = st.text("abc hello▁,12é日\u0301\n½ﬁ①\u200b\u3000💩<>", max_size=40) | st.text(max_size=12)
HARD = [
    "",
    " ",
    "   ",
    "hello",
    " hello",
    "hello  world  ",
    "\n \n\thello",
    "naïve e\u0301 日本語 💩 \x00",
    "ﬁ ½ ①\u200b\u00a0\u3000x \ufeff",
    "<s>hello</s> <unk> <0x41> [INST]",
    "▁▁hello ▁ world▁",
    "aaaaaaaaaaaaaaa aaa a",
    "the cat abbab <u>ab ½",
    " x x",
    "\u0308 a \u00a8\u00a8",
]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """By kind: SentencePiece's own reader, and ours."""
    found = {}
    folder = tmp_path_factory.mktemp("models")
    for kind, (method, options) in KINDS.items():
        model = spm.trained(method, **options)
        path = folder / f"{kind}.model"
        path.write_bytes(model)
        found[kind] = spm.processor(model), Tokenizer.from_sentencepiece(path)
    return found


def from_bytes(tmp_path, model: bytes) -> Tokenizer:
    path = tmp_path / "some.model"
    path.write_bytes(model)
    return Tokenizer.from_sentencepiece(path)


# --- Ids ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", HARD)
def test_ids_equal_those_of_sentencepiece(models, kind, text):
    theirs, ours = models[kind]
    assert ours.encode(text, bos=False) == theirs.encode(text)


@given(text=TEXTS, kind=st.sampled_from(list(KINDS)))
def test_ids_of_any_text_equal_those_of_sentencepiece(models, text, kind):
    theirs, ours = models[kind]
    assert ours.encode(text, bos=False) == theirs.encode(text)


@given(
    scores=st.lists(st.sampled_from([-1.0, -2.0, -3.0]), min_size=10, max_size=10),
    text=st.text("ab ", max_size=30),
)
@example(scores=[-1.0] * 10, text="abababbabaab")
def test_of_equal_scores_the_leftmost_is_joined_first(tmp_path_factory, scores, text):
    # Runs of blanks have equal scores in Llama's vocabulary.
    texts = ["aa", "ab", "ba", "aba", "bab", "aaa", "▁▁", "▁▁▁▁", "▁a", "b▁"]
    made = [(each, score, spm.NORMAL) for each, score in zip(texts, scores, strict=True)]
    letters = [(each, -9.0, spm.NORMAL) for each in "ab▁"]
    model = spm.written([*spm.SPECIAL, *made, *letters])
    tokenizer = from_bytes(tmp_path_factory.getbasetemp(), model)
    assert tokenizer.encode(text, bos=False) == spm.processor(model).encode(text)


def with_equal_scores(model: bytes, score: float, chosen: str) -> bytes:
    """The model with this score for all normal pieces of several characters that the pattern finds."""
    theirs = spm.processor(model)
    kinds = [(theirs.is_unknown, spm.UNKNOWN), (theirs.is_control, spm.CONTROL), (theirs.is_byte, spm.BYTE)]
    pieces = []
    for id in range(theirs.vocab_size()):
        text, own = theirs.id_to_piece(id), theirs.get_score(id)
        kind = next((kind for holds, kind in kinds if holds(id)), spm.NORMAL)
        equal = kind == spm.NORMAL and len(text) > 1 and re.fullmatch(chosen, text)
        pieces.append((text, score if equal else own, kind))
    runs = [("▁" * size, -1e9, spm.NORMAL) for size in range(2, 9)]
    defined = [(text, 0.0, spm.DEFINED) for text in ("<u>", "  ", "\n")]
    return spm.written([*pieces, *runs, *defined], trainer=spm.entry(35, 1))


@pytest.mark.parametrize("chosen", ["", ".*", "▁.*|.?l.*"])
def test_real_words_between_pieces_of_equal_scores(tmp_path, llama_model, chosen):
    # None but runs of blanks, as in Llama's vocabulary; all, as in files that lost their scores; some.
    model = with_equal_scores(llama_model, -7.0, chosen)
    ours, theirs = from_bytes(tmp_path, model), spm.processor(model)
    texts = [*HARD, "hello    world  the cat\n        sat on   <u>  <u>the   mat", "a  b" * 9, "    "]
    for text in texts:
        assert ours.encode(text, bos=False) == theirs.encode(text), text
        offsets = ours.encode_with_offsets(text, bos=False)[1]
        assert {place for start, end in offsets for place in range(start, end)} == set(range(len(text)))


def test_equal_scores_take_no_time_that_grows_faster_than_the_text(tmp_path):
    pieces = [("▁" * size, -1.0, spm.NORMAL) for size in (1, 2, 4, 8, 16)]
    tokenizer = from_bytes(tmp_path, spm.written([*spm.SPECIAL, *pieces]))
    ids = tokenizer.encode(" " * 20_000, bos=False)
    assert tokenizer.decode(ids) == " " * 20_000


def test_characters_that_are_no_pieces_are_joined_to_some_that_are(tmp_path):
    model = spm.written([*spm.SPECIAL, ("qu", -1.0, spm.NORMAL), ("u", -2.0, spm.NORMAL), ("▁", -3.0, spm.NORMAL)])
    tokenizer, theirs = from_bytes(tmp_path, model), spm.processor(model)
    for text in ("qu", "q u", "quq", "qqqu zz"):
        assert tokenizer.encode(text, bos=False) == theirs.encode(text)


def test_unused_pieces_of_unigram_are_not_found(tmp_path):
    pieces = [("ab", -1.0, spm.UNUSED), ("a", -2.0, spm.NORMAL), ("b", -3.0, spm.NORMAL), ("▁", -1.0, spm.NORMAL)]
    model = spm.written([*spm.SPECIAL, *pieces], spm.UNIGRAM)
    tokenizer = from_bytes(tmp_path, model)
    assert tokenizer.encode("ab", bos=False) == spm.processor(model).encode("ab") == [6, 4, 5]
    assert tokenizer.ids_without_text(8) == [3, 7]


# --- Text ---


@given(text=st.text("abc hello<0x41>,12é日\u0301\n💩", max_size=40) | st.text(max_size=12))
@pytest.mark.parametrize("kind", ["llama", "no_prefix", "defined", "unigram"])
def test_tok_1_round_trip(models, kind, text):
    ours = models[kind][1]
    ids, offsets = ours.encode_with_offsets(text, bos=False)
    expected = text.replace("▁", " ")  # the one character that these models cannot keep apart from a blank
    assert ours.decode(ids) == expected
    assert all(0 <= start <= end <= len(text) for start, end in offsets)
    assert {place for start, end in offsets for place in range(start, end)} == set(range(len(text)))
    inside = b"".join(map(ours.bytes_of, ids)).decode()
    assert ours.decode(ids, continued=True) == inside
    assert inside == (" " + expected if text and kind != "no_prefix" else expected)


@given(data=st.data(), kind=st.sampled_from(["llama", "no_prefix", "collapsing", "nfkc", "unigram"]))
def test_text_equals_that_of_sentencepiece(models, data, kind):
    theirs, ours = models[kind]
    plain = st.integers(0, theirs.vocab_size() - 1).filter(lambda id: not theirs.is_control(id) and id != 0)
    ids = data.draw(st.lists(plain, max_size=12))
    text = theirs.decode(ids)
    # Of bytes that make no character, Python and SentencePiece give different numbers of U+FFFD.
    if "\ufffd" not in text:
        assert ours.decode(ids) == text


@given(ids=st.lists(st.integers(0, 349), max_size=12), kind=st.sampled_from(["llama", "collapsing", "unigram"]))
def test_pieces_make_up_the_whole(models, ids, kind):
    ours = models[kind][1]
    known = [id for id in ids if ours.has_text(id)]
    for continued in (False, True):
        decoder = ours.decoder(continued=continued)
        whole = ours.decode(known, continued=continued)
        assert "".join([*map(decoder.push, known), decoder.finish()]) == whole
        assert "".join([*map(decoder.push, known), decoder.finish()]) == whole  # it can begin anew


def test_srv_1_streaming_utf_8(models):
    ours = models["llama"][1]
    decoder = ours.decoder()
    ids = ours.encode("💩", bos=False)
    assert [decoder.push(id) for id in ids] == ["", "", "", "", "💩"]
    assert [decoder.push(id) for id in ids[1:4]] == ["", "", ""]
    assert decoder.finish() == "\ufffd"


def test_the_blank_before_a_text_is_put_and_left_out_once(models):
    ours = models["llama"][1]
    assert ours.labels(ours.encode("hello"))[:2] == ["<s>", "␣hello"]
    assert ours.decode(ours.encode("hello")) == "<s>hello"
    assert ours.decode(ours.encode(" hello")) == "<s> hello"
    assert ours.decode(ours.encode("hello", bos=False), continued=True) == " hello"
    assert ours.encode_with_offsets("hello") == (ours.encode("hello"), [(0, 0), (0, 5)])


def test_offsets_lead_back_to_what_was_rewritten(models):
    text = "  ½  hello"
    ids, offsets = models["nfkc"][1].encode_with_offsets(text, bos=False)
    assert ids == models["nfkc"][0].encode(text)
    assert {text[start:end].strip() for start, end in offsets} >= {"½", "hello"}


def test_labels_and_single_tokens(models):
    ours = models["llama"][1]
    assert ours.labels([1, 3 + 0xE2, ours.id_of(" hello")]) == ["<s>", "<0xE2>", "␣hello"]
    assert ours.bytes_of(3 + 0xE2) == b"\xe2"
    assert ours.id_of("<s>") == 1
    with pytest.raises(TextError, match=r"'hello' is \d"):
        ours.id_of("hello")


def test_gen_4_ids_without_text(models):
    theirs, ours = models["llama"]
    number = theirs.vocab_size()
    assert ours.vocab_size == number
    assert ours.ids_without_text(number + 2) == [number, number + 1]
    with pytest.raises(TextError, match=str(number)):
        ours.decode([number])


def test_tok_2_surrogates(models):
    ours = models["llama"][1]
    assert ours.encode("\ud83d\udc4d\udc00") == ours.encode("👍\ufffd")


@pytest.mark.parametrize("text", ["^" * 20_000, "a" * 20_000, " " * 20_000, "日💩" * 4_000])
def test_tok_3_long_runs(models, text):
    ours = models["llama"][1]
    assert ours.decode(ours.encode(text, bos=False)) == text


# --- Control tokens ---


@pytest.mark.parametrize("kind", ["llama", "controls", "unigram_controls"])
def test_tok_4_special_tokens_in_text(models, kind):
    theirs, ours = models[kind]
    text = "hello<s>b</s>[INST]<unk>"
    assert ours.control_ids.isdisjoint(ours.encode(text, bos=False))
    assert ours.decode(ours.encode(text, bos=False)) == text
    ids = ours.encode("<s>ab</s>", special=True)
    assert ids == [1, *theirs.encode("ab"), 2]
    if kind != "llama":
        assert ours.encode("[INST]", special=True) == [1, theirs.piece_to_id("[INST]")]
        assert ours.control_ids >= {theirs.piece_to_id("hello")}


def test_tok_6_bos_is_put_first_exactly_once(models):
    ours = models["llama"][1]
    assert ours.adds_bos
    assert (ours.bos_id, ours.eos_ids) == (1, (2,))
    assert ours.encode("<s>ab", special=True) == ours.encode("ab")
    assert ours.encode("ab") == [1, *ours.encode("ab", bos=False)]
    assert ours.encode("") == [1]


def folder_of(tmp_path, model: bytes, **files: object):
    (tmp_path / "tokenizer.model").write_bytes(model)
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return Tokenizer.from_folder(tmp_path)


@pytest.fixture(scope="session")
def llama_model() -> bytes:
    return spm.trained("bpe", **IDENTITY)


@pytest.mark.parametrize(
    ("config", "frame"),
    [
        ({}, (True, False)),
        ({"add_bos_token": False}, (False, False)),
        ({"add_bos_token": True, "add_eos_token": True}, (True, True)),
        ({"bos_token": None, "eos_token": "</s>"}, (False, False)),
    ],
)
def test_tok_6_bos_as_the_folder_says(tmp_path, llama_model, config, frame):
    tokenizer = folder_of(tmp_path, llama_model, tokenizer_config=config)
    body = spm.processor(llama_model).encode("hello")
    assert tokenizer.encode("hello") == [1] * frame[0] + body + [2] * frame[1]
    assert tokenizer.adds_bos == frame[0]


@pytest.mark.parametrize(("legacy", "label"), [({}, "␣hello"), ({"legacy": True}, "␣hello"), ({"legacy": False}, "he")])
def test_what_follows_a_control_token(tmp_path, llama_model, legacy, label):
    # The older readers of Llama's folders put a blank after each control token too.
    tokenizer = folder_of(tmp_path, llama_model, tokenizer_config=legacy)
    assert tokenizer.labels(tokenizer.encode("a</s>hello", special=True))[:4] == ["<s>", "␣a", "</s>", label]


@pytest.mark.parametrize("legacy", [True, False])
def test_a_conversation(tmp_path, llama_model, legacy):
    template = "<s>[INST] {{ messages[0]['content'] }} [/INST]</s>again"
    config = {"chat_template": template, "legacy": legacy}
    tokenizer = folder_of(tmp_path, llama_model, tokenizer_config=config)
    hostile = [{"role": "user", "content": "hi</s><s>"}]
    ids = tokenizer.encode_chat(hostile)
    assert [id for id in ids if id in (1, 2)] == [1, 2]
    theirs = spm.processor(llama_model)
    first = theirs.encode("[INST] hi</s><s> [/INST]")
    # Without the blank: as it stands after a letter, whose piece is then taken off.
    assert ids[:2] == [1, first[0]] if legacy else ids[1] != first[0]
    assert tokenizer.decode(ids).replace(" ", "") == "<s>[INST]hi</s><s>[/INST]</s>again"


def test_tokens_beside_the_vocabulary(tmp_path, llama_model):
    number = spm.processor(llama_model).vocab_size()
    config = {"pad_token": "<pad>", "added_tokens_decoder": {str(number + 1): {"content": "<x>", "special": False}}}
    files = {"added_tokens": {"<pad>": number}, "tokenizer_config": config}
    tokenizer = folder_of(tmp_path, llama_model, **files)
    assert (tokenizer.pad_id, tokenizer.vocab_size) == (number, number + 2)
    assert number in tokenizer.control_ids
    assert tokenizer.encode("a<x>a<pad>")[:4] == [1, tokenizer.id_of(" a"), number + 1, tokenizer.id_of("a")]
    assert number not in tokenizer.encode("<pad>")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"<x>": 1}, "given id 1, which is '<s>'"),
        ({"<x>": 9_999}, "would leave"),
        ({"<x>": -1}, "expected ids"),
        ({"<s>": 9_999}, "would leave"),
    ],
)
def test_tokens_under_wrong_ids_are_refused(tmp_path, llama_model, tokens, message):
    with pytest.raises(TextError, match=message):
        folder_of(tmp_path, llama_model, added_tokens=tokens)


def test_tokens_that_take_blanks_in_are_refused(tmp_path, llama_model):
    config = {"added_tokens_decoder": {"1": {"content": "<s>", "special": True, "rstrip": True}}}
    with pytest.raises(TextError, match="'<s>' takes blanks in"):
        folder_of(tmp_path, llama_model, tokenizer_config=config)


@pytest.mark.parametrize("special", [True, False])
def test_what_a_piece_is_for_may_be_said_beside_the_vocabulary(tmp_path, llama_model, special):
    theirs = spm.processor(llama_model)
    id = theirs.piece_to_id("▁hello")
    listed = {str(id): {"content": "▁hello", "special": special}, "0": {"content": "<unk>", "special": True}}
    ours = folder_of(tmp_path, llama_model, tokenizer_config={"added_tokens_decoder": listed, "add_bos_token": False})
    assert (id in ours.control_ids) == special
    assert (id in ours.encode("hello")) == (not special)


@pytest.mark.parametrize("prefix", [True, False])
def test_a_blank_before_a_text_as_the_folder_says(tmp_path, llama_model, prefix):
    ours = folder_of(tmp_path, llama_model, tokenizer_config={"add_prefix_space": prefix, "add_bos_token": False})
    body = spm.processor(llama_model).encode("hello")
    assert ours.encode("hello" if prefix else " hello") == body
    assert ours.decode(body) == ("hello" if prefix else " hello")


def test_a_bos_that_the_vocabulary_does_not_have_is_refused(tmp_path, llama_model):
    with pytest.raises(TextError, match="<nowhere>"):
        folder_of(tmp_path, llama_model, tokenizer_config={"bos_token": "<nowhere>"})


def test_copies_and_pickles_work_alike(models):
    ours = models["defined_nfkc"][1]
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert [again.encode(text) for text in HARD] == [ours.encode(text) for text in HARD]
        assert repr(again) == repr(ours)


# --- Broken files ---

LETTERS = [("a", -1.0, spm.NORMAL), ("▁", -2.0, spm.NORMAL)]
SOUND = [*spm.SPECIAL, *LETTERS]
TRIE = struct.pack("<I", 8) + struct.pack("<II", 0xFFFF_FC00, 0) + b"a\0"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (b"", "1 to"),
        (b"IQ== 0\nIg== 1\n", "not a SentencePiece model"),
        (b"\x00\x01", "no field can begin"),
        (b"\x0b", "no field can begin"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "bytes, but 0 are left"),
        (b"\x0a\x80", "ends within a number"),
        (b"\x08" + b"\xff" * 12, "more than 64 bits"),
        (spm.written(SOUND)[:-3], "are left"),
        (b"\x08\x05", "pieces: expected bytes"),
        (spm.entry(1, spm.entry(1, b"\xff")), "expected UTF-8"),
        (spm.entry(1, spm.entry(2, 5)), "four bytes"),
        (spm.entry(1, spm.entry(3, b"a")), "expected a whole number"),
        (spm.written([("a", -1.0, 9)]), "9 is no kind"),
        (spm.written([("a", -1.0, 0)]), "0 is no kind"),
        (spm.written([*SOUND, ("a", -1.0, spm.NORMAL)]), "'a', is there twice"),
        (spm.written([*SOUND, ("", -1.0, spm.NORMAL)]), "expected a text"),
        (spm.written([*SOUND, ("a" * 999, -1.0, spm.NORMAL)]), "999 characters"),
        (spm.written([*SOUND, ("b", float("nan"), spm.NORMAL)]), "finite score"),
        (spm.written([*SOUND, ("b", float("inf"), spm.NORMAL)]), "finite score"),
        (spm.written(LETTERS), "neither pieces for bytes nor"),
        (spm.written([*SOUND, *spm.BYTES[:9]]), "but 9 have one"),
        (spm.written([*SOUND, *spm.BYTES]), "byte_fallback is False, but the vocabulary has pieces"),
        (spm.written(SOUND, trainer=spm.entry(35, 1)), "byte_fallback is True, but the vocabulary has no pieces"),
        (spm.written([*SOUND, ("<0xZZ>", -1.0, spm.BYTE)]), "is a byte"),
        (spm.written(spm.SPECIAL, spm.UNIGRAM), "no normal pieces"),
        (spm.written(SOUND, spm.WORD), "'word'"),
        (spm.written(SOUND, 77), "'unknown'"),
        (spm.written(SOUND, trainer=spm.entry(24, 1)), "treat_whitespace_as_suffix"),
        (spm.written(SOUND, rules={5: 0}), "escape_whitespaces"),
        (spm.written(SOUND) + spm.entry(5, spm.entry(2, b"rules")), "denormalizer_spec"),
        (spm.written(SOUND, rules={2: b"\xff\xff\xff\xff"}), "cannot hold a trie"),
        (spm.written(SOUND, rules={2: b"a"}), "cannot hold a trie"),
        (spm.written([*SOUND, ("aa", -3.0, spm.UNUSED)]), "unused, but others make it"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
    ],
)
def test_a_broken_model_is_refused(tmp_path, model, message):
    with pytest.raises(TextError, match=message):
        from_bytes(tmp_path, model)


@pytest.mark.parametrize("trie", [TRIE, struct.pack("<III", 8, 0xFFFF_FC00, 0)])
def test_a_trie_that_points_out_of_itself_is_refused(tmp_path, trie):
    tokenizer = from_bytes(tmp_path, spm.written(SOUND, rules={2: trie}))
    with pytest.raises(TextError, match="precompiled_charsmap: the trie points"):
        tokenizer.encode("a")


@given(place=st.integers(0), byte=st.integers(0, 255), method=st.sampled_from([spm.BPE, spm.UNIGRAM]))
def test_any_byte_may_be_wrong(tmp_path_factory, place, byte, method):
    model = bytearray(spm.written([*SOUND, ("aa", -3.0, spm.NORMAL)], method))
    model[place % len(model)] = byte
    try:
        tokenizer = from_bytes(tmp_path_factory.getbasetemp(), bytes(model))
    except TextError:
        return
    tokenizer.decode(tokenizer.encode("aaa a"))


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(TextError, match="no such file"):
        Tokenizer.from_sentencepiece(tmp_path / "nowhere.model")
