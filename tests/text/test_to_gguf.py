"""Tokenizers as GGUF metadata and back: the same ids and texts; what the format cannot hold is refused."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

import spm
from pellucid.text import TextError, Tokenizer

HARD = [
    "", " ", "   ", "\n",
    "a  1  b12 345\n\n 6", "I'LL say she's HE'S won't 'tis", "price: $1,234.56 (+7%) `x` ~~ <=> |",
    "tab\t\tand\r\n\r\n  indented\n    code = {'k': [1, 2]}  # end  ", "naïve e\u0301a\u0300 ½²٣ Ⅷ10",
    "日本語 テキスト、한국어 12 мир", "👩‍👧 \u200b\u00a0\u2003x", "<s>[MASK]<|im_start|></s> [PAD0]", "▁a ▁▁ b",
    "aaaa" * 40,
]  # fmt: skip
ENGLISH = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = (
    rf"{ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


def assert_same(one: Tokenizer, other: Tokenizer, special: bool = True) -> None:
    """Ids and texts, plain and with control tokens, and what each says of itself."""
    for text in HARD:
        assert other.encode(text) == one.encode(text), text
        if special:
            assert other.encode(text, special=True) == one.encode(text, special=True), text
        assert other.decode(one.encode(text)) == one.decode(one.encode(text))
    for said in ("bos_id", "eos_ids", "pad_id", "sep_id", "mask_id", "adds_bos", "control_ids", "vocab_size"):
        assert getattr(other, said) == getattr(one, said), said


def byte_level(rule: pre_tokenizers.PreTokenizer, **changes: object) -> Tokenizer:
    """A small byte-level vocabulary out of Hugging Face's library, cut by a rule."""
    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    raw.pre_tokenizer, raw.decoder = rule, tokenizers.decoders.ByteLevel()
    alphabet = ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator(HARD * 3, trainer)
    state = json.loads(raw.to_str())
    state["model"] |= changes
    return Tokenizer.from_json(json.dumps(state))


# --- Byte-level BPE ---


def test_smollm2_is_written_as_it_was_read(smollm2_metadata, smollm2):
    # a blank before a text is SentencePiece's matter, and goes without saying here
    said = {key: value for key, value in smollm2_metadata.items() if key != "tokenizer.ggml.add_space_prefix"}
    assert smollm2.to_gguf() == said | {"tokenizer.ggml.add_eos_token": False}


def test_smollm2_comes_back(smollm2):
    back = Tokenizer.from_gguf(smollm2.to_gguf())
    assert_same(smollm2, back)
    talk = [{"role": "user", "content": "Hi <|im_end|>"}]
    assert back.encode_chat(talk) == smollm2.encode_chat(talk)


def test_gpt2_comes_back(gpt2):
    written = gpt2.to_gguf()
    assert (written["tokenizer.ggml.model"], written["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert written["tokenizer.ggml.eos_token_id"] == 50256
    assert_same(gpt2, Tokenizer.from_gguf(written))


@given(text=st.text("ab Z'’s\n\r\t 01½éß한日💩\u0301\u00a0.,!<|im_end|>", max_size=40))
def test_any_text_of_smollm2(smollm2, smollm2_again, text):
    assert smollm2_again.encode(text) == smollm2.encode(text)


@pytest.fixture(scope="session")
def smollm2_again(smollm2) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2.to_gguf())


def test_kinds_of_tokens(tiny_metadata):
    one = Tokenizer.from_gguf(tiny_metadata | {"tokenizer.ggml.add_bos_token": True})
    written = one.to_gguf(n_logits=268)
    assert written["tokenizer.ggml.tokens"] == [*tiny_metadata["tokenizer.ggml.tokens"], "[PAD267]"]
    assert written["tokenizer.ggml.token_type"] == [*tiny_metadata["tokenizer.ggml.token_type"], 5]
    assert_same(one, Tokenizer.from_gguf(written))


@pytest.mark.parametrize("more", [{}, {"eot_token_id": 263}, {"eos_token_ids": [262, 263, 264, 261]}])
def test_ends_of_texts(tiny_metadata, more):
    one = Tokenizer.from_gguf(tiny_metadata | {f"tokenizer.ggml.{key}": value for key, value in more.items()})
    written = one.to_gguf()
    assert Tokenizer.from_gguf(written).eos_ids == one.eos_ids
    assert written["tokenizer.ggml.eos_token_id"] == 262
    assert written.get("tokenizer.ggml.eot_token_id") == (263 if more else None)


@pytest.mark.parametrize(
    ("rule", "pre"),
    [
        (ByteLevel(add_prefix_space=False), "gpt-2"),
        (Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]), "smollm"),
        (Sequence([Split(Regex(LLAMA3), "isolated"), ByteLevel(False, use_regex=False)]), "dbrx"),
        (Sequence([Split(Regex(QWEN2), "isolated"), ByteLevel(False, use_regex=False)]), "qwen2"),
    ],
)
def test_rules_as_other_files_write_them(rule, pre):
    one = byte_level(rule)
    written = one.to_gguf()
    assert written["tokenizer.ggml.pre"] == pre
    assert_same(one, Tokenizer.from_gguf(written))


