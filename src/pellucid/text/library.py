"""What we ask of the `tokenizers` library: to build a tokenizer, and to say what kind it is."""

import json
from collections.abc import Iterable, Mapping

import tokenizers
from tokenizers import AddedToken
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import PreTokenizer

from .characters import BYTE_OF
from .errors import TextError, one_line, raised_as_text_error, shown

MOST_TOKENS = 1 << 22  # sixteen times the largest vocabulary in use


def byte_level_bpe(
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    pre_tokenizer: PreTokenizer,
    where: str,
    ignore_merges: bool = False,
) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer (GPT-2's kind), without special tokens. Merges are applied in the order given."""
    with raised_as_text_error(where, lambda: misfit(vocabulary, merges)):
        library = tokenizers.Tokenizer(BPE(vocabulary, merges, ignore_merges=ignore_merges))
        library.pre_tokenizer = pre_tokenizer
        library.decoder = ByteLevelDecoder()
        return library


def misfit(vocabulary: Mapping[str, int], merges: list[tuple[str, str]]) -> str | None:
    """What is wrong with the first merge that does not fit the vocabulary, None if all do."""
    for left, right in merges:
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            return (
                f"the merge of {shown(left)} and {shown(right)} does not fit the vocabulary, which must have both and "
                "what they make together. Take both from one model"
            )
    return None


def check_vocabulary(vocabulary: Mapping[str, object], where: object) -> None:
    """Raise TextError unless every token has an id of its own that can be one."""
    ids = list(vocabulary.values())
    if not 0 < len(ids) <= MOST_TOKENS:
        raise TextError(f"{where}: expected a vocabulary of 1 to {MOST_TOKENS} tokens, got {len(ids)}")
    wrong = next((id for id in ids if type(id) is not int or not 0 <= id < MOST_TOKENS), None)
    if wrong is not None:
        raise TextError(f"{where}: expected token ids from 0 to {MOST_TOKENS - 1}, got {one_line(wrong, 60)}")
    if len(set(ids)) < len(ids):
        raise TextError(f"{where}: two tokens of the vocabulary have one id")


def add_tokens(library: tokenizers.Tokenizer, tokens: Mapping[int, AddedToken], where: str) -> None:
    """Let tokens be found in text before it is cut. One that is new must get the id that it is given under here."""
    with raised_as_text_error(where):
        library.add_tokens([token for _, token in sorted(tokens.items())])
    for id, token in tokens.items():
        check_id(library, token.content, id, where)


def check_id(library: tokenizers.Tokenizer, text: str, id: object, where: str) -> None:
    # The library gives a token that is not in the vocabulary the next free id, whatever id the file says.
    found = library.token_to_id(text)
    if found != id:
        raise TextError(f"{where}: token {shown(text)} is given id {one_line(id, 20)}, but it has id {found}")


def mark_as_control(library: tokenizers.Tokenizer, texts: Iterable[str]) -> None:
    """Make tokens of the vocabulary control tokens, so that plain text never becomes one of them. Single characters
    stay as they are (some checkpoints pad with "!"): plain text must be able to hold them."""
    added = {token.content: token for token in library.get_added_tokens_decoder().values()}
    for text in texts:
        token = added.get(text, AddedToken(text, normalized=False))
        if len(text) > 1 and library.token_to_id(text) is not None and not token.special:
            library.add_special_tokens([token])


def without_surroundings(library: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The tokenizer with nothing cut off, filled up or put around a text."""
    library.no_truncation()
    library.no_padding()
    library.post_processor = None  # type: ignore[assignment]
    return library


def with_control_tokens(library: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A second tokenizer on the same model, which finds control tokens in text; the given one finds none from now on.

    Two, because the library's switch for this belongs to the tokenizer and would be shared by all threads.
    """
    finding = tokenizers.Tokenizer(library.model)
    finding.normalizer, finding.pre_tokenizer = library.normalizer, library.pre_tokenizer
    finding.add_tokens([token for _, token in sorted(library.get_added_tokens_decoder().items())])
    library.encode_special_tokens = True
    return finding


def state_of(part: object) -> dict[str, object]:
    """A part of a tokenizer (model, decoder, ...) as its JSON object, empty for None."""
    return {} if part is None else json.loads(part.__getstate__())  # type: ignore[attr-defined]


def parts_of_type(state: object, name: str) -> list[dict]:
    """A part's JSON object and those within it, as far as they are of this type."""
    within = state if isinstance(state, list) else list(state.values()) if isinstance(state, dict) else []
    found = [part for each in within for part in parts_of_type(each, name)]
    return [state, *found] if isinstance(state, dict) and state.get("type") == name else found


def is_byte_level(library: tokenizers.Tokenizer) -> bool:
    parts = (library.normalizer, library.pre_tokenizer, library.decoder)
    return any(parts_of_type(state_of(part), "ByteLevel") for part in parts)


def without_prefix(library: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A tokenizer that puts no blank before a text, for text that stands within another."""

    def changed(state: object) -> object:
        if isinstance(state, list):
            return [changed(each) for each in state if not (isinstance(each, dict) and each.get("type") == "Prepend")]
        if not isinstance(state, dict):
            return state
        changes = {"prepend_scheme": "never", "add_prefix_space": False}
        return {key: changes.get(key, changed(value)) for key, value in state.items()}

    state = json.loads(library.to_str())
    for part in ("normalizer", "pre_tokenizer"):
        state[part] = None if parts_of_type(state[part], "Prepend")[:1] == [state[part]] else changed(state[part])
    inner = tokenizers.Tokenizer.from_str(json.dumps(state))
    inner.encode_special_tokens = library.encode_special_tokens
    return inner


def absent_bytes(library: tokenizers.Tokenizer) -> bytes:
    """The bytes that a byte-level vocabulary has no token for: the library would leave them out without a word."""
    model = library.model
    if not isinstance(model, BPE) or model.unk_token is not None:
        return b""
    return bytes(byte for character, byte in BYTE_OF.items() if library.token_to_id(character) is None)
