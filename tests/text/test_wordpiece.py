"""BERT's kind of tokenizer, out of vocab.txt, tokenizer.json and GGUF metadata, held against Hugging Face."""

import copy
import json
import pickle

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizer

from pellucid.text import TextError, Tokenizer

SPECIALS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIGNS = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~…“”’、。₹")
LETTERS = list("abcdefghijklmnopqrstuvwxyz0123456789ABCDEFßéüñøœŋд日本語東京한국ກ²½")
WORDS = [
    "hello",
    "world",
    "paris",
    "is",
    "the",
    "of",
    "france",
    "un",
    "it",
    "cafe",
    "naive",
    "20",
    "don",
    "Hello",
    "ÉT",
]
PIECES = ["##s", "##aff", "##able", "##ing", "##able", "##llo", "##t", "##é"]
VOCABULARY = list(dict.fromkeys([*SPECIALS, *SIGNS, *LETTERS, *(f"##{each}" for each in LETTERS), *WORDS, *PIECES]))

HARD = [
    "",
    " ",
    "\t\n  ",
    "Hello, world!",
    "hello[SEP]world [MASK]. [mask]",
    "[CLS] hello",
    "Unaffable UNAFFABLE",
    "Café CAFÉ cafe\u0301 naïve Ñandú øre œuvre ŋ ß ẞ İI",
    "don't it's 'tis he'll",
    "东京 日本語テキスト 東京都 한국어 ข้อความ",
    "日本hello語",
    "a\u00a0b\u3000c\u2003d\u200be\u00adf\ufeffg\x00h\ufffdi\x7fj",
    "tab\tnew\nline\r\nend",
    "x" * 100 + " " + "y" * 101,
    "3.14 1,000 $5 ₹20 50% a_b c^d `e` ~ <s> …“quoted”",
    "💩 👩‍👧 🏳️‍🌈",
    "e\u0301\u0323 a\u0300\u0301 \u0301 x",
    "²½ Ⅷ ﬁ",
    "##ing ## # #hello",
    "hello" * 40,
]
TEXTS = st.text("hello wrdéÉ\u0301ß日한'.,-#[]\t\n\u00a0\x00💩A1", max_size=40) | st.text(max_size=20)


def folder_of(path, config: dict[str, object], vocabulary: list[str] | None = None):
    (path / "vocab.txt").write_text("\n".join([*(vocabulary or VOCABULARY), ""]), encoding="utf-8")
    if config:
        (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


CONFIGS = {
    "as_it_is": {},
    "cased": {"do_lower_case": False},
    "accents": {"do_lower_case": True, "strip_accents": False},
    "cased_without_accents": {"do_lower_case": False, "strip_accents": True},
    "chinese_words": {"tokenize_chinese_chars": False},
    "named": {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "unk", "pad", "mask")},
}


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """By config: Hugging Face's tokenizer and ours, of the same folder."""
    found = {}
    for name, config in CONFIGS.items():
        folder = folder_of(tmp_path_factory.mktemp(name), {**config, "tokenizer_class": "BertTokenizer"})
        found[name] = BertTokenizer.from_pretrained(folder), Tokenizer.from_folder(folder)
    return found


@pytest.fixture(scope="session")
def bert(pairs) -> Tokenizer:
    return pairs["as_it_is"][1]


# --- Ids ---


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("text", HARD)
def test_ids_equal_those_of_hugging_face(pairs, name, text):
    theirs, ours = pairs[name]
    assert ours.encode(text, special=True) == theirs(text).input_ids


@given(text=TEXTS, name=st.sampled_from(list(CONFIGS)))
def test_ids_of_any_text_equal_those_of_hugging_face(pairs, text, name):
    theirs, ours = pairs[name]
    assert ours.encode(text, special=True) == theirs(text).input_ids


@given(first=TEXTS, second=TEXTS)
def test_two_texts_equal_those_of_hugging_face(pairs, first, second):
    theirs, ours = pairs["as_it_is"]
    both = theirs.backend_tokenizer.encode(first, second)
    assert ours.encode_pair(first, second, special=True) == (both.ids, both.type_ids)


def test_two_texts_are_joined(bert):
    ids, types = bert.encode_pair("Hello", "world [SEP]!")
    labels = ["[CLS]", "hello", "[SEP]", "world", "[", "s", "##e", "##p", "]", "!", "[SEP]"]
    assert bert.labels(ids) == labels
    assert types == [0] * 3 + [1] * 8


@pytest.mark.parametrize("config", [{}, {"tokenizer_class": "BertTokenizer", "do_lower_case": False}])
def test_a_saved_tokenizer_json_gives_the_same(tmp_path, config):
    folder = folder_of(tmp_path, config)
    parts = Tokenizer.from_folder(folder)
    (tmp_path / "saved").mkdir()
    BertTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    whole = Tokenizer.from_folder(tmp_path / "saved")
    alone = Tokenizer.from_json(tmp_path / "saved" / "tokenizer.json")
    for text in HARD:
        assert parts.encode(text) == whole.encode(text) == alone.encode(text)
        assert parts.encode_pair(text, "x") == whole.encode_pair(text, "x")
    for other in (whole, alone):
        found = (other.cls_id, other.sep_id, other.mask_id, other.pad_id)
        assert found == (parts.cls_id, parts.sep_id, parts.mask_id, parts.pad_id)


