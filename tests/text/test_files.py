"""Tokenizers out of the files of a checkpoint folder, held against Hugging Face, and broken files."""

import json
import shutil

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from pellucid.text import TextError, Tokenizer

SPECIALS = ["<s>", "</s>", "<pad>", "<|user|>"]
TEXTS = ["hello world!", " hello  hello\n", "<s>hello</s>", "naïve 💩", ""]


def small_bpe() -> tokenizers.Tokenizer:
    """A byte-level tokenizer trained on a sentence; no special tokens."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(["hello world hello world naïve"] * 5, trainer)
    return library


def with_specials(template: str | None = None) -> tokenizers.Tokenizer:
    library = small_bpe()
    library.add_special_tokens(SPECIALS)
    if template is not None:
        pairs = [(text, library.token_to_id(text)) for text in SPECIALS]
        library.post_processor = processors.TemplateProcessing(single=template, special_tokens=pairs)
    return library


def bert() -> tokenizers.Tokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "world", "!", "un", "##related", "it", "'", "s", "."]
    library = tokenizers.Tokenizer(models.WordPiece({word: id for id, word in enumerate(words)}, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    library.add_special_tokens(words[:4])
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return library


def folder_with(path, library: tokenizers.Tokenizer | None = None, **files: object):
    """A checkpoint folder: tokenizer.json, and each of `files` as JSON."""
    if library is not None:
        library.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return path


# --- tokenizer.json ---


@pytest.mark.parametrize("text", TEXTS)
def test_a_tokenizer_json_gives_the_ids_of_the_library(text):
    library = with_specials()
    tokenizer = Tokenizer.from_json(library.to_str())
    assert tokenizer.encode(text, special=True) == library.encode(text).ids
    library.encode_special_tokens = True
    assert tokenizer.encode(text) == library.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_path_and_its_text_are_the_same(tmp_path):
    path = folder_with(tmp_path, with_specials()) / "tokenizer.json"
    for source in (path, str(path), path.read_text(encoding="utf-8")):
        tokenizer = Tokenizer.from_json(source)
        assert (tokenizer.bos_id, tokenizer.eos_ids) == (270, (271,))
        assert tokenizer.encode("hello") == small_bpe().encode("hello").ids


def test_what_the_file_would_cut_off_or_fill_up_is_left_alone():
    library = with_specials()
    library.enable_truncation(2)
    library.enable_padding(length=400)
    assert Tokenizer.from_json(library.to_str()).encode("hello " * 9) == small_bpe().encode("hello " * 9).ids


def test_tokens_that_are_added_keep_their_own_characters():
    # "é" also stands for a byte in the byte-level alphabet: the library's own decoder takes it for that.
    library = small_bpe()
    library.add_tokens([AddedToken("<é>", normalized=False)])
    tokenizer = Tokenizer.from_json(library.to_str())
    assert tokenizer.decode(tokenizer.encode("a<é>b")) == "a<é>b"
    assert tokenizer.control_ids == set()


def test_text_comes_back_in_the_normal_form_of_the_tokenizer():
    library = small_bpe()
    library.normalizer = normalizers.NFC()
    tokenizer = Tokenizer.from_json(library.to_str())
    text = "e\u0301e\u0301"
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert tokenizer.decode(ids) == "éé"
    assert all(start <= end <= len(text) for start, end in offsets)


# --- BOS, EOS and what else is put around a text ---


@pytest.mark.parametrize(
    ("template", "adds_bos", "around"),
    [("$A", False, ""), ("<s> $A", True, "<s>"), ("<s> $A </s>", True, "<s></s>"), ("<|user|> $A", False, "<|user|>")],
)
def test_tok_6_bos_of_the_post_processor(template, adds_bos, around):
    library = with_specials(template)
    tokenizer = Tokenizer.from_json(library.to_str())
    bos, body = library.token_to_id("<s>"), small_bpe().encode("hello world!").ids
    plain = library.encode("hello world!").ids
    assert tokenizer.adds_bos == adds_bos
    assert tokenizer.encode("hello world!") == plain
    assert tokenizer.encode("hello world!", bos=True) == (plain if adds_bos else [bos, *plain])
    assert tokenizer.encode("hello world!", bos=False) == (plain[1:] if adds_bos else plain)
    assert tokenizer.decode(tokenizer.encode("")) == around
    assert body == [id for id in plain if id < bos]


def test_tok_6_a_bos_written_out_is_not_doubled():
    tokenizer = Tokenizer.from_json(with_specials("<s> $A").to_str())
    assert tokenizer.encode("<s>hello", special=True) == tokenizer.encode("hello")
    assert tokenizer.encode("<s>hello", special=True, bos=True).count(tokenizer.bos_id) == 1
    assert tokenizer.encode("<s>hello").count(tokenizer.bos_id) == 1


@pytest.mark.parametrize("bos", [None, True, False])
def test_tok_6_a_tokenizer_without_bos_keeps_its_own_frame(bos):
    tokenizer = Tokenizer.from_json(bert().to_str())
    assert (tokenizer.bos_id, tokenizer.adds_bos) == (None, False)
    assert tokenizer.labels(tokenizer.encode("hello world!", bos=bos)) == ["[CLS]", "hello", "world", "!", "[SEP]"]


def test_tok_6_bos_where_there_is_none_is_refused():
    tokenizer = Tokenizer.from_json(small_bpe().to_str())
    assert tokenizer.encode("hello", bos=False) == tokenizer.encode("hello")
    with pytest.raises(TextError, match="no token that begins"):
        tokenizer.encode("hello", bos=True)


def test_offsets_of_what_is_put_around():
    _, offsets = Tokenizer.from_json(with_specials("<s> $A </s>").to_str()).encode_with_offsets("hello")
    assert (offsets[0], offsets[-1]) == ((0, 0), (5, 5))
    assert [place for place in offsets[1:-1] if place == (0, 0)] == []


FLAGS = [{}, {"add_bos_token": True}, {"add_bos_token": False}, {"add_eos_token": True}]


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("template", [None, "<s> $A", "$A"])
def test_a_folder_gives_the_ids_that_hugging_face_gives(tmp_path, flags, template):
    config = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", **flags}
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    folder = folder_with(tmp_path, with_specials(template), tokenizer_config=config)
    theirs, ours = AutoTokenizer.from_pretrained(folder), Tokenizer.from_folder(folder)
    for text in TEXTS:
        begins = text.startswith("<s>") and ours.adds_bos  # the one place where there would be two
        assert ours.encode(text, special=True) == theirs(text).input_ids[begins:]
    assert (ours.bos_id, ours.pad_id) == (theirs.bos_token_id, theirs.pad_token_id)
    assert ours.eos_ids == (theirs.eos_token_id,)


@pytest.mark.parametrize("flags", [*FLAGS, {"add_prefix_space": True}])
def test_a_folder_of_two_files_gives_the_ids_that_hugging_face_gives(tmp_path, gpt2_files, flags):
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer", **flags}
    folder = folder_with(tmp_path, tokenizer_config=config)
    for source, name in zip(gpt2_files, ("vocab.json", "merges.txt"), strict=True):
        shutil.copy(source, folder / name)
    theirs, ours = AutoTokenizer.from_pretrained(folder), Tokenizer.from_folder(folder)
    for text in TEXTS:
        assert ours.encode(text, special=True) == theirs(text).input_ids
    assert ours.adds_bos == bool(flags.get("add_bos_token"))


def test_roberta_frames():
    library = with_specials()
    ids = [library.token_to_id(text) for text in ("<s>", "</s>")]
    library.post_processor = processors.RobertaProcessing(("</s>", ids[1]), ("<s>", ids[0]), trim_offsets=True)
    tokenizer = Tokenizer.from_json(library.to_str())
    assert tokenizer.adds_bos
    assert tokenizer.encode(" hello") == library.encode(" hello").ids


def test_offsets_are_not_trimmed():
    library = small_bpe()
    library.post_processor = processors.ByteLevel(trim_offsets=True)
    assert library.encode("x hello").offsets == [(0, 1), (2, 7)]
    assert Tokenizer.from_json(library.to_str()).encode_with_offsets("x hello")[1] == [(0, 1), (1, 7)]


def test_a_sequence_of_post_processors():
    library = with_specials("<s> $A </s>")
    inner = library.post_processor
    library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), inner])
    assert Tokenizer.from_json(library.to_str()).encode("hello") == library.encode("hello").ids


# --- The other files of a folder ---


@pytest.mark.parametrize(
    ("said", "eos_ids"), [({}, (271,)), ({"eos_token_id": 273}, (271, 273)), ({"eos_token_id": [273, 271]}, (271, 273))]
)
def test_ids_that_end_a_text(tmp_path, said, eos_ids):
    config = {"eos_token": {"content": "</s>", "lstrip": False}}
    folder = folder_with(tmp_path, with_specials(), tokenizer_config=config, generation_config=said)
    assert Tokenizer.from_folder(folder).eos_ids == eos_ids


@pytest.mark.parametrize(
    ("config", "bos_id", "eos_ids"),
    [({"model_max_length": 1024}, 270, (271,)), ({"eos_token": "</s>"}, None, (271,)), ({"bos_token": None}, None, ())],
)
def test_usual_names_count_where_the_files_name_no_token(tmp_path, config, bos_id, eos_ids):
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, with_specials(), tokenizer_config=config))
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (bos_id, eos_ids)


def test_the_map_of_special_tokens(tmp_path):
    tokens = {"bos_token": "<|user|>", "eos_token": "</s>", "additional_special_tokens": ["hello"]}
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, with_specials(), special_tokens_map=tokens))
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.pad_id) == (273, (271,), None)
    assert tokenizer.id_of("hello") in tokenizer.control_ids
    assert tokenizer.control_ids.isdisjoint(tokenizer.encode("hello"))
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


def test_a_token_that_ends_a_text_is_a_control_token_though_the_file_forgot(tmp_path):
    library = small_bpe()
    library.add_tokens([AddedToken("</s>", normalized=False)])
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, library, tokenizer_config={"eos_token": "</s>"}))
    assert tokenizer.eos_ids == (270,)
    assert 270 not in tokenizer.encode("a</s>b")
    assert 270 in tokenizer.encode("a</s>b", special=True)


def test_padding_with_a_sign_does_not_make_it_a_control_token(tmp_path):
    config = {"eos_token": "</s>", "pad_token": "!"}
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, with_specials(), tokenizer_config=config))
    assert tokenizer.encode("!") == [tokenizer.pad_id]
    assert tokenizer.pad_id not in tokenizer.control_ids


def test_tokens_listed_beside_the_vocabulary(tmp_path):
    config = {"added_tokens_decoder": {"270": {"content": "<|end|>", "special": True}, "271": {"content": "  "}}}
    tokenizer = Tokenizer.from_folder(folder_with(tmp_path, small_bpe(), tokenizer_config=config))
    assert tokenizer.encode("<|end|>", special=True) == [270]
    assert tokenizer.encode("a  b")[1] == 271
    assert 270 not in tokenizer.encode("<|end|>")


def test_a_token_listed_under_another_id_is_refused(tmp_path):
    config = {"added_tokens_decoder": {"300": {"content": "<|end|>", "special": True}}}
    with pytest.raises(TextError, match=r"'<\|end\|>' is given id 300, but it has id 270"):
        Tokenizer.from_folder(folder_with(tmp_path, small_bpe(), tokenizer_config=config))


@pytest.mark.parametrize("name", ["bos_token", "eos_token"])
def test_a_token_that_the_vocabulary_does_not_have_is_refused(tmp_path, name):
    folder = folder_with(tmp_path, with_specials(), tokenizer_config={name: "<nowhere>"})
    with pytest.raises(TextError, match=f"{name}.*<nowhere>"):
        Tokenizer.from_folder(folder)


def test_chat_templates_of_a_folder(tmp_path):
    library, first = with_specials(), {"eos_token": "</s>", "chat_template": "one {{ eos_token }}"}
    folder = folder_with(tmp_path, library, tokenizer_config=first)
    assert Tokenizer.from_folder(folder).chat_template.render([]) == "one </s>"
    several = [{"name": "tools", "template": "tools"}, {"name": "default", "template": "two"}]
    folder_with(tmp_path, tokenizer_config={**first, "chat_template": several})
    assert Tokenizer.from_folder(folder).chat_template.render([]) == "two"
    (tmp_path / "chat_template.jinja").write_text("three", encoding="utf-8")
    assert Tokenizer.from_folder(folder).chat_template.render([]) == "three"
    assert Tokenizer.from_json(library.to_str()).chat_template is None


# --- vocab.json and merges.txt ---


def test_a_folder_of_gpt_2s_own_files(tmp_path, gpt2, gpt2_files):
    for names in (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")):
        for source, name in zip(gpt2_files, names, strict=True):
            shutil.copy(source, tmp_path / name)
        tokenizer = Tokenizer.from_folder(tmp_path)
        assert tokenizer.encode("I'm 12 <|endoftext|>") == gpt2.encode("I'm 12 <|endoftext|>")
        assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.control_ids) == (50256, (50256,), {50256})
        for name in names:
            (tmp_path / name).unlink()


def test_qwen_2_cuts_text_its_own_way(tmp_path, gpt2_files):
    folder = folder_with(tmp_path, tokenizer_config={"tokenizer_class": "Qwen2Tokenizer"})
    for source, name in zip(gpt2_files, ("vocab.json", "merges.txt"), strict=True):
        shutil.copy(source, folder / name)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.labels(tokenizer.encode("a 12")) == ["a", "␣", "1", "2"]
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "é"


def test_a_class_whose_rule_is_not_known_is_refused(tmp_path, gpt2_files):
    folder = folder_with(tmp_path, tokenizer_config={"tokenizer_class": "OddTokenizer"})
    for source, name in zip(gpt2_files, ("vocab.json", "merges.txt"), strict=True):
        shutil.copy(source, folder / name)
    with pytest.raises(TextError, match="OddTokenizer"):
        Tokenizer.from_folder(folder)


# --- Other kinds of vocabulary ---


def test_wordpiece_is_decoded_by_the_library():
    library = bert()
    tokenizer = Tokenizer.from_json(library.to_str())
    ids = tokenizer.encode("Unrelated hello, it's.")
    assert tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=False)
    assert tokenizer.labels(ids) == ["[CLS]", "un", "##related", "hello", "[UNK]", "it", "'", "s", ".", "[SEP]"]
    decoder = tokenizer.decoder()
    assert "".join([*map(decoder.push, ids), decoder.finish()]) == tokenizer.decode(ids)
    with pytest.raises(TextError, match="99"):
        tokenizer.decode([99])
    assert tokenizer.decode(tokenizer.encode("[SEP]")).count("[SEP]") == 1


def test_a_control_token_that_a_model_finds_by_itself_stays_out_of_plain_text():
    # The pieces of a Unigram model hold the control tokens too, with the best score.
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((sign, -5.0) for sign in "</s>a")]
    library = tokenizers.Tokenizer(models.Unigram(pieces, 0, False))
    library.add_special_tokens(["<unk>", "</s>"])
    tokenizer = Tokenizer.from_json(library.to_str())
    assert tokenizer.labels(tokenizer.encode("a</s></s>")) == ["a", *"</s>", *"</s>"]
    assert tokenizer.encode("a</s>", special=True)[-1] == 1
    assert tokenizer.encode("?") == [0]


# --- Vocabularies of SentencePiece's kind in a tokenizer.json ---


def llama_json(form: str) -> tokenizers.Tokenizer:
    """A vocabulary like Llama 2's as Hugging Face converts it, in the older form or the newer."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"helowrd", "he", "ll", "▁he"]
    merges = [("h", "e"), ("l", "l"), ("▁", "he")]
    model = models.BPE(
        {piece: id for id, piece in enumerate(pieces)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    library = tokenizers.Tokenizer(model)
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if form == "normalizer":
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        scheme = "never" if form == "none" else "first"
        library.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    library.decoder = decoders.Sequence(parts if form == "none" else [*parts, decoders.Strip(" ", 1, 0)])
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    library.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return library


@pytest.mark.parametrize("form", ["normalizer", "pre_tokenizer", "none"])
@pytest.mark.parametrize("text", ["hello world", "hello  \n", "é💩x<0x41>", "", "he</s>llo"])
def test_llama_s_tokenizer_json(form, text):
    library = llama_json(form)
    ours = Tokenizer.from_json(library.to_str())
    assert ours.adds_bos
    assert ours.encode(text, special=True) == library.encode(text).ids
    library.encode_special_tokens = True
    assert ours.encode(text) == library.encode(text).ids
    ids = ours.encode(text, bos=False)
    # As the library has it: half a character apart, and its blank before the text left out once.
    assert ours.decode(ids) == library.decode(ids, skip_special_tokens=False) == text
    inside = ours.decode(ids, continued=True)
    assert inside == b"".join(map(ours.bytes_of, ids)).decode()
    assert inside == (" " + text if text and form != "none" else text)
    decoder = ours.decoder()
    assert "".join([*map(decoder.push, ids), decoder.finish()]) == text


def test_llama_s_tokenizer_json_by_token():
    ours = Tokenizer.from_json(llama_json("normalizer").to_str())
    assert ours.labels(ours.encode("hello é")) == ["<s>", "␣he", "ll", "o", "␣", "<0xC3>", "<0xA9>"]
    assert ours.bytes_of(3 + 0xC3) == b"\xc3"
    assert ours.id_of(" he") == ours.encode("he")[1]
    assert ours.labels([ours.id_of("he")]) == ["he"]


@pytest.mark.parametrize(("form", "labels"), [("normalizer", ["␣he", "␣he"]), ("pre_tokenizer", ["␣he", "he"])])
def test_a_conversation_where_a_blank_is_put_before_a_text(tmp_path, form, labels):
    # What a message says is encoded as if it were no control token, but stands where the template puts it.
    config = {"chat_template": "{{ messages[0].content }}</s>{{ messages[1].content }}", "bos_token": "<s>"}
    ours = Tokenizer.from_folder(folder_with(tmp_path, llama_json(form), tokenizer_config=config))
    for content in ("he", "he</s>"):
        ids = ours.encode_chat([{"role": "user", "content": content}] * 2)
        assert ids.count(2) == 1
        cut = ids.index(2)
        assert ours.labels([ids[1], ids[cut + 1]]) == labels


def test_a_whole_word_that_is_a_control_token_takes_no_further_blank():
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -2.0), *((sign, -5.0) for sign in "</s>a")]
    library = tokenizers.Tokenizer(models.Unigram(pieces, 0, False))
    library.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=False)
    library.decoder = decoders.Metaspace("▁", prepend_scheme="always", split=False)
    library.add_special_tokens(["<unk>", "</s>"])
    ours = Tokenizer.from_json(library.to_str())
    assert ours.decode(ours.encode("a</s>")) == "a</s>"
    assert ours.control_ids.isdisjoint(ours.encode("a</s>"))


