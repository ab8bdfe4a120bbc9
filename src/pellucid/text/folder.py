"""Tokenizers from the files of a checkpoint folder."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import tokenizers
from tokenizers import normalizers
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer

from .characters import BYTE_OF
from .coder import Coder, LibraryCoder
from .errors import TextError, naming, one_line, raised_as_text_error, shown
from .files import file_in, has, parse_object, read_object, read_text
from .framing import Frame, bert_frame, framed, framing
from .library import add_tokens, byte_level_bpe, check_id, check_vocabulary, mark_as_control
from .llama2c import BOS, EOS, read_llama2c
from .marian import MarianCoder
from .named import control_texts, said_in, settings_of, tokens_of, usual_settings
from .piece_coder import PieceCoder
from .pretokenizers import pre_tokenizer, rule_named
from .sentencepiece_file import ModelFile, read_sentencepiece
from .settings import Settings, flag
from .wordpiece import read_vocab_txt

VOCAB_MERGES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
FORMS = "tokenizer.json, tokenizer.model, source.spm and vocab.json, vocab.json and merges.txt, or vocab.txt"

Built = tuple[Coder, Settings]


def read_folder(path: str | os.PathLike[str]) -> Built:
    """The tokenizer of a checkpoint folder: see `Tokenizer.from_folder`."""
    folder = Path(path)
    if not folder.is_dir():
        raise TextError(f"{folder}: expected a folder with a tokenizer's files")
    with naming(folder):
        return _read_folder(folder)


def _read_folder(folder: Path) -> Built:
    config = read_object(file_in(folder, "tokenizer_config.json"))
    if has(folder, "tokenizer.json"):
        whole = file_in(folder, "tokenizer.json")
        library, frame = read_library(read_text(whole), str(whole))
    elif has(folder, "tokenizer.model"):
        return read_pieces(folder, config)
    elif has(folder, "source.spm"):
        return read_marian(folder, config)
    else:
        library, frame = read_parts(folder, config), None
    add_tokens(library, tokens_of(folder, config), str(folder))
    mark_as_control(library, control_texts(said_in(folder, config)))
    coder = LibraryCoder(library)
    settings = settings_of(folder, config, coder)
    return coder, framed(settings, flagged_frame(config, settings) if frame is None else frame)


def read_pieces(folder: Path, config: dict[str, object]) -> Built:
    """The tokenizer of a folder with tokenizer.model. BOS is put first unless the folder says otherwise, as Llama's
    own readers do; the model itself does not say."""
    file = read_sentencepiece(file_in(folder, "tokenizer.model"))
    model = file.model.with_tokens(tokens_of(folder, config), str(folder))
    legacy = flag(config, "legacy", "tokenizer_config.json")
    prefix = flag(config, "add_prefix_space", "tokenizer_config.json")
    if prefix is not None:
        model = replace(model, normalizer=replace(model.normalizer, prefix=prefix))
    model = replace(model, prefix_each=legacy is not False)
    coder = PieceCoder(model.with_controls(control_texts(said_in(folder, config))))
    settings = settings_of(folder, config, coder, settings_in(file))
    return coder, framed(settings, flagged_frame(config, settings, adds_bos=True))


def read_marian(folder: Path, config: dict[str, object]) -> Built:
    """The tokenizer of a folder with source.spm and vocab.json: texts to translate, with EOS after them."""
    if flag(config, "separate_vocabs", "tokenizer_config.json"):
        raise TextError(f"{folder}: separate_vocabs: two vocabularies cannot be read here")
    path = file_in(folder, "vocab.json")
    vocabulary = parse_object(read_text(path), path)
    check_vocabulary(vocabulary, path)
    model = read_sentencepiece(file_in(folder, "source.spm")).model
    coder = MarianCoder(model, vocabulary, str(folder))  # type: ignore[arg-type]
    settings = settings_of(folder, config, coder)
    return coder, framed(settings, Frame(closing=settings.eos_ids[:1]))


def read_piece_file(path: str | os.PathLike[str]) -> Built:
    """The tokenizer of a SentencePiece model: see `Tokenizer.from_sentencepiece`."""
    file = read_sentencepiece(Path(path))
    settings = settings_in(file)
    return PieceCoder(file.model), framed(settings, flagged_frame({}, settings, adds_bos=True))


def settings_in(file: ModelFile) -> Settings:
    ends = () if file.eos_id is None else (file.eos_id,)
    return Settings(bos_id=file.bos_id, eos_ids=ends, pad_id=file.pad_id)


def read_llama2c_file(path: str | os.PathLike[str]) -> Built:
    """The tokenizer of a vocabulary file of llama2.c: see `Tokenizer.from_llama2c`."""
    return PieceCoder(read_llama2c(Path(path))), Settings(bos_id=BOS, eos_ids=(EOS,), adds_bos=True)


def read_json_tokenizer(path_or_text: str | os.PathLike[str]) -> Built:
    """The tokenizer of a tokenizer.json: see `Tokenizer.from_json`."""
    if isinstance(path_or_text, str) and path_or_text.lstrip()[:1] in ("{", "["):
        library, frame = read_library(path_or_text, "tokenizer.json")
    else:
        library, frame = read_library(read_text(Path(path_or_text)), str(path_or_text))
    coder = LibraryCoder(library)
    return coder, framed(usual_settings(coder), frame)


def read_vocab_merges(vocab: str | os.PathLike[str], merges: str | os.PathLike[str]) -> Built:
    """GPT-2's kind of tokenizer from its two files: see `Tokenizer.from_vocab_merges`."""
    library = bpe_from_files(Path(vocab), Path(merges), ByteLevel(add_prefix_space=False))
    coder = LibraryCoder(library)
    return coder, usual_settings(coder)


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
    pair = next((pair for pair in VOCAB_MERGES if all(has(folder, name) for name in pair)), None)
    if pair is None and has(folder, "vocab.txt"):
        return read_vocab_txt(folder, config)
    if pair is None:
        raise TextError(f"{folder}: expected {FORMS}, but found none of them")
    kind = str(config.get("tokenizer_class") or "GPT2Tokenizer").removesuffix("Fast")
    if kind not in ("GPT2Tokenizer", "Qwen2Tokenizer"):
        raise TextError(
            f"{folder}: {pair[0]} and {pair[1]} do not say how a {one_line(kind, 60)} cuts text into words. Save the "
            "tokenizer as tokenizer.json (transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    prefix = flag(config, "add_prefix_space", "tokenizer_config.json") or False
    is_qwen = kind == "Qwen2Tokenizer"
    rule = pre_tokenizer(rule_named("qwen2")) if is_qwen else ByteLevel(add_prefix_space=prefix)
    library = bpe_from_files(file_in(folder, pair[0]), file_in(folder, pair[1]), rule)
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


def flagged_frame(config: Mapping[str, object], settings: Settings, adds_bos: bool = False) -> Frame:
    """What flags say is put around a text, where there is no tokenizer.json to say it. (Where there is one, Hugging
    Face too does not ask the flags.) `adds_bos`: whether BOS is put first where they do not say."""
    if settings.cls_id is not None and settings.sep_id is not None and settings.bos_id is None:
        return bert_frame(settings.cls_id, settings.sep_id)
    first, last = (flag(config, key, "tokenizer_config.json") for key in ("add_bos_token", "add_eos_token"))
    bos = () if settings.bos_id is None else (settings.bos_id,)
    return Frame(bos if (adds_bos if first is None else first) else (), settings.eos_ids if last else ())