def test_words_that_are_looked_up_first():
    rule = Sequence([Split(Regex(LLAMA3), "isolated"), ByteLevel(False, use_regex=False)])
    one = byte_level(rule, ignore_merges=True)
    assert one.to_gguf()["tokenizer.ggml.pre"] == "llama-bpe"
    assert_same(one, Tokenizer.from_gguf(one.to_gguf()))


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        (ByteLevel(add_prefix_space=True), {}, "no name for this one.*add_prefix_space"),
        (Sequence([Split(Regex("x+"), "isolated"), ByteLevel(False, use_regex=False)]), {}, "no name for this one"),
        (Sequence([Split(Regex(QWEN2), "removed"), ByteLevel(False, use_regex=False)]), {}, "no name for this one"),
        (ByteLevel(add_prefix_space=False), {"ignore_merges": True}, "looked up before they are merged"),
        (ByteLevel(add_prefix_space=False), {"unk_token": "<s>"}, "has no unk_token"),
    ],
)
def test_rules_without_a_name_are_refused(rule, changes, message):
    with pytest.raises(TextError, match=message):
        byte_level(rule, **changes).to_gguf()


def test_what_few_texts_show_is_left_out_only_when_asked():
    raw = tokenizers.Tokenizer.from_str(byte_level(ByteLevel(False)).to_files()["tokenizer.json"].decode())
    raw.normalizer = normalizers.NFC()
    raw.add_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    one = Tokenizer.from_json(raw.to_str())
    with pytest.raises(TextError, match=r"'<mask>' takes blanks in.*text is put into another form first \('NFC'\)"):
        one.to_gguf()
    back = Tokenizer.from_gguf(one.to_gguf(lossy=True))
    assert back.encode("naïve <mask>") == one.encode("naïve <mask>")
    assert one.encode("e\u0301") == back.encode("é") != back.encode("e\u0301")


def test_other_frames_are_refused():
    raw = tokenizers.Tokenizer.from_str(byte_level(ByteLevel(False)).to_files()["tokenizer.json"].decode())
    raw.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> </s> $A", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    with pytest.raises(TextError, match=r"puts the ids \[1\] before and \[\] after it"):
        Tokenizer.from_json(raw.to_str()).to_gguf()


# --- SentencePiece ---


@pytest.fixture(scope="session")
def llama_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("spm") / "tokenizer.model"
    options = {"control_symbols": ["[INST]"], "remove_extra_whitespaces": False}
    path.write_bytes(spm.trained("bpe", normalization_rule_name="identity", **options))
    return path


@pytest.mark.parametrize(
    "options", [{"user_defined_symbols": ["<u>"]}, {"add_dummy_prefix": False}, {"byte_fallback": False}]
)
def test_sentencepiece_comes_back(options, tmp_path):
    model = spm.trained("bpe", normalization_rule_name="identity", remove_extra_whitespaces=False, **options)
    (tmp_path / "tokenizer.model").write_bytes(model)
    one = Tokenizer.from_sentencepiece(tmp_path / "tokenizer.model")
    written, theirs = one.to_gguf(n_logits=360), spm.processor(model)
    ids = range(theirs.vocab_size())
    assert written["tokenizer.ggml.tokens"][: len(ids)] == [theirs.id_to_piece(id) for id in ids]
    assert written["tokenizer.ggml.scores"][: len(ids)] == [theirs.get_score(id) for id in ids]
    assert len(written["tokenizer.ggml.scores"]) == len(written["tokenizer.ggml.tokens"]) == max(360, len(ids))
    assert written["tokenizer.ggml.add_space_prefix"] == options.get("add_dummy_prefix", True)
    assert (written["tokenizer.ggml.unknown_token_id"], written["tokenizer.ggml.add_bos_token"]) == (0, True)
    assert_same(one, Tokenizer.from_gguf(written))


