"""Tokenizers out of GGUF metadata: SmolLM2's against llama.cpp's rule, every rule by name, and broken files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spm
from pellucid.text import TextError, Tokenizer

# The rules as llama.cpp's src/llama-vocab.cpp writes them.
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"""
LLAMA3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
RULES = {
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "llama-bpe": [LLAMA3],
    "dbrx": [LLAMA3],
    "qwen2": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "qwen35": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "seed-coder": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
        r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
    "viking": [r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"],
}

HARD = [
    "a  1",
    "a  1  b12 345\n\n 6",
    "I'LL say she's HE'S won't 'tis 'Re",
    "price: $1,234.56 (+7%) ^^ `x` ~~ <=> |",
    "tab\t\tand\r\n\r\n  indented\n    code = {'k': [1, 2]}  # end  ",
    "naïve e\u0301a\u0300 ½²٣ Ⅷ10",
    "日本語 テキスト、한국어 12 мир",
    "👩‍👧 \u200b\u00a0\u2003x",
    "==>>--..!!??  …",
    " ",
    "   ",
    "\n",
]


def gguf_of(gpt2_files, pre: str | None) -> dict[str, object]:
    """GPT-2's vocabulary as metadata that names a rule."""
    encoder, merges = (path.read_text(encoding="utf-8") for path in gpt2_files)
    vocabulary = json.loads(encoder)
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": sorted(vocabulary, key=vocabulary.__getitem__),
        "tokenizer.ggml.token_type": [1] * 50256 + [3],
        "tokenizer.ggml.merges": merges.split("\n")[1:-1],
    }
    return metadata if pre is None else {**metadata, "tokenizer.ggml.pre": pre}


@pytest.fixture(scope="session")
def smollm2_oracle(smollm2_metadata, byte_bpe):
    tokens = smollm2_metadata["tokenizer.ggml.tokens"]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    return byte_bpe(vocabulary, smollm2_metadata["tokenizer.ggml.merges"], RULES["smollm"])


@pytest.mark.parametrize("text", HARD)
def test_smollm2_follows_llama_cpp(smollm2, smollm2_oracle, text):
    assert smollm2.encode(text) == smollm2_oracle.encode(text)


@given(text=st.text("ab Z'’s\n\r\t 01½éß한日💩\u0301\u00a0.,!", max_size=40))
def test_smollm2_follows_llama_cpp_on_any_text(smollm2, smollm2_oracle, text):
    assert smollm2.encode(text) == smollm2_oracle.encode(text)
    assert smollm2.decode(smollm2.encode(text)) == text


def test_smollm2_cuts_digits_first(smollm2, gpt2):
    labels = smollm2.labels(smollm2.encode("a  1 23"))
    assert labels == ["a", "␣␣", "1", "␣", "2", "3"]
    assert gpt2.labels(gpt2.encode("a  1 23")) == ["a", "␣", "␣1", "␣23"]


def test_smollm2_says_what_it_is(smollm2):
    assert (smollm2.vocab_size, smollm2.bos_id, smollm2.eos_ids, smollm2.pad_id) == (49152, 1, (2,), 2)
    assert not smollm2.adds_bos
    assert smollm2.control_ids == set(range(17))
    assert smollm2.ids_without_text(49152) == []
    assert smollm2.encode("<|im_start|>", special=True) == [1]
    assert smollm2.control_ids.isdisjoint(smollm2.encode("<|im_start|><file_sep>"))


def test_text_that_a_vocabulary_cannot_write_is_refused(smollm2):
    # SmolLM2 has no token for this byte; the library would leave it out without a word.
    with pytest.raises(TextError, match=r"'\\x04', character 2"):
        smollm2.encode("ab\x04")


@pytest.mark.parametrize("pre", RULES)
def test_every_rule_follows_llama_cpp(gpt2_files, byte_bpe, pre):
    metadata = gguf_of(gpt2_files, pre)
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    oracle = byte_bpe({token: id for id, token in enumerate(tokens)}, merges, RULES[pre])
    tokenizer = Tokenizer.from_gguf(metadata)
    for text in HARD:
        assert tokenizer.encode(text) == oracle.encode(text), text
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_file_that_names_no_rule_has_the_default_one(gpt2_files):
    named, unnamed = (Tokenizer.from_gguf(gguf_of(gpt2_files, pre)) for pre in ("default", None))
    assert [named.encode(text) for text in HARD] == [unnamed.encode(text) for text in HARD]


def test_words_that_are_tokens_skip_the_merges(tiny_metadata):
    # " hell" is a token that no merge makes: only rules that look whole words up find it.
    tokens = [*tiny_metadata["tokenizer.ggml.tokens"], "Ġhell"]
    metadata = {**tiny_metadata, "tokenizer.ggml.tokens": tokens}
    metadata["tokenizer.ggml.token_type"] = [*tiny_metadata["tokenizer.ggml.token_type"], 1]
    for pre, labels in {"gpt-2": ["␣", "hell"], "llama-bpe": ["␣hell"]}.items():
        tokenizer = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.pre": pre})
        assert tokenizer.labels(tokenizer.encode(" hell", bos=False)) == labels


