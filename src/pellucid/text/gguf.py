"""Tokenizers from the metadata of GGUF files (`tokenizer.ggml.*`).
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import tokenizers
from tokenizers import AddedToken
from tokenizers.normalizers import BertNormalizer

from .coder import Coder, LibraryCoder
from .errors import TextError, shown
from .framing import Frame, bert_frame, framed
from .library import add_tokens, byte_level_bpe, mark_as_control
from .metadata import GGML, kinds_of, scores_of, text_under, texts_under
from .normalizer import BLANK, Normalizer
from .piece_coder import PieceCoder
from .pieces import CONTROLS, Kind, Piece, PieceModel
from .pretokenizers import Rule, pre_tokenizer, rule_named
from .settings import Settings, flag, id_list
from .template import ChatTemplate
from .wordpiece import GOES_ON, wordpiece

ENDS = ("eos_token_id", "eos_token_ids", "eot_token_id", "eom_token_id")  # of a text, a turn, a message
NAMED = {"bos": "bos", "eos": "eos", "unknown": "unk", "seperator": "sep", "padding": "pad", "mask": "mask"}
ADDED = CONTROLS | {Kind.USER_DEFINED}  # found in text before it is cut
Built = tuple[Coder, Settings]
Tasks = dict[str, tuple[int, ...]]  # the ids under each key that names some


def read_metadata(metadata: Mapping[str, object]) -> Built:
    """The tokenizer in a file's metadata: see `Tokenizer.from_gguf`."""
    model = text_under(metadata, GGML + "model")
    if model not in READERS:
        raise TextError(
            f"{GGML}model is {shown(model)}, a kind of tokenizer that cannot be read here. Known are: gpt2 "
            "(byte-level BPE), llama (SentencePiece's BPE), bert (WordPiece)"
        )
    tokens = texts_under(metadata, GGML + "tokens")
    kinds = kinds_of(metadata, len(tokens))
    return READERS[model](metadata, tokens, kinds)


def read_gpt2(metadata: Mapping[str, object], tokens: list[str], kinds: list[int]) -> Built:
    # Files from before the key was introduced mean what llama.cpp then did.
    rule = rule_named(text_under(metadata, GGML + "pre") if GGML + "pre" in metadata else "default")
    library = bpe_of(metadata, tokens, kinds, rule)
    tasks = tasks_of(metadata, tokens, kinds)
    mark_as_control(library, texts_of(tasks, tokens))
    return LibraryCoder(library), settings_of(metadata, tokens, tasks, rule.adds_bos)


def bpe_of(metadata: Mapping[str, object], tokens: list[str], kinds: list[int], rule: Rule) -> tokenizers.Tokenizer:
    unused = kinds.count(Kind.UNUSED)
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    if unused:
        vocabulary = {text: id for text, id in vocabulary.items() if kinds[id] != Kind.UNUSED}
    if len(vocabulary) != len(tokens) - unused:
        raise TextError(f"{GGML}tokens: a token is there twice")
    lines = texts_under(metadata, GGML + "merges")
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    library = byte_level_bpe(vocabulary, merges, pre_tokenizer(rule), GGML + "merges", rule.ignore_merges)
    add_marked(library, tokens, kinds)
    return library


