"""GPT-2's vocabulary: the cases that people reported, an independent BPE, and properties of any text."""

import copy
import json
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pellucid.text import TextError, Tokenizer

CONTROL = "<|endoftext|>"
PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
TEXTS = st.text(st.characters(exclude_categories=[]), max_size=60) | st.text(
    "ab '’<|>\n\t éß💩\u0301한1²٣\u00a0\ufffd", max_size=60
)

HARD = [
    "",
    " ",
    "  \n \t\n\n x",
    "I'll say she's HE'S won't 'tis",
    "tab\tand\x0bvertical\x0cfeed\r\nend\r",
    "naïve café e\u0301 Å ﬁ ǅ",
    "1234567 3.14 ²³ ٣٤ Ⅷ ½",
    "日本語の文章、한국어 텍스트 — ไทย",
    "👩‍👩‍👧‍👦🏳️‍🌈 \u200b\u200d\ufeff",
    "x=y+=z!=w; // ======> <tag attr='v'>",
    "a\u00a0b\u2003c\u3000d\u0085e\u2028f",
    "\x00\x01\x1f\x7f\x80\xad\xa0",
    "trailing   ",
    "\n",
    "<|endoftext|> <|endoftext>|> <|ENDOFTEXT|>",
    "\U0010ffff\U000e0001 \ue000 \ufffe",
]


@pytest.fixture(scope="session")
def oracle(gpt2_files, byte_bpe):
    encoder, merges = gpt2_files
    lines = merges.read_text(encoding="utf-8").split("\n")[1:-1]
    return byte_bpe(json.loads(encoder.read_text(encoding="utf-8")), lines, [PATTERN])


@pytest.mark.parametrize("text", HARD)
def test_ids_equal_an_independent_bpe(gpt2, oracle, text):
    assert gpt2.encode(text) == oracle.encode(text)


@given(text=st.text(st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs", "Cn"]), max_size=40))
def test_ids_of_any_text_equal_an_independent_bpe(gpt2, oracle, text):
    assert gpt2.encode(text) == oracle.encode(text)


# --- Cases ---


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("y is ?", [88, 318, 5633]),
        ("the word 'social'", [1169, 1573, 705, 14557, 6]),
        ("x != y and a.b == c", [87, 14512, 331, 290, 257, 13, 65, 6624, 269]),
        (" !", [5145]),
        (" .", [764]),
        (" ,", [837]),
    ],
)
def test_tok_1_round_trip(gpt2, text, ids):
    assert gpt2.encode(text) == ids
    assert gpt2.decode(ids) == text


@pytest.mark.parametrize(("text", "ids"), [("\udbc0", [4210]), ("\ud83d\udc4d", [41840, 235]), ("👍", [41840, 235])])
def test_tok_2_surrogates(gpt2, text, ids):
    assert gpt2.encode(text) == ids
    assert gpt2.encode(text, special=True) == ids
    assert gpt2.encode_with_offsets(text)[0] == ids


def test_tok_2_surrogates_in_id_of(gpt2):
    assert gpt2.id_of("\udc00") == 4210


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("^" * 10**6, 250_000),
        ("a" * 10**5, 25_000),
        (" " * 10**5, 100_000),
        ("\n" * 10**4, 5_000),
        ("=~" * 50_000, 25_000),
    ],
    ids=["carets", "letters", "blanks", "newlines", "signs"],
)
def test_tok_3_long_runs(gpt2, text, number):
    ids = gpt2.encode(text)
    assert len(ids) == number
    assert gpt2.decode(ids) == text


def test_tok_4_special_tokens_in_text(gpt2):
    between = f"a{CONTROL}b"
    assert gpt2.encode(CONTROL) == [27, 91, 437, 1659, 5239, 91, 29]
    assert gpt2.encode(between) == [64, 27, 91, 437, 1659, 5239, 91, 29, 65]
    assert gpt2.encode(CONTROL, special=True) == [50256]
    assert gpt2.encode(between, special=True) == [64, 50256, 65]
    assert gpt2.decode([64, 50256, 65]) == between


def test_tok_4_special_tokens_in_a_long_text(gpt2):
    # Long texts take another way through the library.
    text = ("word " * 4 + CONTROL) * 5_000
    assert 50256 not in gpt2.encode(text)
    assert gpt2.encode(text, special=True).count(50256) == 5_000
    assert gpt2.encode(text) == gpt2.encode_with_offsets(text)[0]


def test_tok_5_offsets(gpt2):
    assert gpt2.encode_with_offsets("i ⭢ j") == (
        [72, 2343, 255, 95, 474],
        [(0, 1), (1, 3), (2, 3), (2, 3), (3, 5)],
    )
    ids, offsets = gpt2.encode_with_offsets("💩💩")
    assert len(ids) == 6
    assert [start for start, _ in offsets] == [0, 0, 0, 1, 1, 1]


def test_tok_5_offsets_count_characters_of_the_text_given():
    # A pair of surrogates is two characters of the text, though it is encoded as one.
    text = "\ud83d\udc4d!\ud83d\udc4d\udc00?"
    source = json.dumps({"model": {"type": "BPE", "vocab": {c: i for i, c in enumerate("👍!\ufffd?")}, "merges": []}})
    _, offsets = Tokenizer.from_json(source).encode_with_offsets(text)
    assert [text[start:end] for start, end in offsets] == ["\ud83d\udc4d", "!", "\ud83d\udc4d", "\udc00", "?"]


