"""SentencePiece's own files, `tokenizer.model` or `source.spm`.
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .charsmap import Charsmap
from .errors import TextError, shown
from .files import read_bytes
from .library import MOST_TOKENS
from .normalizer import Normalizer
from .pieces import Kind, Piece, PieceModel
from .protobuf import Value, fields, octets, single, text, whole

METHODS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
# Fields of the trainer's and the normalizer's part, by number: name, how they are read, what holds without them.
Field = tuple[str, Callable[[Value, str], int | str | bytes], int | str | bytes]
TRAINER: dict[int, Field] = {
    3: ("model_type", whole, 1),
    24: ("treat_whitespace_as_suffix", whole, 0),
    35: ("byte_fallback", whole, 0),
    46: ("bos_piece", text, "<s>"),
    47: ("eos_piece", text, "</s>"),
    48: ("pad_piece", text, "<pad>"),
}
NORMALIZER: dict[int, Field] = {
    2: ("precompiled_charsmap", octets, b""),
    3: ("add_dummy_prefix", whole, 1),
    4: ("remove_extra_whitespaces", whole, 1),
    5: ("escape_whitespaces", whole, 1),
}


@dataclass
class Parts:
    """What is gathered of a model while its fields are read."""

    pieces: list[Piece] = field(default_factory=list)
    trainer: bytearray = field(default_factory=bytearray)  # parts of one message add up
    normalizer: bytearray = field(default_factory=bytearray)
    denormalizer: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class ModelFile:
    """The vocabulary of a file, and the ids with a task."""

    model: PieceModel
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None


def read_sentencepiece(path: Path) -> ModelFile:
    """The vocabulary in a SentencePiece model file. Raises TextError, also for what would be followed wrongly."""
    try:
        return model_of(parts_of(read_bytes(path)))
    except TextError as error:
        if str(error).startswith(str(path)):
            raise
        raise TextError(f"{path}: not a SentencePiece model that can be read: {error}") from error


def parts_of(message: bytes) -> Parts:
    parts = Parts()
    for number, value in fields(message):
        if number == 1:
            if len(parts.pieces) == MOST_TOKENS:
                raise TextError(f"more than {MOST_TOKENS} pieces")
            parts.pieces.append(piece_of(octets(value, "pieces"), len(parts.pieces)))
        elif number == 2:
            parts.trainer += octets(value, "trainer_spec")
        elif number == 3:
            parts.normalizer += octets(value, "normalizer_spec")
        elif number == 5:
            parts.denormalizer += octets(value, "denormalizer_spec")
    return parts


def piece_of(message: bytes, id: int) -> Piece:
    where = f"piece {id}"
    words, score, kind = "", 0.0, int(Kind.NORMAL)
    for number, value in fields(message):
        if number == 1:
            words = text(value, where)
        elif number == 2:
            score = single(value, where)
        elif number == 3:
            kind = whole(value, where)
    if not Kind.NORMAL <= kind <= Kind.BYTE:
        raise TextError(f"{where}: {kind} is no kind of piece")
    return Piece(words, score, Kind(kind))


def settings_in(message: bytes, known: dict[int, Field]) -> dict[str, int | str | bytes]:
    found = {name: usual for name, _, usual in known.values()}
    for number, value in fields(message):
        if number in known:
            name, read, _ = known[number]
            found[name] = read(value, name)
    return found


def model_of(parts: Parts) -> ModelFile:
    trainer, rules = settings_in(bytes(parts.trainer), TRAINER), settings_in(bytes(parts.normalizer), NORMALIZER)
    method = METHODS.get(int(trainer["model_type"]), "unknown")
    for reason in refused(method, trainer, rules, settings_in(bytes(parts.denormalizer), NORMALIZER)):
        raise TextError(reason)
    charsmap = bytes(rules["precompiled_charsmap"])  # type: ignore[arg-type]
    normalizer = Normalizer(
        prefix=bool(rules["add_dummy_prefix"]),
        collapse=bool(rules["remove_extra_whitespaces"]),
        charsmap=Charsmap(charsmap) if charsmap else None,
    )
    model = PieceModel(tuple(parts.pieces), method, normalizer).with_pieces(parts.pieces)  # type: ignore[arg-type]
    if bool(trainer["byte_fallback"]) != bool(model.byte_ids):
        has = "has" if model.byte_ids else "has no"
        raise TextError(f"byte_fallback is {bool(trainer['byte_fallback'])}, but the vocabulary {has} pieces for bytes")
    controls = {piece.text: id for id, piece in enumerate(parts.pieces) if piece.kind == Kind.CONTROL}
    return ModelFile(model, *(controls.get(str(trainer[f"{name}_piece"])) for name in ("bos", "eos", "pad")))


def refused(method: str, trainer: dict, rules: dict, denormalizer: dict) -> Iterator[str]:
    """Why a model cannot be followed."""
    if method not in ("bpe", "unigram"):
        yield f"its method is {shown(method)}; bpe and unigram can be read"
    if trainer["treat_whitespace_as_suffix"]:
        yield "it writes blanks after words (treat_whitespace_as_suffix), which cannot be followed here"
    if not rules["escape_whitespaces"]:
        yield "it leaves blanks as they are (escape_whitespaces is false), which cannot be followed here"
    if denormalizer["precompiled_charsmap"]:
        yield "it rewrites texts when it decodes (denormalizer_spec), which cannot be followed here"