def add_marked(library: tokenizers.Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Let control tokens, and those that users defined, be found in text before it is cut."""
    places = [id for id, kind in enumerate(kinds) if kind in ADDED]
    added = {id: AddedToken(tokens[id], normalized=False, special=kinds[id] in CONTROLS) for id in places}
    add_tokens(library, added, GGML + "tokens")


def read_llama(metadata: Mapping[str, object], tokens: list[str], kinds: list[int]) -> Built:
    """SentencePiece's BPE. What the file does not say is as llama.cpp has it: a blank goes before a text, and BOS."""
    prefix, collapse = (
        flag(metadata, GGML + key, "metadata") for key in ("add_space_prefix", "remove_extra_whitespaces")
    )
    tasks = tasks_of(metadata, tokens, kinds)
    wrong = next((kind for kind in kinds if kind not in list(Kind)), None)
    if wrong is not None:
        raise TextError(f"{GGML}token_type: {wrong} is no kind of token")
    pieces = tuple(map(Piece, tokens, scores_of(metadata, len(tokens)), map(Kind, kinds)))
    model = PieceModel(pieces, "bpe", Normalizer(prefix is not False, bool(collapse)))
    coder = PieceCoder(model.with_pieces(pieces).with_controls(texts_of(tasks, tokens)))
    return coder, settings_of(metadata, tokens, tasks, adds_bos=bool(tasks["bos_token_id"]))


def read_bert(metadata: Mapping[str, object], tokens: list[str], kinds: list[int]) -> Built:
    """WordPiece, whose files mark where words begin, rather than the pieces that go on. As llama.cpp does, text is
    put in lower case, and accents are taken off."""
    tasks = tasks_of(metadata, tokens, kinds)
    unknown = next(iter(tasks["unknown_token_id"]), None)
    cls_id, sep_id = (next(iter(tasks[key]), None) for key in ("bos_token_id", "seperator_token_id"))
    if cls_id is None:
        cls_id = next(iter(tasks["cls_token_id"]), None)
    if unknown is None or cls_id is None or sep_id is None:
        raise TextError(f"{GGML}: a bert tokenizer needs unknown_token_id, bos_token_id ([CLS]) and seperator_token_id")
    words = [word_of(token, kind) for token, kind in zip(tokens, kinds, strict=True)]
    library = wordpiece(words, BertNormalizer(lowercase=True), words[unknown], GGML + "tokens")
    mark_as_control(library, texts_of(tasks, words))
    add_marked(library, words, kinds)
    first, last = (flag(metadata, GGML + key, "metadata") is not False for key in ("add_bos_token", "add_eos_token"))
    frame = bert_frame(cls_id, sep_id)
    if not (first and last):
        frame = Frame(frame.opening if first else (), frame.closing if last else ())
    settings = Settings(pad_id=next(iter(tasks["padding_token_id"]), None), cls_id=cls_id, sep_id=sep_id)
    settings = replace(settings, mask_id=next(iter(tasks["mask_token_id"]), None))
    return LibraryCoder(library), framed(settings, frame)


def word_of(token: str, kind: int) -> str:
    """A token as BERT's own vocabulary writes it."""
    bare = token.startswith("[") and token.endswith("]")
    if kind not in (Kind.NORMAL, Kind.UNDEFINED) or bare:
        return token
    return token.removeprefix(BLANK) if token.startswith(BLANK) else GOES_ON + token


def tasks_of(metadata: Mapping[str, object], tokens: list[str], kinds: list[int]) -> Tasks:
    """The ids of tokens with a task."""
    tasks = {}
    for key in (*ENDS, *(f"{key}_token_id" for key in NAMED), "cls_token_id"):
        tasks[key] = id_list(metadata.get(GGML + key), GGML + key)
        for id in tasks[key]:
            if id >= len(tokens) or kinds[id] == Kind.UNUSED:
                raise TextError(f"{GGML}{key} is {id}, which is none of the {len(tokens)} tokens")
    return tasks


def texts_of(tasks: Tasks, tokens: list[str]) -> list[str]:
    return [tokens[id] for id in {id for found in tasks.values() for id in found}]


def settings_of(metadata: Mapping[str, object], tokens: list[str], tasks: Tasks, adds_bos: bool) -> Settings:
    """`adds_bos`: whether BOS is put first where the file does not say."""
    texts = {f"{name}_token": tokens[id] for key, name in NAMED.items() for id in tasks[f"{key}_token_id"][:1]}
    ends = tuple(dict.fromkeys(id for key in ENDS for id in tasks[key]))
    ids = {name: next(iter(tasks[f"{key}_token_id"]), None) for key, name in NAMED.items()}
    said = flag(metadata, GGML + "add_bos_token", "metadata")
    if said and ids["bos"] is None:
        raise TextError(f"{GGML}add_bos_token is true, but there is no {GGML}bos_token_id")
    template = text_under(metadata, "tokenizer.chat_template") if "tokenizer.chat_template" in metadata else None
    return Settings(
        bos_id=ids["bos"],
        eos_ids=ends,
        pad_id=ids["pad"],
        sep_id=ids["sep"],
        mask_id=ids["mask"],
        adds_bos=ids["bos"] is not None and (adds_bos if said is None else said),
        closing=ends[:1] if flag(metadata, GGML + "add_eos_token", "metadata") else (),
        chat_template=None if template is None else ChatTemplate(template, texts),
    )


READERS: dict[str, Callable[[Mapping[str, object], list[str], list[int]], Built]] = {
    "gpt2": read_gpt2,
    "llama": read_llama,
    "bert": read_bert,
}
