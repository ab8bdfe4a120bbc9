"""Tokenizers from the files of a checkpoint folder."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, normalizers
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer

from .characters import BYTE_OF
from .errors import TextError, one_line, raised_as_text_error, shown
from .files import parse_object, read_object, read_text
from .framing import Frame, framing
from .library import add_tokens, byte_level_bpe, check_id, check_vocabulary, mark_as_control
from .pretokenizers import pre_tokenizer, rule_named
from .settings import Settings, flag, id_list
from .template import ChatTemplate

VOCAB_MERGES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

# What BOS and EOS are usually called, for files that do not say.
USUAL_BOS = ("<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|endoftext|>")
USUAL_EOS = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>")

Built = tuple[tokenizers.Tokenizer, Settings]


def read_folder(path: str | os.PathLike[str]) -> Built:
    """The tokenizer of a checkpoint folder: see `Tokenizer.from_folder`."""
    folder = Path(path)
    if not folder.is_dir():
        raise TextError(f"{folder}: expected a folder with a tokenizer's files")
    config = read_object(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").exists():
        library, frame = read_library(read_text(folder / "tokenizer.json"), str(folder / "tokenizer.json"))
    else:
        library, frame = read_parts(folder, config), None
    add_tokens(library, tokens_of(folder, config), str(folder))
    return library, settings_of(folder, config, library, frame)


def read_json_tokenizer(path_or_text: str | os.PathLike[str]) -> Built:
    """The tokenizer of a tokenizer.json: see `Tokenizer.from_json`."""
    if isinstance(path_or_text, str) and path_or_text.lstrip()[:1] in ("{", "["):
        library, frame = read_library(path_or_text, "tokenizer.json")
    else:
        library, frame = read_library(read_text(Path(path_or_text)), str(path_or_text))
    return library, framed(usual_settings(library), frame)


def read_vocab_merges(vocab: str | os.PathLike[str], merges: str | os.PathLike[str]) -> Built:
    """GPT-2's kind of tokenizer from its two files: see `Tokenizer.from_vocab_merges`."""
    library = bpe_from_files(Path(vocab), Path(merges), ByteLevel(add_prefix_space=False))
    return library, usual_settings(library)


def read_library(source: str, where: str) -> tuple[tokenizers.Tokenizer, Frame]:
    """The tokenizer of a tokenizer.json, and the ids that it puts around a text."""
    state = parse_object(source, where)
    with raised_as_text_error(where):
        library = tokenizers.Tokenizer.from_str(source)
    match state:
        case {"model": {"vocab": dict() as vocabulary}}:
            check_vocabulary(vocabulary, where)
    match state:
        case {"added_tokens": list() as added}:
            for token in added:
                check_id(library, token["content"], token["id"], where)
    return library, framing(library, where)


