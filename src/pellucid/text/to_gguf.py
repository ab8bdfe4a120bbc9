"""Tokenizers as the metadata of GGUF files (`tokenizer.*`): the inverse of gguf.py.
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
"""

import json
from dataclasses import dataclass, field
from typing import Any

from .coder import Coder, LibraryCoder
from .errors import TextError, shown
from .framing import bert_frame
from .gguf import word_of
from .metadata import GGML
from .normalizer import BLANK
from .piece_coder import PieceCoder
from .piece_json import model_of
from .pieces import Kind, PieceModel
from .pretokenizers import DIGIT, ENDINGS, GPT2, RULES
from .settings import Settings
from .spelling import ByteLevel, PieceSpelling, WordPiece
from .wordpiece import GOES_ON, LONGEST

ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# How tokenizer.json writes what a rule writes otherwise. (The first also takes "ſ" for an "s", which llama.cpp, for
# which the rules are named, does not.)
SPELLED = (("(?i:'s|'t|'re|'ve|'m|'ll|'d)", ENDINGS), (f"(?:{ENDINGS})", ENDINGS))


@dataclass
class Vocabulary:
    """What a file says of a vocabulary: `model` is its kind, `tokens` and `kinds` go by id. `lost` are rules that the
    format has no place for."""

    model: str
    tokens: list[str]
    kinds: list[int]
    unknown: int | None = None
    more: dict[str, object] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)


def metadata_of(coder: Coder, settings: Settings, n_logits: int, lossy: bool) -> dict[str, object]:
    """The metadata of a tokenizer: see `Tokenizer.to_gguf`."""
    vocabulary = vocabulary_of(coder)
    if vocabulary.lost and not lossy:
        raise TextError(f"GGUF's tokenizers have no place for this: {'; '.join(vocabulary.lost)}")
    tokens = filled(dict(enumerate(vocabulary.tokens)), n_logits)
    kinds = vocabulary.kinds + [int(Kind.UNUSED)] * (len(tokens) - len(vocabulary.tokens))
    lists = {"model": vocabulary.model, **vocabulary.more, "tokens": tokens, "token_type": kinds}
    if "scores" in lists:
        lists["scores"] = [*vocabulary.more["scores"], *[-1000.0] * (len(tokens) - len(vocabulary.tokens))]  # type: ignore[misc]
    frame = bert_flags(settings) if vocabulary.model == "bert" else flags(settings)
    named: dict[str, object] = {
        GGML + key: value for key, value in {**lists, **tasks(coder, settings, vocabulary), **frame}.items()
    }
    template = settings.chat_template
    return named | ({} if template is None else {"tokenizer.chat_template": template.source})


def vocabulary_of(coder: Coder) -> Vocabulary:
    if isinstance(coder, PieceCoder):
        return from_pieces(coder.model)
    if isinstance(coder, LibraryCoder):
        state, spelling = json.loads(coder.source), coder.spelling
        match state["model"]["type"]:
            case "BPE" if isinstance(spelling, ByteLevel):
                return from_bytes(state)
            case "WordPiece" if isinstance(spelling, WordPiece):
                return from_words(state)
            case "BPE" if isinstance(spelling, PieceSpelling):
                model, lost = model_of(state, coder.prefix_each)
                vocabulary = from_pieces(model)
                vocabulary.lost += lost
                return vocabulary
    raise TextError(
        "GGUF holds byte-level BPE, SentencePiece's BPE and WordPiece, and this tokenizer is of another kind. Keep its "
        "own files beside the weights"
    )


# --- Byte-level BPE ---