def test_gen_4_padded_vocabulary(gpt2):
    assert gpt2.vocab_size == 50257
    assert gpt2.ids_without_text(50304) == list(range(50257, 50304))
    assert gpt2.has_text(50256)
    assert not gpt2.has_text(50300)
    with pytest.raises(TextError, match="50300"):
        gpt2.decode([50300])
    with pytest.raises(TextError, match="50300"):
        gpt2.decoder().push(50300)
    with pytest.raises(TextError, match="-1"):
        gpt2.decode([-1])
    assert gpt2.labels([11, 50300]) == [",", "<id 50300>"]


def test_gen_5_empty_prompt(gpt2):
    assert gpt2.encode("") == []
    assert gpt2.bos_id == 50256
    assert gpt2.encode("", bos=True) == [50256]
    assert gpt2.decode([]) == ""


@pytest.mark.parametrize(
    ("ids", "pieces", "rest"),
    [
        ([8582, 240, 102], ["", "", "💩"], ""),
        ([8582, 240], ["", ""], "\ufffd"),
        ([4210], ["\ufffd"], ""),
        ([166, 116, 108], ["", "", "기"], ""),
        ([8582, 64], ["", "\ufffda"], ""),
    ],
)
def test_srv_1_streaming_utf_8(gpt2, ids, pieces, rest):
    decoder = gpt2.decoder()
    assert [decoder.push(id) for id in ids] == pieces
    assert decoder.finish() == rest
    assert "".join(pieces) + rest == gpt2.decode(ids)


# --- Properties ---


def joined(text: str) -> str:
    """Pairs of surrogates joined, lone ones replaced, character by character."""
    out, rest = "", list(text)
    while rest:
        first = rest.pop(0)
        if "\ud800" <= first <= "\udbff" and rest and "\udc00" <= rest[0] <= "\udfff":
            out += chr(0x10000 + ((ord(first) - 0xD800) << 10) + ord(rest.pop(0)) - 0xDC00)
        else:
            out += "\ufffd" if "\ud800" <= first <= "\udfff" else first
    return out


@given(text=TEXTS)
@example(text="\ud800\ud800\udc00\udc00")
def test_decoding_gives_the_text_back(gpt2, text):
    assert gpt2.decode(gpt2.encode(text)) == joined(text)
    assert gpt2.decode(gpt2.encode(text, special=True)) == joined(text)


@given(text=TEXTS)
def test_no_text_becomes_a_control_token(gpt2, text):
    assert gpt2.control_ids.isdisjoint(gpt2.encode(f"{text}{CONTROL}{text}"))


@given(text=TEXTS)
def test_offsets_cover_the_text(gpt2, text):
    ids, offsets = gpt2.encode_with_offsets(text)
    assert ids == gpt2.encode(text)
    assert all(0 <= start < end <= len(text) for start, end in offsets)
    assert {place for start, end in offsets for place in range(start, end)} == set(range(len(text)))


@given(ids=st.lists(st.integers(0, 50256) | st.sampled_from([8582, 240, 102, 4210, 50256, 166, 116])))
def test_pieces_make_up_the_whole(gpt2, ids):
    decoder = gpt2.decoder()
    whole = gpt2.decode(ids)
    assert "".join([*map(decoder.push, ids), decoder.finish()]) == whole
    assert "".join([*map(decoder.push, ids), decoder.finish()]) == whole  # it can begin anew
    assert b"".join(map(gpt2.bytes_of, ids)).decode("utf-8", "replace") == whole


# --- Single tokens ---


def test_bytes_of_one_token(gpt2):
    assert [gpt2.bytes_of(id) for id in (2343, 255, 50256)] == [b" \xe2", b"\xad", CONTROL.encode()]


def test_labels_are_printable(gpt2):
    ids = gpt2.encode(" Paris\n\t\r\x00 ⭢\u200b")
    labels = gpt2.labels(ids)
    assert labels[:2] == ["␣Paris", "⏎"]
    assert "".join(labels) == "␣Paris⏎⇥␍<U+0000>␣<0xE2><0xAD><0xA2><U+200B>"
    some = gpt2.labels(range(0, 50257, 11))
    assert all(label and label.isprintable() and " " not in label for label in some)


def test_id_of_a_single_token(gpt2):
    assert gpt2.id_of(" Paris") == 6342
    assert gpt2.id_of(CONTROL) == 50256
    with pytest.raises(TextError, match=r"' Parisian' is 2: '␣Paris' 'ian'"):
        gpt2.id_of(" Parisian")
    with pytest.raises(TextError, match="is 0: nothing"):
        gpt2.id_of("")


# --- One object ---


def test_copies_and_pickles_work_alike(gpt2):
    text = f"hello{CONTROL} ⭢"
    assert copy.deepcopy(gpt2).encode(text) == gpt2.encode(text)
    again = pickle.loads(pickle.dumps(gpt2))
    assert again.encode(text) == gpt2.encode(text)
    assert again.encode(text, special=True) == gpt2.encode(text, special=True)
    assert (again.bos_id, again.eos_ids, again.vocab_size) == (50256, (50256,), 50257)
    assert repr(again) == repr(gpt2) == "Tokenizer(50257 tokens, bos 50256, eos [50256])"