def read_parts(folder: Path, config: Mapping[str, object]) -> tokenizers.Tokenizer:
    """The tokenizer of a folder without tokenizer.json, whose class tells how text is cut into words."""
    pair = next((pair for pair in VOCAB_MERGES if all((folder / name).exists() for name in pair)), None)
    if pair is None:
        raise TextError(f"{folder}: expected tokenizer.json, or vocab.json and merges.txt, but found none of them")
    kind = str(config.get("tokenizer_class") or "GPT2Tokenizer").removesuffix("Fast")
    if kind not in ("GPT2Tokenizer", "Qwen2Tokenizer"):
        raise TextError(
            f"{folder}: {pair[0]} and {pair[1]} do not say how a {one_line(kind, 60)} cuts text into words. Save the "
            "tokenizer as tokenizer.json (transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    prefix = flag(config, "add_prefix_space", "tokenizer_config.json") or False
    is_qwen = kind == "Qwen2Tokenizer"
    rule = pre_tokenizer(rule_named("qwen2")) if is_qwen else ByteLevel(add_prefix_space=prefix)
    library = bpe_from_files(folder / pair[0], folder / pair[1], rule)
    if is_qwen:
        library.normalizer = normalizers.NFC()
    return library


def bpe_from_files(vocab: Path, merges: Path, rule: PreTokenizer) -> tokenizers.Tokenizer:
    vocabulary = parse_object(read_text(vocab), vocab)
    check_vocabulary(vocabulary, str(vocab))
    lines = read_text(merges).split("\n")
    pairs = [line.rstrip("\r").split(" ") for line in lines[lines[0].startswith("#version") :] if line.strip()]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise TextError(f"{merges}: expected two tokens on a line, got {shown(' '.join(wrong))}")
    merged = [(left, right) for left, right in pairs]
    library = byte_level_bpe(vocabulary, merged, rule, str(merges))  # type: ignore[arg-type]
    made = {left + right for left, right in merged}
    # No text leads to these tokens, so that they can only be meant as control tokens.
    brackets = (("<", ">"), ("[", "]"))
    unmade = [text for text in vocabulary if text not in made and text not in BYTE_OF]
    mark_as_control(library, [text for text in unmade if (text[:1], text[-1:]) in brackets])
    return library


def tokens_of(folder: Path, config: Mapping[str, object]) -> dict[int, AddedToken]:
    """The tokens, by id, that stand beside the vocabulary: in tokenizer_config.json and in added_tokens.json."""
    tokens: dict[int, AddedToken] = {}
    for text, id in read_object(folder / "added_tokens.json").items():
        if not isinstance(id, int):
            raise TextError(f"{folder / 'added_tokens.json'}: expected ids of tokens, got {one_line(id, 60)}")
        tokens[id] = AddedToken(text, normalized=False)
    listed = config.get("added_tokens_decoder") or {}
    for id, entry in listed.items() if isinstance(listed, dict) else [("", listed)]:
        if not id.isdecimal() or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise TextError(f"tokenizer_config.json: added_tokens_decoder: cannot use {one_line({id: entry}, 80)}")
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        given = {key: bool(entry[key]) for key in flags if key in entry}
        tokens[int(id)] = AddedToken(entry["content"], **given)
    return tokens


def settings_of(
    folder: Path, config: dict[str, object], library: tokenizers.Tokenizer, frame: Frame | None
) -> Settings:
    """What the folder's files say of its tokenizer; what is usual, where none of them names a token.

    `frame` is None where there is no tokenizer.json to say what is put around a text: then flags say it. (Where there
    is one, Hugging Face too does not ask the flags.)
    """
    said = read_object(folder / "special_tokens_map.json") | config
    texts = {name: token_text(said[name], name) for name in NAMES if said.get(name) is not None}
    mark_as_control(library, [*texts.values(), *further_tokens(said)])
    settings = usual_settings(library)
    if not said.keys().isdisjoint(NAMES):
        ids = {name: library.token_to_id(text) for name, text in texts.items()}
        for name in ("bos_token", "eos_token"):
            if name in ids and ids[name] is None:
                raise TextError(f"{folder}: {name} is {shown(texts[name])}, which the vocabulary does not have")
        settings = Settings(ids.get("bos_token"), id_list(ids.get("eos_token"), ""), ids.get("pad_token"))
    settings = framed(settings, flagged_frame(config, settings) if frame is None else frame)
    generation = folder / "generation_config.json"
    ends = id_list(read_object(generation).get("eos_token_id"), f"{generation}: eos_token_id")
    template = template_of(folder, config, texts)
    return replace(settings, eos_ids=tuple(dict.fromkeys(settings.eos_ids + ends)), chat_template=template)


def flagged_frame(config: Mapping[str, object], settings: Settings) -> Frame:
    adds_bos, adds_eos = (flag(config, key, "tokenizer_config.json") for key in ("add_bos_token", "add_eos_token"))
    bos = () if settings.bos_id is None else (settings.bos_id,)
    return bos if adds_bos else (), settings.eos_ids if adds_eos else ()


def framed(settings: Settings, frame: Frame) -> Settings:
    """The settings with the ids that a post-processor puts around a text; a BOS that it puts first is `adds_bos`."""
    opening, closing = frame
    adds_bos = settings.bos_id is not None and opening[:1] == (settings.bos_id,)
    return replace(settings, adds_bos=adds_bos, opening=opening[adds_bos:], closing=closing)


def usual_settings(library: tokenizers.Tokenizer) -> Settings:
    """BOS and EOS by the names that they usually have."""
    controls = {token.content: id for id, token in library.get_added_tokens_decoder().items() if token.special}
    bos = [controls[text] for text in USUAL_BOS if text in controls]
    eos = [controls[text] for text in USUAL_EOS if text in controls]
    return Settings(bos_id=bos[0] if bos else None, eos_ids=tuple(eos[:1]))


def token_text(value: object, name: str) -> str:
    """A token as the files name it: its text, or an object with its text under "content"."""
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise TextError(f"{name}: expected the text of a token, got {one_line(value, 60)}")
    return text


def further_tokens(said: Mapping[str, object]) -> list[str]:
    """The texts of control tokens without a task of their own."""
    found = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        listed = said.get(name) or []
        values = listed.values() if isinstance(listed, dict) else listed
        if not isinstance(values, Iterable):
            raise TextError(f"{name}: expected a list of tokens, got {one_line(values, 60)}")
        found += [token_text(value, name) for value in values]
    return found


def template_of(folder: Path, config: Mapping[str, object], texts: Mapping[str, str]) -> ChatTemplate | None:
    """The chat template: chat_template.jinja, or the entry of tokenizer_config.json, of several the default one."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return ChatTemplate(read_text(path), texts)
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    if source is not None and not isinstance(source, str):
        raise TextError(f"{folder}: chat_template: expected the text of a template, got {one_line(source, 60)}")
    return None if source is None else ChatTemplate(source, texts)
