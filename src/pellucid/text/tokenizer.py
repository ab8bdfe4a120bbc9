"""Text to ids and back."""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import index
from typing import Self

from .characters import offsets_in, sound, visible
from .chat import Controls, Disguise, ids_of_disguised
from .coder import Coder
from .decoder import Decoder
from .errors import TextError, one_line, shown
from .folder import read_folder, read_json_tokenizer, read_llama2c_file, read_piece_file, read_vocab_merges
from .gguf import read_metadata
from .library import MOST_TOKENS
from .normalizer import Offsets
from .settings import Settings
from .spelling import ByteLevel, Tokens
from .template import ChatTemplate
from .to_files import files_of
from .to_gguf import metadata_of


class Tokenizer:
    """A vocabulary and its rules, whatever kind of file they come from.

    Text is untrusted: no text becomes a control token (BOS, EOS, <|im_start|>, ...) unless it is asked for.

    `decode(encode(text))` is the text, byte for byte, for byte-level vocabularies and for SentencePiece's with pieces
    for bytes, in the normal form of the tokenizer's own normalizer if it has one. WordPiece, as BERT's, loses case,
    accents and blanks; unknown characters of a vocabulary without bytes are lost.

    Surrogates, which a Python string may hold and UTF-8 may not, are treated alike everywhere: a pair is joined to its
    character, a lone one becomes U+FFFD. A tokenizer never changes, so that threads and copies share it.
    """

    def __init__(self, coder: Coder, settings: Settings):
        self._coder, self._settings = coder, settings
        self._bytes: dict[int, bytes] = {}

    # --- From files, and to them ---

    @classmethod
    def from_folder(cls, path: str | os.PathLike[str]) -> Self:
        """The tokenizer of a checkpoint folder: tokenizer.json, else tokenizer.model (SentencePiece), source.spm and
        vocab.json (Marian), vocab.json and merges.txt (GPT-2), or vocab.txt (BERT). What the folder's other files say
        is followed: tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja, and the ids
        that end a text in generation_config.json. Raises TextError."""
        return cls(*read_folder(path))

    @classmethod
    def from_json(cls, path_or_text: str | os.PathLike[str]) -> Self:
        """The tokenizer of a tokenizer.json, given as a path or as its text. Such a file does not say which of its
        control tokens is BOS and which EOS: the usual names are looked for. Raises TextError."""
        return cls(*read_json_tokenizer(path_or_text))

    @classmethod
    def from_vocab_merges(cls, vocab: str | os.PathLike[str], merges: str | os.PathLike[str]) -> Self:
        """GPT-2's kind of tokenizer from its two files: vocab.json (encoder.json) and merges.txt (vocab.bpe). Raises
        TextError."""
        return cls(*read_vocab_merges(vocab, merges))

    @classmethod
    def from_sentencepiece(cls, path: str | os.PathLike[str]) -> Self:
        """The tokenizer of a SentencePiece model file (BPE or Unigram), such as tokenizer.model. Such a file does not
        say whether BOS is put first: it is, if the vocabulary has one, as in Llama. Raises TextError."""
        return cls(*read_piece_file(path))

    @classmethod
    def from_llama2c(cls, path: str | os.PathLike[str]) -> Self:
        """The tokenizer of a vocabulary file of llama2.c, such as tok512.bin. Raises TextError."""
        return cls(*read_llama2c_file(path))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Self:
        """The tokenizer in a GGUF file's metadata, arrays as lists. Raises TextError, also for a kind of tokenizer
        (`tokenizer.ggml.model`, `tokenizer.ggml.pre`) that is not known."""
        return cls(*read_metadata(metadata))

    def to_gguf(self, n_logits: int = 0, *, lossy: bool = False) -> dict[str, object]:
        """What a GGUF file's metadata (`tokenizer.*`) say of it, ids below `n_logits` without text filled up. Raises
        TextError, with the reason, for what the format cannot hold; `lossy` leaves out what few texts show."""
        return metadata_of(self._coder, self._settings, n_logits, lossy)

    def to_files(self) -> dict[str, bytes]:
        """The contents of tokenizer.json and tokenizer_config.json, which `from_folder` and Hugging Face's libraries
        read. Raises TextError, with the reason, where no such file does exactly the same."""
        return files_of(self._coder, self._settings)

    # --- What the checkpoint says ---

    @property
    def vocab_size(self) -> int:
        """How many ids have text. A model's output may have more rows: see `ids_without_text`."""
        return len(self._coder.vocabulary)

    @property
    def bos_id(self) -> int | None:
        """The id that begins a sequence."""
        return self._settings.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a text."""
        return self._settings.eos_ids

    @property
    def pad_id(self) -> int | None:
        """The id that fills up rows."""
        return self._settings.pad_id

    @property
    def cls_id(self) -> int | None:
        """The id of [CLS], which BERT's kind puts before a text."""
        return self._settings.cls_id

    @property
    def sep_id(self) -> int | None:
        """The id of [SEP], which BERT's kind puts after each text."""
        return self._settings.sep_id

    @property
    def mask_id(self) -> int | None:
        """The id of [MASK], which stands for a token that is to be filled in."""
        return self._settings.mask_id

    @property
    def adds_bos(self) -> bool:
        """Whether the checkpoint's own settings put BOS before a text."""
        return self._settings.adds_bos

    @property
    def control_ids(self) -> frozenset[int]:
        """The ids of control tokens."""
        return frozenset(self._coder.controls)

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._settings.chat_template

    # --- Text to ids ---

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """The ids of a text, with what the tokenizer's own settings put around it.

        `special`: control tokens written out in the text become their ids. `bos`: put BOS first, exactly once (not
        again before a BOS that the text begins with), or leave it out; None is the tokenizer's own setting. Where a
        tokenizer has no BOS but opens with another token, as BERT's does with [CLS], `bos` changes nothing.
        Raises TextError for BOS where there is none, and for text that the vocabulary has no tokens for.
        """
        return self._settings.framed(self._coder.ids(self._checked(text), special), bos)

    def encode_pair(self, first: str, second: str, *, special: bool = False) -> tuple[list[int], list[int]]:
        """The ids of two texts, joined as the tokenizer's own settings say, and the type of each token.

        BERT's is [CLS] first [SEP] second [SEP], of type 1 from the second text on. `special` as in `encode`. Raises
        TextError if the settings do not say how two texts are joined.
        """
        if not self._settings.pair:
            raise TextError("this tokenizer does not say how two texts are joined: encode them one by one")
        texts = iter([self._checked(first), self._checked(second)])
        ids: list[int] = []
        types: list[int] = []
        for id, kind in self._settings.pair:
            part = self._coder.ids(next(texts), special) if id is None else [id]
            ids += part
            types += [kind] * len(part)
        return ids, types

    def encode_with_offsets(
        self, text: str, *, special: bool = False, bos: bool | None = None
    ) -> tuple[list[int], Offsets]:
        """`encode`, and for each id the (start, end) of its text, counted in characters of `text`.

        Ids that share a character have it in all their offsets; ids put around the text have empty ones at its ends.
        """
        checked = self._checked(text)
        body, offsets = self._coder.encode(checked, special)
        ids = self._settings.framed(body, bos)
        after = len(self._settings.closing)
        before = [(0, 0)] * (len(ids) - len(body) - after)
        return ids, [*before, *offsets_in(text, offsets), *[(len(text), len(text))] * after]

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], add_generation_prompt: bool = True, **extra: object
    ) -> list[int]:
        """The ids of a conversation, written by the chat template (`extra` are further names for it, as `tools`).

        The template's control tokens become their ids; what the messages and `extra` hold never does, also where
        it only completes a control token together with the template's text. BOS is put first if that is the
        tokenizer's own setting and the template has not; nothing is put after. Raises TextError.
        """
        if self.chat_template is None:
            raise TextError("this checkpoint has no chat template: encode the text of a prompt instead")
        disguise = Disguise(self._control_texts, self.chat_template.source, [messages, extra])
        hidden, names = disguise.hide(messages), disguise.hide(extra)
        text = self.chat_template.render(hidden, add_generation_prompt=add_generation_prompt, **names)
        self._checked(disguise.restore(text))
        encoded = self._coder.encode(text, special=True)
        return self._settings.opened(ids_of_disguised(text, encoded, self._coder, disguise.restore), None)

    def id_of(self, text: str) -> int:
        """The id whose text this is within a longer text, as " Paris" (of WordPiece "##ing" too). Raises TextError,
        with the pieces, if it takes several tokens."""
        named = self._coder.named(text)
        if named is not None:
            return named
        ids = self._coder.encode(self._checked(text), prefix=False)[0]
        if len(ids) != 1:
            pieces = " ".join(map(repr, self.labels(ids))) or "nothing"
            raise TextError(f"expected the text of one token, but {shown(text)} is {len(ids)}: {pieces}")
        return ids[0]

    # --- Ids to text ---

    def decode(self, ids: Iterable[int], *, continued: bool = False) -> str:
        """The text of ids, control tokens written out; bytes that make no character become U+FFFD. Raises TextError
        for an id without text, and names it.

        `continued`: the ids go on with a text, as those that a model generates after a prompt. Otherwise they begin
        one, and the blank that SentencePiece puts before a text is left out. WordPiece's tokens are joined with blanks,
        but for "##", and those before signs such as "." and "'s".
        """
        if isinstance(self._coder.spelling, ByteLevel):
            return b"".join(map(self.bytes_of, ids)).decode("utf-8", "replace")
        decoder = self.decoder(continued=continued)
        return "".join([*map(decoder.push, ids), decoder.finish()])

    def decoder(self, *, continued: bool = False) -> Decoder:
        """A decoder for ids that come one by one; `continued` as in `decode`."""
        return self._coder.spelling.decoder(self._tokens, continued)

    def bytes_of(self, id: int) -> bytes:
        """The exact bytes of one token, for a control token those of its text: what it adds to a text after others, for
        WordPiece without the blank that may come before; of vocabularies of no known kind the token as it is written.
        Raises TextError for an id without text.
        """
        found = self._bytes.get(id)
        if found is None:
            known, token = self._known(id)
            literal = known in self._coder.added
            found = self._bytes[known] = token.encode() if literal else self._coder.spelling.bytes_of(token)
        return found

    def labels(self, ids: Iterable[int]) -> list[str]:
        """One printable string for each token, for tables and pictures: blanks are visible ("␣Paris", "⏎"), parts of
        characters are shown as bytes (<0xE2>), WordPiece as it is written ("##ing"), an id without text as <id 50300>.
        """
        return [self._label(id) if self.has_text(id) else f"<id {id}>" for id in ids]

    def has_text(self, id: int) -> bool:
        """Whether the vocabulary has a token with this id."""
        return 0 <= id < MOST_TOKENS and self._coder.token(id) is not None

    def ids_without_text(self, n_logits: int) -> list[int]:
        """The ids below `n_logits` that stand for nothing: rows that only fill up a model's output matrix."""
        return sorted(set(range(n_logits)).difference(self._coder.vocabulary.values()))

    # --- Inside ---

    @cached_property
    def _control_texts(self) -> Controls:
        return Controls(self._coder.controls.values())

    @cached_property
    def _tokens(self) -> Tokens:
        return Tokens(self.bytes_of, lambda id: self._known(id)[1], self._coder.controls)

    def _label(self, id: int) -> str:
        known, token = self._known(id)
        return visible(token.encode()) if known in self._coder.added else self._coder.spelling.label(token)

    def _known(self, id: int) -> tuple[int, str]:
        """The id as a Python int and its token."""
        try:
            known = index(id)
        except TypeError as error:
            raise TextError(f"expected token ids, got {one_line(id, 60)}") from error
        token = self._coder.token(known) if 0 <= known < MOST_TOKENS else None
        if token is None:
            raise TextError(f"id {known} has no text: this vocabulary has {self.vocab_size} tokens")
        return known, token

    def _checked(self, text: str) -> str:
        """The text without surrogates, if the vocabulary can write it."""
        if not isinstance(text, str):
            raise TextError(f"expected a text, got {type(text).__name__}: {one_line(text, 60)}")
        text = sound(text)
        self._coder.check(text)
        return text

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size} tokens, bos {self.bos_id}, eos {list(self.eos_ids)})"

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._coder, self._settings)
