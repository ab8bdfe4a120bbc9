"""SentencePiece's BPE as a tokenizer.json has it, with merges instead of scores, and back.

Scores join the best piece first, merges the first pair. They do the same where no two pieces have one score, and the
pairs that make a piece stand together among the merges and are all that the vocabulary allows.
"""

from itertools import pairwise
from typing import Any

from .errors import TextError, shown
from .merging import BLANK_WITHIN, tied, ways_to_make
from .normalizer import BLANK, Normalizer
from .pieces import BYTE, CONTROLS, Kind, Piece, PieceModel

NORMAL = (Kind.NORMAL, Kind.UNDEFINED)
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}


def model_of(state: dict[str, Any], prefix_each: bool) -> tuple[PieceModel, list[str]]:
    """The vocabulary of a tokenizer.json whose kind is SentencePiece's, and what of it is only nearly the same.

    Raises TextError for rules that SentencePiece does not have.
    """
    model = state["model"]
    if not (model["unk_token"] is None or model["fuse_unk"]) or model["ignore_merges"]:
        raise TextError("SentencePiece joins unknown characters, and looks no words up; this tokenizer does otherwise")
    prefix = prefix_of(state)
    pairs = [tuple(pair.split(" ", 1)) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
    pieces = pieces_of(state, {left + right: -float(n) for n, (left, right) in reversed(list(enumerate(pairs)))})
    lost = []
    made = ways_to_make(pieces, {piece.text: id for id, piece in enumerate(pieces) if piece.kind in NORMAL})
    together = [left + right for left, right in pairs]
    changes = 1 + sum(one != other for one, other in pairwise(together))
    if {pair for found in made.values() for pair in found} != set(pairs) or (pairs and changes != len(set(together))):
        lost.append("its merges stand in an order that scores do not give")
    if any(piece.kind == Kind.USER_DEFINED for piece in pieces):
        lost.append("what follows a token that users defined begins a text")
    if prefix and state["pre_tokenizer"]:
        lost.append("a text that begins with a blank gets no other before it")
    if cuts_words(state) and any(BLANK_WITHIN.search(piece.text) for piece in pieces if piece.kind in NORMAL):
        lost.append("text is cut into words, but the vocabulary has pieces that reach from one into the next")
    return PieceModel(pieces, "bpe", Normalizer(prefix), prefix_each), lost


def prefix_of(state: dict[str, Any]) -> bool:
    """Whether a blank is put before a text. Raises TextError for rules other than those of blanks."""
    normalizer, cut = state["normalizer"], state["pre_tokenizer"]
    parts = normalizer["normalizers"] if normalizer and normalizer["type"] == "Sequence" else [normalizer]
    rules = [part for part in parts if part and part != SPACES]
    puts = [part == {"type": "Prepend", "prepend": BLANK} for part in rules]
    blanks = bool(cut) and cut["type"] == "Metaspace" and cut["replacement"] == BLANK
    if not all(puts) or len(puts) + blanks > 1 or (cut and not blanks) or (not blanks and SPACES not in parts):
        raise TextError("it rewrites or cuts texts in a way that SentencePiece does not")
    return bool(puts) or (blanks and cut["prepend_scheme"] != "never")


def cuts_words(state: dict[str, Any]) -> bool:
    return bool(state["pre_tokenizer"]) and state["pre_tokenizer"].get("split") is not False


def pieces_of(state: dict[str, Any], scores: dict[str, float]) -> tuple[Piece, ...]:
    model, added = state["model"], {token["id"]: token for token in state["added_tokens"]}
    texts = {id: text for text, id in model["vocab"].items()} | {id: t["content"] for id, t in added.items()}
    pieces = []
    for id in range(max(texts) + 1):
        text, kind = texts.get(id, f"[PAD{id}]"), Kind.NORMAL
        if id not in texts:
            kind = Kind.UNUSED
        elif text == model["unk_token"]:
            kind = Kind.UNKNOWN
        elif id in added:
            kind = Kind.CONTROL if added[id]["special"] else Kind.USER_DEFINED
        elif model["byte_fallback"] and BYTE.fullmatch(text):
            kind = Kind.BYTE
        pieces.append(Piece(text, scores.get(text, -float(len(scores))) if kind == Kind.NORMAL else 0.0, kind))
    if any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added.values()):
        raise TextError("an added token takes blanks in, or stands alone, which SentencePiece's do not")
    return tuple(pieces)


def state_of_pieces(model: PieceModel) -> dict[str, Any]:
    """A tokenizer.json for a vocabulary, nothing put around a text. Raises TextError where none does exactly the same,
    with the reason."""
    rules, pieces = model.normalizer, model.pieces
    if reason := next(iter(why_not(model)), None):
        raise TextError(f"no tokenizer.json does exactly what this SentencePiece vocabulary does: {reason}")
    ids = {piece.text: id for id, piece in enumerate(pieces) if piece.kind in NORMAL}
    made = ways_to_make(pieces, ids)
    order = sorted(made, key=lambda text: pieces[ids[text]].score, reverse=True)
    unknown = None if model.unknown_id is None else pieces[model.unknown_id].text
    prepend = [{"type": "Prepend", "prepend": BLANK}] if rules.prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if rules.prefix else []
    back = {"type": "Replace", "pattern": {"String": BLANK}, "content": " "}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(id, piece) for id, piece in enumerate(pieces) if piece.kind in CONTROLS],
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, SPACES]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": bool(model.byte_ids), "ignore_merges": False,
            "vocab": {piece.text: id for id, piece in enumerate(pieces) if piece.kind != Kind.UNUSED},
            "merges": [list(pair) for text in order for pair in reversed(made[text])],  # as Hugging Face has them
        },
    }  # fmt: skip


def why_not(model: PieceModel) -> list[str]:
    """Why merges cannot do what scores do."""
    pieces, rules = model.pieces, model.normalizer
    if model.method != "bpe":
        return ["it is cut by Unigram's scores"]
    ids = {piece.text: id for id, piece in enumerate(pieces) if piece.kind in NORMAL}
    made = ways_to_make(pieces, ids)
    reasons = []
    if rules.charsmap is not None or rules.collapse:
        reasons.append("it rewrites characters, or takes extra blanks away")
    if rules.prefix and not model.prefix_each:
        reasons.append("only a text's beginning, and not what follows a control token, gets a blank")
    if ties := tied({text: pieces[ids[text]].score for text in made}):
        reasons.append(f"pieces have equal scores, {shown(ties[0])} among them")
    if any(half not in ids for pairs in made.values() for pair in pairs for half in pair):
        reasons.append("pieces are made of characters that are no pieces themselves")
    if any(piece.kind == Kind.USER_DEFINED for piece in pieces):
        reasons.append("it has pieces that users defined, after which no text begins")
    if any(piece.kind not in (*NORMAL, Kind.UNUSED) and len(piece.text) == 1 for piece in pieces):
        reasons.append("a control token is a single character")
    return reasons


def added(id: int, piece: Piece) -> dict[str, Any]:
    spaces = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": id, "content": piece.text, **spaces, "special": True}