def from_bytes(state: dict[str, Any]) -> Vocabulary:
    model = state["model"]
    for key in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            raise TextError(f"GGUF's byte-level BPE has no {key}, but this one's is {shown(str(model[key]))}")
    tokens, kinds, lost = tokens_of(state)
    pairs = [tuple(pair.split(" ", 1)) if isinstance(pair, str) else pair for pair in model["merges"]]
    if any(" " in half for pair in pairs for half in pair):
        raise TextError("a merge holds a blank, which divides the halves of a merge in GGUF")
    more = {"pre": rule_of(state), "merges": [f"{left} {right}" for left, right in pairs]}
    if normalizer := state["normalizer"]:
        lost.append(f"text is put into another form first ({shown(str(normalizer.get('type')))})")
    return Vocabulary("gpt2", tokens, kinds, None, more, lost)


def rule_of(state: dict[str, Any]) -> str:
    """The name that llama.cpp has for the rule by which text is cut into words."""
    patterns, whole = patterns_of(state["pre_tokenizer"]), bool(state["model"].get("ignore_merges"))
    for names, rule in RULES.items():
        if rule.patterns == patterns and rule.ignore_merges == whole:
            return names[0]
    raise TextError(
        "GGUF names the rule by which text is cut into words, and has no name for this one: "
        f"{shown(json.dumps(state['pre_tokenizer'], ensure_ascii=False), 200)}"
        f"{', with words looked up before they are merged' if whole else ''}"
    )


def patterns_of(part: Any) -> tuple[str, ...] | None:
    """The patterns that cut a text, in turn, before its bytes are written in the byte alphabet; None for others."""
    parts = part["pretokenizers"] if part and part["type"] == "Sequence" else [part]
    *cuts, last = parts
    found = [pattern_of(cut) for cut in cuts]
    if not last or last["type"] != "ByteLevel" or last["add_prefix_space"] or None in found:
        return None
    return tuple(found + [GPT2] * last["use_regex"])  # type: ignore[arg-type]


def pattern_of(cut: dict[str, Any]) -> str | None:
    match cut:
        case {"type": "Digits", "individual_digits": each}:
            return DIGIT if each else DIGIT + "+"
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
            for theirs, ours in SPELLED:
                pattern = pattern.replace(theirs, ours)
            return pattern
    return None


# --- WordPiece ---


def from_words(state: dict[str, Any]) -> Vocabulary:
    """Files mark where words begin, rather than the pieces that go on."""
    model, rules = state["model"], state["normalizer"] or {}
    usual = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True}
    kept = rules.get("strip_accents") is not False and all(rules.get(key) == value for key, value in usual.items())
    if not kept or (state["pre_tokenizer"] or {}).get("type") != "BertPreTokenizer":
        raise TextError(
            "GGUF's WordPiece puts text in lower case and takes accents off as BERT does; this one does not"
        )
    if model["continuing_subword_prefix"] != GOES_ON or model["max_input_chars_per_word"] != LONGEST:
        raise TextError(f"GGUF's WordPiece goes on with {GOES_ON} in words of at most {LONGEST} characters, as BERT's")
    words, kinds, lost = tokens_of(state)
    tokens = [marked(word, kind) for word, kind in zip(words, kinds, strict=True)]
    wrong = next((w for w, t, kind in zip(words, tokens, kinds, strict=True) if word_of(t, kind) != w), None)
    if wrong is not None:
        raise TextError(f"GGUF has no way to write the piece {shown(wrong)}")
    return Vocabulary("bert", tokens, kinds, model["vocab"][model["unk_token"]], lost=lost)


def marked(word: str, kind: int) -> str:
    if kind != Kind.NORMAL:
        return word
    return word.removeprefix(GOES_ON) if word.startswith(GOES_ON) and word != GOES_ON else BLANK + word


# --- SentencePiece ---


def from_pieces(model: PieceModel) -> Vocabulary:
    rules = model.normalizer
    if model.method != "bpe":
        raise TextError("GGUF's llama vocabularies are cut by BPE, and this one is Unigram. Keep its own file")
    if rules.charsmap is not None:
        raise TextError("GGUF's llama vocabularies rewrite no characters, and this one does (precompiled_charsmap)")
    lost = [] if model.prefix_each else ["only a text's beginning, and not what follows a control token, gets a blank"]
    more = {
        "pre": "default",
        "scores": [piece.score for piece in model.pieces],
        "add_space_prefix": rules.prefix,
        "remove_extra_whitespaces": rules.collapse,
    }
    tokens, kinds = [piece.text for piece in model.pieces], [int(piece.kind) for piece in model.pieces]
    return Vocabulary("llama", tokens, kinds, model.unknown_id, more, lost)


