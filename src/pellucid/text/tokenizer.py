"""Text to ids and back."""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from operator import index
from typing import Self

import tokenizers

from .characters import byte_level_bytes, check_writable, offsets_in, sound, visible
from .chat import Controls, Disguise, ids_of_disguised
from .decoder import ByteDecoder, Decoder, RereadingDecoder
from .errors import TextError, one_line, raised_as_text_error, shown
from .folder import read_folder, read_json_tokenizer, read_vocab_merges
from .gguf import read_metadata
from .library import MOST_TOKENS, absent_bytes, is_byte_level, with_control_tokens, without_surroundings
from .settings import Settings
from .template import ChatTemplate

LONG = 1 << 16  # characters
Offsets = list[tuple[int, int]]


class Tokenizer:
    """A vocabulary and its rules, whatever kind of file they come from.

    Text is untrusted: no text becomes a control token (BOS, EOS, <|im_start|>, ...) unless it is asked for. For
    byte-level vocabularies `decode(encode(text))` is the text, byte for byte (in the normal form of the tokenizer's own
    normalizer, if it has one); of other kinds the text is decoded by the library's rules for them.

    Surrogates, which a Python string may hold and UTF-8 may not, are treated alike everywhere: a pair is joined to its
    character, a lone one becomes U+FFFD. A tokenizer never changes, so that threads and copies share it.
    """

    def __init__(self, library: tokenizers.Tokenizer, settings: Settings):
        self._settings = settings
        self._plain = without_surroundings(library)
        self._finding = with_control_tokens(self._plain)
        added = library.get_added_tokens_decoder()
        self._added = {id: token.content for id, token in added.items()}
        self._controls = {id: token.content for id, token in added.items() if token.special}
        self._byte_level = is_byte_level(library)
        self._absent = absent_bytes(library) if self._byte_level else b""
        self._bytes: dict[int, bytes] = {}

    # --- From files ---

    @classmethod
    def from_folder(cls, path: str | os.PathLike[str]) -> Self:
        """The tokenizer of a checkpoint folder: tokenizer.json, else vocab.json and merges.txt. What the folder's
        other files say is followed: tokenizer_config.json, special_tokens_map.json, added_tokens.json,
        chat_template.jinja, and the ids that end a text in generation_config.json. Raises TextError."""
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
    def from_gguf(cls, metadata: Mapping[str, object]) -> Self:
        """The tokenizer in a GGUF file's metadata, arrays as lists. Raises TextError, also for a kind of tokenizer
        (`tokenizer.ggml.model`, `tokenizer.ggml.pre`) that is not known."""
        return cls(*read_metadata(metadata))

    # --- What the checkpoint says ---

    @property
    def vocab_size(self) -> int:
        """How many ids have text. A model's output may have more rows: see `ids_without_text`."""
        return self._plain.get_vocab_size()

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
    def adds_bos(self) -> bool:
        """Whether the checkpoint's own settings put BOS before a text."""
        return self._settings.adds_bos

    @property
    def control_ids(self) -> frozenset[int]:
        """The ids of control tokens."""
        return frozenset(self._controls)

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
        text = self._checked(text)
        if len(text) < LONG:
            return self._framed(self._encoded(text, special)[0], bos)
        # Takes half the time, but keeps no offsets.
        with raised_as_text_error("this text"):
            library = self._finding if special else self._plain
            ids = library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not special and not self._controls.keys().isdisjoint(ids):
            ids = self._encoded(text, special)[0]
        return self._framed(ids, bos)

    def encode_with_offsets(
        self, text: str, *, special: bool = False, bos: bool | None = None
    ) -> tuple[list[int], Offsets]:
        """`encode`, and for each id the (start, end) of its text, counted in characters of `text`.

        Ids that share a character have it in all their offsets; ids put around the text have empty ones at its ends.
        """
        checked = self._checked(text)
        body, offsets = self._encoded(checked, special)
        ids = self._framed(body, bos)
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
        encoding = self._encoding(text, special=True)
        ids = ids_of_disguised(text, encoding, self._controls, disguise.restore, self._plain_ids)
        return self._opened(ids, None)

    def id_of(self, text: str) -> int:
        """The id whose text this is, as " Paris". Raises TextError, with the pieces, if it takes several tokens."""
        for id, control in self._controls.items():
            if text == control:
                return id
        ids = self._encoded(self._checked(text), special=False)[0]
        if len(ids) != 1:
            pieces = " ".join(map(repr, self.labels(ids))) or "nothing"
            raise TextError(f"expected the text of one token, but {shown(text)} is {len(ids)}: {pieces}")
        return ids[0]

    # --- Ids to text ---

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, control tokens written out; bytes that make no character become U+FFFD. Raises TextError
        for an id without text, and names it."""
        if self._byte_level:
            return b"".join(map(self.bytes_of, ids)).decode("utf-8", "replace")
        known = [self._known(id)[0] for id in ids]
        with raised_as_text_error("these ids"):
            return self._plain.decode(known, skip_special_tokens=False)

    def decoder(self) -> Decoder:
        """A decoder for ids that come one by one."""
        return ByteDecoder(self.bytes_of) if self._byte_level else RereadingDecoder(self.decode)

    def bytes_of(self, id: int) -> bytes:
        """The exact bytes of one token, for a control token those of its text. Raises TextError for an id without text.

        Of vocabularies that are not byte-level it is the token as the vocabulary writes it, as "##ing" or "▁the".
        """
        found = self._bytes.get(id)
        if found is None:
            known, token = self._known(id)
            literal = known in self._added or not self._byte_level
            found = self._bytes[known] = token.encode() if literal else byte_level_bytes(token)
        return found

    def labels(self, ids: Iterable[int]) -> list[str]:
        """One printable string for each token, for tables and pictures: blanks are visible ("␣Paris", "⏎"), parts of
        characters are shown as bytes (<0xE2>), and an id without text as <id 50300>."""
        return [visible(self.bytes_of(id)) if self.has_text(id) else f"<id {id}>" for id in ids]

    def has_text(self, id: int) -> bool:
        """Whether the vocabulary has a token with this id."""
        return 0 <= id < MOST_TOKENS and self._plain.id_to_token(id) is not None

    def ids_without_text(self, n_logits: int) -> list[int]:
        """The ids below `n_logits` that stand for nothing: rows that only fill up a model's output matrix."""
        known = self._ids
        return [id for id in range(n_logits) if id not in known]

    # --- Inside ---

    @cached_property
    def _ids(self) -> frozenset[int]:
        return frozenset(self._plain.get_vocab().values())

    @cached_property
    def _control_texts(self) -> Controls:
        return Controls(self._controls.values())

    def _known(self, id: int) -> tuple[int, str]:
        """The id as a Python int and its token."""
        try:
            known = index(id)
        except TypeError as error:
            raise TextError(f"expected token ids, got {one_line(id, 60)}") from error
        token = self._plain.id_to_token(known) if 0 <= known < MOST_TOKENS else None
        if token is None:
            raise TextError(f"id {known} has no text: this vocabulary has {self.vocab_size} tokens")
        return known, token

    def _checked(self, text: str) -> str:
        """The text without surrogates, if the vocabulary can write it."""
        if not isinstance(text, str):
            raise TextError(f"expected a text, got {type(text).__name__}: {one_line(text, 60)}")
        text = sound(text)
        check_writable(text, self._absent)
        return text

    def _encoding(self, text: str, special: bool) -> tokenizers.Encoding:
        with raised_as_text_error("this text"):
            return (self._finding if special else self._plain).encode(text, add_special_tokens=False)

    def _encoded(self, text: str, special: bool) -> tuple[list[int], Offsets]:
        """Ids and their offsets, nothing put around them."""
        encoding = self._encoding(text, special)
        ids, offsets = encoding.ids, encoding.offsets
        if special or self._controls.keys().isdisjoint(ids):
            return ids, offsets
        # Some models look whole words up, and so may find a control token that the library did not look for.
        tokens = zip(ids, offsets, strict=True)
        cuts = [
            start + 1 for id, (start, end) in tokens if end - start > 1 and self._controls.get(id) == text[start:end]
        ]
        if not cuts:
            return ids, offsets
        ids, offsets = [], []
        for start, end in pairwise([0, *cuts, len(text)]):
            part, places = self._encoded(text[start:end], special)
            ids += part
            offsets += [(start + left, start + right) for left, right in places]
        return ids, offsets

    def _plain_ids(self, text: str) -> list[int]:
        return self._encoded(text, special=False)[0]

    def _opened(self, ids: list[int], bos: bool | None) -> list[int]:
        """The ids with BOS before them, by the rule of `encode`."""
        wanted, first = self.adds_bos if bos is None else bos, self.bos_id
        if wanted and first is None and not self._settings.opening:
            raise TextError("this tokenizer has no token that begins a sequence: encode with bos=False")
        return [first, *ids] if wanted and first is not None and ids[:1] != [first] else ids

    def _framed(self, ids: list[int], bos: bool | None) -> list[int]:
        """The ids with BOS, and what the tokenizer's own settings put around a text."""
        settings = self._settings
        return [*self._opened([*settings.opening, *ids], bos), *settings.closing]

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size} tokens, bos {self.bos_id}, eos {list(self.eos_ids)})"

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return revived, (type(self), self._plain.to_str(), self._settings)


def revived(kind: type[Tokenizer], source: str, settings: Settings) -> Tokenizer:
    return kind(tokenizers.Tokenizer.from_str(source), settings)