def test_kinds_of_tokens(tiny_metadata):
    tokenizer = Tokenizer.from_gguf(tiny_metadata)
    assert tokenizer.control_ids == {261, 262, 263, 264}
    # What users defined is found in any text, and its text is no alphabet of bytes.
    assert tokenizer.encode("<é>") == [265]
    assert tokenizer.decode([265]) == "<é>"
    # What only fills up has no text.
    assert tokenizer.ids_without_text(270) == [266, 267, 268, 269]
    with pytest.raises(TextError, match="266"):
        tokenizer.decode([266])


def test_a_control_token_that_is_a_whole_word_stays_out_of_plain_text(tiny_metadata):
    # Under a rule that looks whole words up, the model itself would find it.
    tokens = [*tiny_metadata["tokenizer.ggml.tokens"], "stop"]
    kinds = [*tiny_metadata["tokenizer.ggml.token_type"], 3]
    tokenizer = Tokenizer.from_gguf({
        **tiny_metadata, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.pre": "llama3",
    })  # fmt: skip
    text = "stop\nstop stop"
    ids, offsets = tokenizer.encode_with_offsets(text, bos=False)
    assert tokenizer.control_ids.isdisjoint(ids)
    assert tokenizer.decode(ids) == text
    assert "".join(text[start:end] for start, end in offsets) == text
    long = text * 5_000
    assert tokenizer.decode(tokenizer.encode(long, bos=False)) == long
    assert tokenizer.control_ids.isdisjoint(tokenizer.encode(long, bos=False))
    assert tokenizer.encode("stop", special=True, bos=False) == [267]


def test_ends_of_texts_turns_and_messages(tiny_metadata):
    more = {"tokenizer.ggml.eot_token_id": 264, "tokenizer.ggml.eos_token_ids": [262, 263]}
    assert Tokenizer.from_gguf({**tiny_metadata, **more}).eos_ids == (262, 263, 264)
    assert Tokenizer.from_gguf({**tiny_metadata, "tokenizer.ggml.eos_token_id": [264, 262]}).eos_ids == (264, 262)


def test_tokens_with_a_task_are_control_tokens_whatever_their_kind(tiny_metadata):
    metadata = {key: value for key, value in tiny_metadata.items() if not key.endswith("token_type")}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.control_ids == {261, 262}
    assert tokenizer.encode("</s>", special=True) == [262]


@pytest.mark.parametrize(
    ("said", "pre", "ids"),
    [(None, "gpt-2", []), (True, "gpt-2", [261]), (None, "llama3", [261]), (False, "llama3", [])],
)
def test_tok_6_bos_as_the_file_says(tiny_metadata, said, pre, ids):
    more = {"tokenizer.ggml.pre": pre} | ({} if said is None else {"tokenizer.ggml.add_bos_token": said})
    tokenizer = Tokenizer.from_gguf({**tiny_metadata, **more})
    assert tokenizer.adds_bos == bool(ids)
    assert tokenizer.encode("") == ids


def test_eos_as_the_file_says(tiny_metadata):
    tokenizer = Tokenizer.from_gguf({**tiny_metadata, "tokenizer.ggml.add_eos_token": True})
    assert tokenizer.encode_with_offsets("hello") == ([259, 262], [(0, 5), (5, 5)])


# --- Broken files ---


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", "t5", "'t5'.*gpt2.*llama.*bert"),
        ("model", None, "expected a text, got nothing"),
        ("model", 3, "expected a text, got 3"),
        ("pre", "my-own", "'my-own'.*smollm"),
        ("pre", ["smollm"], "pre: expected a text"),
        ("tokens", None, "tokens: expected a list, got nothing"),
        ("tokens", "abc", "tokens: expected a list"),
        ("tokens", [1, 2], "not all of its values are texts"),
        ("tokens", [], "token_type: expected 0"),
        ("tokens", ["a"] * 267, "twice"),
        ("token_type", [1], "expected 267 whole numbers.*got 1"),
        ("token_type", ["1"] * 267, "expected 267 whole numbers"),
        ("token_type", 1, "expected a list"),
        ("merges", None, "merges: expected a list"),
        ("merges", ["h e", "h zz"], "'h' and 'zz'"),
        ("merges", ["he"], "'he' and ''"),
        ("merges", ["h e l"], "'h' and 'e l'"),
        ("merges", ["e h"], "'e' and 'h'"),
        ("bos_token_id", 9_999, "9999.*none of the 267"),
        ("bos_token_id", 266, "266"),
        ("bos_token_id", -1, "expected a token id"),
        ("eos_token_id", "</s>", "expected a token id"),
        ("eos_token_id", [1.5], "expected a token id"),
        ("add_bos_token", "yes", "expected true or false"),
    ],
)
def test_broken_metadata_is_refused(tiny_metadata, key, value, message):
    metadata = {**tiny_metadata, f"tokenizer.ggml.{key}": value}
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(TextError, match=message):
        Tokenizer.from_gguf(metadata)


