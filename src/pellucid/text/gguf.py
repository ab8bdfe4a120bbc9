"""Tokenizers from the metadata of GGUF files (`tokenizer.ggml.*`).
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
"""

from collections.abc import Mapping
from enum import IntEnum

import tokenizers
from tokenizers import AddedToken

from .errors import TextError, one_line, shown
from .library import MOST_TOKENS, add_tokens, byte_level_bpe, mark_as_control
from .pretokenizers import Rule, pre_tokenizer, rule_named
from .settings import Settings, flag, id_list
from .template import ChatTemplate

GGML = "tokenizer.ggml."
ENDS = ("eos_token_id", "eos_token_ids", "eot_token_id", "eom_token_id")  # of a text, a turn, a message
NAMED = {"bos": "bos", "eos": "eos", "unknown": "unk", "seperator": "sep", "padding": "pad", "mask": "mask"}


class Kind(IntEnum):
    """What a token is for; files without the list of kinds have normal tokens only."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


CONTROLS = frozenset({Kind.CONTROL, Kind.UNKNOWN})
ADDED = CONTROLS | {Kind.USER_DEFINED}  # found in text before it is cut


def read_metadata(metadata: Mapping[str, object]) -> tuple[tokenizers.Tokenizer, Settings]:
    """The tokenizer in a file's metadata: see `Tokenizer.from_gguf`."""
    model = text_under(metadata, GGML + "model")
    if model != "gpt2":
        raise TextError(
            f"{GGML}model is {shown(model)}, a kind of tokenizer that cannot be read here. Known is: gpt2 "
            "(byte-level BPE)"
        )
    # Files from before the key was introduced mean what llama.cpp then did.
    rule = rule_named(text_under(metadata, GGML + "pre") if GGML + "pre" in metadata else "default")
    tokens = texts_under(metadata, GGML + "tokens")
    kinds = kinds_of(metadata, len(tokens))
    library = bpe_of(metadata, tokens, kinds, rule)
    return library, settings_of(metadata, tokens, library, rule)


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
    places = [id for id, kind in enumerate(kinds) if kind in ADDED]
    added = {id: AddedToken(tokens[id], normalized=False, special=kinds[id] in CONTROLS) for id in places}
    add_tokens(library, added, GGML + "tokens")
    return library


def settings_of(
    metadata: Mapping[str, object], tokens: list[str], library: tokenizers.Tokenizer, rule: Rule
) -> Settings:
    ids = {}
    for key in (*ENDS, *(f"{key}_token_id" for key in NAMED)):
        ids[key] = id_list(metadata.get(GGML + key), GGML + key)
        for id in ids[key]:
            if id >= len(tokens) or library.id_to_token(id) is None:
                raise TextError(f"{GGML}{key} is {id}, which is none of the {len(tokens)} tokens")
    texts = {f"{name}_token": tokens[id] for key, name in NAMED.items() for id in ids[f"{key}_token_id"][:1]}
    mark_as_control(
        library, [tokens[id] for id in {id for found in ids.values() for id in found} if len(tokens[id]) > 1]
    )
    ends = tuple(dict.fromkeys(id for key in ENDS for id in ids[key]))
    bos, pad = next(iter(ids["bos_token_id"]), None), next(iter(ids["padding_token_id"]), None)
    said = flag(metadata, GGML + "add_bos_token", "metadata")
    if said and bos is None:
        raise TextError(f"{GGML}add_bos_token is true, but there is no {GGML}bos_token_id")
    template = text_under(metadata, "tokenizer.chat_template") if "tokenizer.chat_template" in metadata else None
    return Settings(
        bos_id=bos,
        eos_ids=ends,
        pad_id=pad,
        adds_bos=bos is not None and (rule.adds_bos if said is None else said),
        closing=ends[:1] if flag(metadata, GGML + "add_eos_token", "metadata") else (),
        chat_template=None if template is None else ChatTemplate(template, texts),
    )


def kinds_of(metadata: Mapping[str, object], number: int) -> list[int]:
    key = GGML + "token_type"
    if key not in metadata:
        return [Kind.NORMAL] * number
    kinds = list_under(metadata, key)
    if len(kinds) != number or set(map(type, kinds)) - {int}:
        raise TextError(f"{key}: expected {number} whole numbers, one for each token, got {len(kinds)} values")
    return kinds


def text_under(metadata: Mapping[str, object], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str):
        raise TextError(f"{key}: expected a text, got {'nothing' if value is None else one_line(repr(value), 60)}")
    return value


def texts_under(metadata: Mapping[str, object], key: str) -> list[str]:
    values = list_under(metadata, key)
    if set(map(type, values)) - {str}:
        raise TextError(f"{key}: expected a list of texts, but not all of its values are texts")
    return values


def list_under(metadata: Mapping[str, object], key: str) -> list:
    value = metadata.get(key)
    if not isinstance(value, list | tuple):
        raise TextError(f"{key}: expected a list, got {'nothing' if value is None else one_line(repr(value), 60)}")
    if len(value) > MOST_TOKENS:
        raise TextError(f"{key}: {len(value)} values, at most {MOST_TOKENS} are read")
    return list(value)
