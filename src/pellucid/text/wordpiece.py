"""BERT's kind of tokenizer: text is cleaned and cut into words, and a word into the longest pieces that are known."""

from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from .errors import TextError, one_line, raised_as_text_error, shown
from .files import file_in, read_text
from .library import check_vocabulary, mark_as_control
from .settings import flag

CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer")
CONTROLS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
GOES_ON = "##"  # begins a piece that goes on with a word
LONGEST = 100  # characters; a longer word is unknown, as in Hugging Face's tokenizers


def read_vocab_txt(folder: Path, config: Mapping[str, object]) -> tokenizers.Tokenizer:
    """The tokenizer of a folder with vocab.txt, one token a line, whose class must be one of BERT's."""
    where = "tokenizer_config.json"
    kind = str(config.get("tokenizer_class") or CLASSES[0]).removesuffix("Fast")
    if kind not in CLASSES:
        raise TextError(
            f"{folder}: vocab.txt does not say how a {one_line(kind, 60)} cuts text into words. Save the tokenizer as "
            "tokenizer.json (transformers: AutoTokenizer.from_pretrained(...).save_pretrained(...))"
        )
    if flag(config, "do_basic_tokenize", where) is False:
        raise TextError(f"{where}: do_basic_tokenize is false: text that was cut beforehand cannot be read here")
    lower = flag(config, "do_lower_case", where)
    chinese = flag(config, "tokenize_chinese_chars", where)
    rules = BertNormalizer(
        handle_chinese_chars=True if chinese is None else chinese,
        strip_accents=flag(config, "strip_accents", where),
        lowercase=True if lower is None else lower,
    )
    tokens = read_text(file_in(folder, "vocab.txt")).removesuffix("\n").split("\n")
    unknown = config.get("unk_token", "[UNK]")
    text = unknown.get("content") if isinstance(unknown, dict) else unknown
    return wordpiece(tokens, rules, str(text), str(folder / "vocab.txt"))


def wordpiece(tokens: list[str], rules: BertNormalizer, unknown: str, where: str) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer; `tokens` in the order of their ids. A word without pieces becomes the token `unknown`."""
    vocabulary = {token: id for id, token in enumerate(tokens)}
    check_vocabulary(vocabulary, where)
    if len(vocabulary) < len(tokens):
        twice = next(token for id, token in enumerate(tokens) if vocabulary[token] != id)
        raise TextError(f"{where}: token {shown(twice)} is there twice")
    if unknown not in vocabulary:
        raise TextError(f"{where}: the token for unknown words is {shown(unknown)}, which the vocabulary does not have")
    with raised_as_text_error(where):
        model = WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=LONGEST)
        library = tokenizers.Tokenizer(model)
        library.normalizer = rules
        library.pre_tokenizer = BertPreTokenizer()
        library.decoder = WordPieceDecoder(GOES_ON, cleanup=True)
    mark_as_control(library, [*CONTROLS, unknown])
    return library
