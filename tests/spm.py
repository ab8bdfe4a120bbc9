"""SentencePiece models for tests: trained by SentencePiece itself, or written by hand, field by field."""

import io
import random
import struct

import sentencepiece

NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE, WORD = 1, 2, 3
Piece = tuple[str, float, int]

SPECIAL: list[Piece] = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTES: list[Piece] = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]


def trained(method: str, **options: object) -> bytes:
    """A model of a few hundred pieces."""
    draw = random.Random(0)
    lines = ["hello world, the cat sat on the mat; naïve héllo 日本語 in 12 1212 aaaa aaa"] * 40
    lines += ["".join(draw.choice("abcde ") for _ in range(60)) for _ in range(8)]
    model = io.BytesIO()
    usual = {"vocab_size": 350, "byte_fallback": True, "character_coverage": 1.0, "num_threads": 1, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines), model_writer=model, model_type=method, hard_vocab_limit=False, **usual | options
    )
    return model.getvalue()


def processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=model)


# --- By hand ---


def number(value: int) -> bytes:
    """A protobuf varint."""
    head, rest = value & 0x7F, value >> 7
    return bytes([head | 0x80]) + number(rest) if rest else bytes([head])


def entry(field: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return number(field << 3) + number(value)
    return number(field << 3 | 2) + number(len(value)) + value


def piece(text: str, score: float, kind: int) -> bytes:
    return entry(1, text.encode()) + number(2 << 3 | 5) + struct.pack("<f", score) + entry(3, kind)


def written(
    pieces: list[Piece], method: int = BPE, rules: dict[int, int | bytes] | None = None, trainer: bytes = b""
) -> bytes:
    """A model; `rules` are fields of its normalizer, by default those of Llama: only a blank before a text."""
    fields = {3: 1, 4: 0, 5: 1} if rules is None else rules
    parts = [entry(1, piece(*each)) for each in pieces]
    parts.append(entry(2, entry(3, method) + trainer))
    parts.append(entry(3, b"".join(entry(field, value) for field, value in fields.items())))
    return b"".join(parts)