@pytest.mark.parametrize("decoder", [None, decoders.BPEDecoder("</w>"), decoders.CTC("-", "|")])
def test_other_decoders_give_their_text_token_by_token(decoder):
    tokens = ["<unk>", "he", "llo</w>", "-", "|", "a", "a</w>"]
    library = tokenizers.Tokenizer(models.WordLevel({token: id for id, token in enumerate(tokens)}, "<unk>"))
    library.decoder = decoder
    ours = Tokenizer.from_json(library.to_str())
    for ids in ([1, 2, 1, 2], [5, 5, 3, 5, 4, 1], [6, 6, 5], [2], []):
        whole = library.decode(ids, skip_special_tokens=False)
        assert ours.decode(ids) == whole
        pieces = ours.decoder()
        assert "".join([*map(pieces.push, ids), pieces.finish()]) == whole
    assert ours.labels([2, 3]) == ["llo</w>", "-"]


# --- Broken files ---


def broken(**changes: object) -> str:
    return json.dumps({**json.loads(with_specials().to_str()), **changes})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{", "expected JSON"),
        ("{" * 100_000, "expected JSON"),
        ('{"model": ' * 100_000, "expected JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "Model missing"),
        (broken(model=None), "library refuses it"),
        (broken(model={"type": "Odd"}), "library refuses it"),
        (broken(model={"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}), "out of vocabulary"),
        (broken(model={"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}), "library refuses it"),
        (broken(model={"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a"]}), "library refuses it"),
        (broken(model={"type": "BPE", "vocab": {"a": -1}, "merges": []}), "library refuses it"),
        (broken(model={"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}), "one id"),
        (broken(model={"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []}), "4294967295"),
        (broken(model={"type": "BPE", "vocab": {}, "merges": []}), "got 0"),
        (
            broken(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}),
            "library refuses it",
        ),
        (broken(added_tokens=[{"id": 900, "content": "<x>", "special": True}]), "library refuses it"),
    ],
)
def test_a_broken_tokenizer_json_is_refused(source, message):
    with pytest.raises(TextError, match=message):
        Tokenizer.from_json(source)


@pytest.mark.parametrize("kind", ["WordLevel", "WordPiece"])
def test_a_text_that_the_library_cannot_encode_is_refused(kind):
    model = {"type": kind, "vocab": {"a": 0}, "unk_token": "?", "continuing_subword_prefix": "##"}
    model["max_input_chars_per_word"] = 9
    tokenizer = Tokenizer.from_json(json.dumps({"model": model}))
    assert tokenizer.encode("a") == [0]
    for text in ("b", "b" * 100_000):
        with pytest.raises(TextError, match="this text: the tokenizers library refuses it"):
            tokenizer.encode(text)


def test_a_token_that_the_library_would_give_another_id_is_refused():
    state = json.loads(with_specials().to_str())
    state["added_tokens"][-1]["id"] = 300
    with pytest.raises(TextError, match="given id 300, but it has id 273"):
        Tokenizer.from_json(json.dumps(state))


@pytest.mark.parametrize(
    ("single", "specials"),
    [
        ([{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], {}),
        ([], {}),
        (
            [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}},
        ),
    ],
)
def test_a_broken_post_processor_is_refused(single, specials):
    processor = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": specials}
    with pytest.raises(TextError, match=r"post_processor|given id 7"):
        Tokenizer.from_json(broken(post_processor=processor))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config", [], "expected a JSON object"),
        ("tokenizer_config", {"bos_token": 3}, "bos_token"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder"),
        ("tokenizer_config", {"added_tokens_decoder": []}, None),
        ("tokenizer_config", {"added_tokens_decoder": [1]}, "added_tokens_decoder"),
        ("tokenizer_config", {"chat_template": 3}, "chat_template"),
        ("tokenizer_config", {"additional_special_tokens": 3}, "additional_special_tokens"),
        ("special_tokens_map", {"eos_token": {"text": "</s>"}}, "eos_token"),
        ("special_tokens_map", {"pad_token": "\ud800"}, "surrogates not allowed"),
        ("generation_config", {"eos_token_id": "</s>"}, "eos_token_id"),
        ("generation_config", {"eos_token_id": [True]}, "eos_token_id"),
        ("added_tokens", {"<x>": "1"}, "added_tokens"),
    ],
)
def test_broken_files_of_a_folder_are_refused(tmp_path, name, content, message):
    folder = folder_with(tmp_path, with_specials(), **{name: content})
    if message is None:
        assert Tokenizer.from_folder(folder).vocab_size == 274
        return
    with pytest.raises(TextError, match=message) as error:
        Tokenizer.from_folder(folder)
    assert str(error.value).startswith(str(folder))


@pytest.mark.parametrize(
    ("vocab", "merges", "message"),
    [
        (b"[]", b"", "expected a JSON object"),
        (b"{}", b"", "got 0"),
        (b'{"a": "0"}', b"", "expected token ids"),
        (b'{"a": 0, "b": 1, "ab": 2}', b"#version: 0.2\na b c\n", "two tokens on a line"),
        (b'{"a": 0, "b": 1, "ab": 2}', b"#version: 0.2\na c\n", "'a' and 'c'"),
        (b'{"a": 0, "b": 1}', b"a b\n", "'a' and 'b'"),
        (b'{"a\\ud800": 0}', b"", "surrogates not allowed"),
        (b"\xff\xfe", b"", "UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\n", b"", "git-lfs pointer"),
    ],
)
def test_broken_vocab_and_merges_are_refused(tmp_path, vocab, merges, message):
    (tmp_path / "vocab.json").write_bytes(vocab)
    (tmp_path / "merges.txt").write_bytes(merges)
    with pytest.raises(TextError, match=message):
        Tokenizer.from_vocab_merges(tmp_path / "vocab.json", tmp_path / "merges.txt")


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(TextError, match=r"expected tokenizer\.json, tokenizer\.model, .*vocab\.json"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(TextError, match="expected a folder"):
        Tokenizer.from_folder(tmp_path / "nowhere")
    with pytest.raises(TextError, match="no such file"):
        Tokenizer.from_json(tmp_path / "nowhere.json")
    with pytest.raises(TextError, match="cannot be read: File name too long") as error:
        Tokenizer.from_json("x" * 5000)
    assert len(str(error.value)) < 400
    with pytest.raises(TextError, match="expected a file"):
        Tokenizer.from_json(tmp_path)