def test_roberta_joins_two_texts(tmp_path):
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "<mask>": 3}, "a"))
    library.add_special_tokens(["<s>", "</s>", "<mask>"])
    library.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    ours, both = Tokenizer.from_json(library.to_str()), library.encode("a", "a")
    assert ours.encode_pair("a", "a") == (both.ids, both.type_ids)
    assert ours.mask_id == 3


def test_two_texts_where_no_way_is_known_are_refused(gpt2):
    with pytest.raises(TextError, match="does not say how two texts are joined"):
        gpt2.encode_pair("a", "b")


# --- Special tokens ---


def test_tokens_with_a_task(bert):
    names = [VOCABULARY.index(name) for name in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")]
    assert [bert.cls_id, bert.sep_id, bert.mask_id, bert.pad_id] == names
    assert (bert.bos_id, bert.eos_ids, bert.adds_bos) == (None, (), False)
    assert bert.control_ids == {VOCABULARY.index(name) for name in SPECIALS if name != "[unused0]"}


def test_tok_4_special_tokens_in_text(bert):
    text = "Paris is the [MASK] of France."
    plain, found = bert.encode(text), bert.encode(text, special=True)
    assert bert.mask_id not in plain
    assert bert.labels(found) == ["[CLS]", "paris", "is", "the", "[MASK]", "of", "france", ".", "[SEP]"]
    assert bert.encode("[SEP]")[1:-1] == bert.encode("[ sep ]")[1:-1]


@pytest.mark.parametrize("bos", [None, True, False])
def test_tok_6_a_tokenizer_without_bos_keeps_its_own_frame(bert, bos):
    assert bert.labels(bert.encode("hello world!", bos=bos)) == ["[CLS]", "hello", "world", "!", "[SEP]"]


@given(text=TEXTS)
def test_no_text_becomes_a_control_token(bert, text):
    ids = bert.encode(f"{text}[SEP]{text}[MASK]")[1:-1]
    assert bert.control_ids.isdisjoint(set(ids) - {VOCABULARY.index("[UNK]")})


# --- Text ---


@given(ids=st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=12))
def test_pieces_make_up_the_whole(pairs, ids):
    theirs, ours = pairs["as_it_is"]
    whole = ours.decode(ids)
    assert whole == theirs.backend_tokenizer.decode(ids, skip_special_tokens=False)
    decoder = ours.decoder()
    assert "".join([*map(decoder.push, ids), decoder.finish()]) == whole
    assert "".join([*map(decoder.push, ids), decoder.finish()]) == whole  # it can begin anew
    # What goes on with a text is that text's rest.
    for n in range(1, len(ids), 4):
        assert ours.decode(ids[:n]) + ours.decode(ids[n:], continued=True) == whole


def test_text_and_labels_of_words(bert):
    ids = bert.encode("Unaffable, café.")
    assert bert.decode(ids[1:-1]) == "unaffable, cafe."
    assert bert.labels(ids) == ["[CLS]", "un", "##aff", "##able", ",", "cafe", ".", "[SEP]"]
    assert [bert.bytes_of(id) for id in ids[1:3]] == [b"un", b"aff"]
    assert bert.bytes_of(bert.mask_id) == b"[MASK]"
    assert bert.id_of("##able") == ids[3]
    assert bert.id_of("hello") == bert.id_of("Hello")
    assert bert.id_of("[MASK]") == bert.mask_id
    with pytest.raises(TextError, match="'##able'"):
        bert.id_of("unaffable")


@given(text=TEXTS)
def test_tok_5_offsets(pairs, text):
    theirs, ours = pairs["as_it_is"]
    ids, offsets = ours.encode_with_offsets(text, special=True)
    assert ids == ours.encode(text, special=True)
    assert offsets[1:-1] == theirs(text, return_offsets_mapping=True).offset_mapping[1:-1]
    assert (offsets[0], offsets[-1]) == ((0, 0), (len(text), len(text)))


def test_copies_and_pickles_work_alike(bert):
    for again in (copy.deepcopy(bert), pickle.loads(pickle.dumps(bert))):
        assert [again.encode(text) for text in HARD] == [bert.encode(text) for text in HARD]
        assert again.decode(again.encode("don't")) == bert.decode(bert.encode("don't"))
        assert again.mask_id == bert.mask_id


# --- GGUF ---