@pytest.mark.slow
@given(text=st.text("abc hello▁,12é日\n💩<>u", max_size=40))
def test_any_text_of_sentencepiece(llama_file, text):
    one = Tokenizer.from_sentencepiece(llama_file)
    assert Tokenizer.from_gguf(one.to_gguf()).encode(text) == one.encode(text)


def test_merges_become_scores(llama_file):
    """A tokenizer.json of SentencePiece's kind, whose merges stand for scores."""
    one = Tokenizer.from_sentencepiece(llama_file)
    files = one.to_files()
    other = Tokenizer.from_json(files["tokenizer.json"].decode())
    back = Tokenizer.from_gguf(other.to_gguf())
    assert_same(one, back)


def test_merges_that_no_scores_give_are_refused(llama_file):
    state = json.loads(Tokenizer.from_sentencepiece(llama_file).to_files()["tokenizer.json"])
    merges = state["model"]["merges"]
    state["model"]["merges"] = merges[1:]
    one = Tokenizer.from_json(json.dumps(state))
    with pytest.raises(TextError, match="merges stand in an order that scores do not give"):
        one.to_gguf()
    assert one.to_gguf(lossy=True)["tokenizer.ggml.model"] == "llama"


def test_blanks_as_newer_files_put_them(llama_file):
    """Metaspace leaves the blank out before one that is there: only nearly SentencePiece's rule."""
    state = json.loads(Tokenizer.from_sentencepiece(llama_file).to_files()["tokenizer.json"])
    state["normalizer"] = None
    state["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}
    one = Tokenizer.from_json(json.dumps(state))
    with pytest.raises(TextError, match="a text that begins with a blank gets no other before it"):
        one.to_gguf()
    back = Tokenizer.from_gguf(one.to_gguf(lossy=True))
    assert back.encode("hello  world") == one.encode("hello  world")
    assert back.encode(" hello") != one.encode(" hello")


def test_a_blank_after_control_tokens_goes_without_saying(llama_file, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(llama_file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"legacy": false}')
    one = Tokenizer.from_folder(tmp_path)
    with pytest.raises(TextError, match="only a text's beginning, and not what follows a control token, gets a blank"):
        one.to_gguf()
    assert_same(one, Tokenizer.from_gguf(one.to_gguf(lossy=True)), special=False)


def test_what_llama_cannot_say_is_refused(tmp_path):
    for method, rule, message in (("unigram", "identity", "is Unigram"), ("bpe", "nmt_nfkc", "precompiled_charsmap")):
        (tmp_path / "m.model").write_bytes(spm.trained(method, normalization_rule_name=rule))
        with pytest.raises(TextError, match=message):
            Tokenizer.from_sentencepiece(tmp_path / "m.model").to_gguf()


# --- WordPiece ---

WORDS = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdehlorntsx.,-[]'1",
         *(f"##{c}" for c in "adefhlors1"), "hello", "##llo", "world", "日", "café", "##", "##ing", "nai"]  # fmt: skip


def bert(tmp_path, words=WORDS, **config) -> Tokenizer:
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **config}))
    return Tokenizer.from_folder(tmp_path)


def test_bert_comes_back(tmp_path):
    one = bert(tmp_path)
    written = one.to_gguf()
    tokens = written["tokenizer.ggml.tokens"]
    assert tokens[:3] == ["[PAD]", "▁[unused0]", "[UNK]"]
    assert [tokens[WORDS.index(word)] for word in ("hello", "##llo", "##", "##ing")] == ["▁hello", "llo", "▁##", "ing"]
    ids = ("bos", "unknown", "seperator", "padding", "cls", "mask")
    assert [written[f"tokenizer.ggml.{name}_token_id"] for name in ids] == [3, 2, 4, 0, 3, 5]
    back = Tokenizer.from_gguf(written)
    assert_same(one, back)
    assert back.encode_pair("hello", "world") == one.encode_pair("hello", "world")


@pytest.mark.parametrize(
    ("words", "config", "message"),
    [
        (WORDS, {"do_lower_case": False}, "puts text in lower case"),
        (WORDS, {"strip_accents": False}, "puts text in lower case"),
        (WORDS, {"tokenize_chinese_chars": False}, "puts text in lower case"),
        ([*WORDS, "##[x]"], {}, r"no way to write the piece '##\[x\]'"),
    ],
)
def test_what_bert_cannot_say_is_refused(words, config, message, tmp_path):
    with pytest.raises(TextError, match=message):
        bert(tmp_path, words, **config).to_gguf()


def test_other_kinds_are_refused():
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    with pytest.raises(TextError, match="is of another kind"):
        Tokenizer.from_json(raw.to_str()).to_gguf()