# --- What all share ---


def tokens_of(state: dict[str, Any]) -> tuple[list[str], list[int], list[str]]:
    """Tokens and kinds by id, and which of the added ones the format cannot follow."""
    added = {token["id"]: token for token in state["added_tokens"]}
    texts = {id: text for text, id in state["model"]["vocab"].items()} | {id: t["content"] for id, t in added.items()}
    tokens = filled(texts)
    kinds = [int(Kind.NORMAL if id in texts else Kind.UNUSED) for id in range(len(tokens))]
    for id, token in added.items():
        kinds[id] = int(Kind.CONTROL if token["special"] else Kind.USER_DEFINED)
    lost = [
        f"token {shown(token['content'])} takes blanks in, or stands alone"
        for token in added.values()
        if token["lstrip"] or token["rstrip"] or token["single_word"]
    ]
    return tokens, kinds, lost


def filled(texts: dict[int, str], size: int = 0) -> list[str]:
    """Texts by id, with names for the ids that have none."""
    known, tokens = set(texts.values()), []
    for id in range(max(size, max(texts) + 1)):
        name = f"[PAD{id}]"
        while name in known:
            name += "_"
        tokens.append(texts.get(id, name))
    return tokens


def tasks(coder: Coder, settings: Settings, vocabulary: Vocabulary) -> dict[str, object]:
    """The ids of tokens with a task; of several that end a text the second is GGUF's end of turn, the third that of a
    message, and where there are more, all stand in a list that llama.cpp does not read."""
    unknown, template = vocabulary.unknown, settings.chat_template
    if unknown is None and template is not None:
        unknown = coder.vocabulary.get(template.special_tokens.get("unk_token", ""))
    first = settings.cls_id if vocabulary.model == "bert" else settings.bos_id
    ids = {"bos": first, "unknown": unknown, "seperator": settings.sep_id, "padding": settings.pad_id}
    ids |= {"cls": settings.cls_id, "mask": settings.mask_id}
    named: dict[str, object] = {f"{name}_token_id": id for name, id in ids.items() if id is not None}
    ends = settings.eos_ids
    named |= dict(zip(ENDS, ends, strict=False))
    return named if len(ends) <= len(ENDS) else {**named, "eos_token_ids": list(ends)}


def flags(settings: Settings) -> dict[str, object]:
    """Whether BOS and EOS are put around a text; nothing else can be."""
    if settings.opening or settings.closing not in ((), settings.eos_ids[:1]):
        raise TextError(
            f"GGUF has BOS and EOS put around a text, and this tokenizer puts the ids {list(settings.opening)} before "
            f"and {list(settings.closing)} after it"
        )
    return {"add_bos_token": settings.adds_bos, "add_eos_token": bool(settings.closing)}


def bert_flags(settings: Settings) -> dict[str, object]:
    """Whether [CLS] and [SEP] are put around a text, which goes without saying."""
    cls_id, sep_id = settings.cls_id, settings.sep_id
    if cls_id is None or sep_id is None:
        raise TextError("GGUF's WordPiece puts [CLS] and [SEP] around a text, and this vocabulary does not name them")
    frame = bert_frame(cls_id, sep_id)
    opening = (settings.bos_id,) * settings.adds_bos + settings.opening
    if opening not in ((), frame.opening) or settings.closing not in ((), frame.closing):
        raise TextError(f"GGUF's WordPiece puts [CLS] and [SEP] around a text, not {opening} and {settings.closing}")
    ends = {"add_bos_token": bool(opening), "add_eos_token": bool(settings.closing)}
    return {key: False for key, wanted in ends.items() if not wanted}