@pytest.fixture(scope="session")
def metadata() -> dict[str, object]:
    """The same vocabulary as llama.cpp's converter writes it: "▁" where a word begins, nothing where one goes on."""

    def phantom(token: str) -> str:
        if token.startswith("[") and token.endswith("]"):
            return token
        return token[2:] if token.startswith("##") else "▁" + token

    key = "tokenizer.ggml."
    ids = {
        "bos": "[CLS]",
        "eos": "[SEP]",
        "seperator": "[SEP]",
        "unknown": "[UNK]",
        "padding": "[PAD]",
        "mask": "[MASK]",
    }
    return {
        f"{key}model": "bert",
        f"{key}tokens": [phantom(token) for token in VOCABULARY],
        f"{key}token_type": [3 if token in SPECIALS and "unused" not in token else 1 for token in VOCABULARY],
        **{f"{key}{name}_token_id": VOCABULARY.index(token) for name, token in ids.items()},
        f"{key}add_bos_token": True,
        f"{key}add_eos_token": True,
        f"{key}add_sep_token": False,
    }


def test_gguf_gives_the_same(metadata, bert):
    found = Tokenizer.from_gguf(metadata)
    for text in HARD:
        assert found.encode(text) == bert.encode(text)
        assert found.encode(text, special=True) == bert.encode(text, special=True)
        assert found.encode_pair(text, "x") == bert.encode_pair(text, "x")
        assert found.decode(found.encode(text)) == bert.decode(bert.encode(text))
    assert found.labels(range(len(VOCABULARY))) == bert.labels(range(len(VOCABULARY)))
    assert (found.cls_id, found.sep_id, found.mask_id, found.pad_id) == (
        bert.cls_id, bert.sep_id, bert.mask_id, bert.pad_id
    )  # fmt: skip
    assert (found.bos_id, found.eos_ids) == (None, ())


@pytest.mark.parametrize(
    ("flags", "labels"),
    [
        ({"add_bos_token": False}, ["hello", "[SEP]"]),
        ({"add_eos_token": False}, ["[CLS]", "hello"]),
        ({"add_bos_token": None, "add_eos_token": None}, ["[CLS]", "hello", "[SEP]"]),
    ],
)
def test_gguf_frames_as_its_flags_say(metadata, flags, labels):
    changed = {f"tokenizer.ggml.{key}": value for key, value in flags.items()}
    found = Tokenizer.from_gguf({**metadata, **changed})
    assert found.labels(found.encode("hello")) == labels


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("unknown_token_id", None, "needs unknown_token_id"),
        ("seperator_token_id", None, "needs unknown_token_id"),
        ("bos_token_id", None, "needs unknown_token_id"),
        ("mask_token_id", 9_999, "9999"),
        ("tokens", ["▁a", "▁a"], "token_type: expected 2"),
        ("add_eos_token", 3, "expected true or false"),
    ],
)
def test_broken_metadata_is_refused(metadata, key, value, message):
    with pytest.raises(TextError, match=message):
        Tokenizer.from_gguf({**metadata, f"tokenizer.ggml.{key}": value})


def test_two_tokens_that_become_one_are_refused(metadata):
    tokens = [*metadata["tokenizer.ggml.tokens"][:-1], "▁hello"]
    with pytest.raises(TextError, match="'hello' is there twice"):
        Tokenizer.from_gguf({**metadata, "tokenizer.ggml.tokens": tokens})


# --- Broken folders ---


@pytest.mark.parametrize(
    ("config", "vocabulary", "message"),
    [
        ({"tokenizer_class": "OddTokenizer"}, None, "OddTokenizer"),
        ({"do_basic_tokenize": False}, None, "do_basic_tokenize is false"),
        ({"do_lower_case": "yes"}, None, "do_lower_case: expected true or false"),
        ({"unk_token": "[NONE]"}, None, "'\\[NONE\\]', which the vocabulary does not have"),
        ({"unk_token": 3}, None, "unk_token: expected the text"),
        ({}, ["hello"], r"'\[UNK\]', which the vocabulary does not have"),
        ({}, [*VOCABULARY, "hello"], "'hello' is there twice"),
        ({}, [*VOCABULARY, "", ""], "'' is there twice"),
    ],
)
def test_a_broken_folder_is_refused(tmp_path, config, vocabulary, message):
    with pytest.raises(TextError, match=message):
        Tokenizer.from_folder(folder_of(tmp_path, config, vocabulary))


def test_lines_may_end_as_on_windows(tmp_path, bert):
    (tmp_path / "vocab.txt").write_bytes("\r\n".join([*VOCABULARY, ""]).encode())
    assert Tokenizer.from_folder(tmp_path).encode("hello world") == bert.encode("hello world")


def test_other_classes_of_the_same_kind(tmp_path, bert):
    folder = folder_of(tmp_path, {"tokenizer_class": "DistilBertTokenizerFast"})
    assert Tokenizer.from_folder(folder).encode("hello") == bert.encode("hello")
    assert AutoTokenizer.from_pretrained(folder)("hello").input_ids == bert.encode("hello")