def test_bos_that_is_wanted_and_missing_is_refused(tiny_metadata):
    metadata = {**tiny_metadata, "tokenizer.ggml.add_bos_token": True}
    del metadata["tokenizer.ggml.bos_token_id"]
    with pytest.raises(TextError, match=r"no tokenizer\.ggml\.bos_token_id"):
        Tokenizer.from_gguf(metadata)


def test_a_huge_list_is_refused(tiny_metadata):
    with pytest.raises(TextError, match="at most"):
        Tokenizer.from_gguf({**tiny_metadata, "tokenizer.ggml.merges": ["h e"] * ((1 << 22) + 1)})


def test_a_template_that_is_no_text_is_refused(tiny_metadata):
    with pytest.raises(TextError, match=r"tokenizer\.chat_template"):
        Tokenizer.from_gguf({**tiny_metadata, "tokenizer.chat_template": 7})


# --- SentencePiece's BPE ---


@pytest.fixture(scope="session")
def llama():
    """SentencePiece's own reader, and the same vocabulary as llama.cpp's converter writes it."""
    options = {"user_defined_symbols": ["<u>"], "control_symbols": ["[INST]"]}
    model = spm.trained("bpe", normalization_rule_name="identity", remove_extra_whitespaces=False, **options)
    theirs = spm.processor(model)
    ids = range(theirs.vocab_size())
    kinds = [
        (theirs.is_unknown, spm.UNKNOWN),
        (theirs.is_control, spm.CONTROL),
        (theirs.is_byte, spm.BYTE),
        (lambda id: theirs.id_to_piece(id) == "<u>", spm.DEFINED),
        (lambda id: True, spm.NORMAL),
    ]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*map(theirs.id_to_piece, ids), "[PAD0]", "[PAD0]"],
        "tokenizer.ggml.scores": [*map(theirs.get_score, ids), -1000.0, -1000.0],
        "tokenizer.ggml.token_type": [*(next(kind for holds, kind in kinds if holds(id)) for id in ids), 5, 5],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return theirs, metadata


@given(text=st.text("abc hello▁,12é日\n💩<>u", max_size=40) | st.text(max_size=12))
def test_llama_equals_sentencepiece(llama, text):
    theirs, metadata = llama
    ours = Tokenizer.from_gguf(metadata)
    assert ours.encode(text) == [1, *theirs.encode(text)]
    assert ours.decode(ours.encode(text)) == "<s>" + text.replace("▁", " ")


@pytest.mark.parametrize(
    ("flags", "opening", "body", "closing"),
    [
        ({}, [1], "hello", []),
        ({"add_bos_token": False}, [], "hello", []),
        ({"add_eos_token": True}, [1], "hello", [2]),
    ],
)
def test_llama_frames_as_its_flags_say(llama, flags, opening, body, closing):
    theirs, metadata = llama
    ours = Tokenizer.from_gguf(metadata | {f"tokenizer.ggml.{key}": value for key, value in flags.items()})
    assert ours.encode(body) == [*opening, *theirs.encode(body), *closing]


def test_llama_without_a_blank_before_a_text(llama):
    theirs, metadata = llama
    ours = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.add_space_prefix": False})
    # With a blank written out, what stands before is the same.
    assert ours.encode(" hello") == [1, *theirs.encode("hello")]
    assert ours.decode(ours.encode("hello")) == "<s>hello"
    assert ours.decode(ours.encode(" hello")) == "<s> hello"


def test_llama_takes_extra_blanks_away_if_its_flag_says_so(llama):
    theirs, metadata = llama
    ours = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.remove_extra_whitespaces": True})
    assert ours.encode("  a   b ") == [1, *theirs.encode("a b")]


def test_llama_has_no_text_for_what_only_fills_up(llama):
    theirs, metadata = llama
    ours, number = Tokenizer.from_gguf(metadata), theirs.vocab_size()
    assert ours.ids_without_text(number + 3) == [number, number + 1, number + 2]
    assert ours.control_ids == {0, 1, 2, theirs.piece_to_id("[INST]")}
    assert ours.encode("a[INST]<u>", special=True)[2:] == [theirs.piece_to_id("[INST]"), *theirs.encode("<u>")]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scores", None, "scores: expected a list"),
        ("scores", [1.0], "numbers, one for each token, got 1"),
        ("token_type", "short", "token_type"),
        ("add_space_prefix", 1, "expected true or false"),
        ("bos_token_id", 9_999, "9999"),
    ],
)
def test_broken_metadata_of_llama_is_refused(llama, key, value, message):
    with pytest.raises(TextError, match=message):
        Tokenizer.from_gguf({**llama[1], f"tokenizer.ggml.{key}": value})


def test_a_kind_that_is_none_is_refused(llama):
    kinds = [*llama[1]["tokenizer.ggml.token_type"][:-1], 77]
    with pytest.raises(TextError, match="77 is no kind"):
        Tokenizer.from_gguf({**llama[1], "tokenizer.ggml.token_type": kinds})
