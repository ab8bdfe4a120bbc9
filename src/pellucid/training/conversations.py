"""Conversations to learn from: what the assistant says is to be predicted, all else is only read."""

from collections.abc import Iterator, Mapping, Sequence

from ..text import TextError, Tokenizer
from .documents import records
from .examples import Example

NO_TEMPLATE = (
    "objective instruction needs a chat template, which says how a conversation is written, and there is none: start "
    "from a model that has one (model.start), or take its tokenizer (data.tokenizer)"
)


def conversations(paths: Sequence[str], field: str, tokenizer: Tokenizer) -> Iterator[Example]:
    """The ids of each JSON line's messages (a list under `field`), and for each id 1 if the assistant says it.

    Raises ValueError, which names the line, for what is no conversation or holds no answer.
    """
    if tokenizer.chat_template is None:
        raise ValueError(NO_TEMPLATE)
    for where, record, size in records(paths):
        messages = record.get(field)
        if not isinstance(messages, list) or not messages:
            raise ValueError(
                f"{where}: expected a list of messages under {field!r}, got {', '.join(record) or 'nothing'}"
            )
        try:
            ids, flags = answers(tokenizer, messages)
        except TextError as error:
            raise ValueError(f"{where}: {error}") from error
        yield ids, flags, size


def answers(tokenizer: Tokenizer, messages: Sequence[Mapping[str, object]]) -> tuple[list[int], list[int]]:
    """The ids of a conversation as the chat template writes it, and 1 for each that the assistant says.

    An answer begins where the template's prompt for it ends, and ends with the id that ends a text, which is learnt
    too: a model that never sees it never stops. Where the template writes none after the last answer, it is put there.
    Raises TextError for messages without an answer, or a template that writes an answer otherwise once it is there.
    """
    ids = tokenizer.encode_chat(messages, add_generation_prompt=False)
    flags = [0] * len(ids)
    last = None
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") != "assistant":
            continue
        start = _after_prompt(tokenizer, messages[:number], ids, number)
        told = tokenizer.encode_chat(messages[: number + 1], add_generation_prompt=False)
        if told != ids[: len(told)]:
            raise TextError(f"message {number}: the chat template writes it otherwise when others follow")
        ends = [place for place in range(start, len(told)) if ids[place] in tokenizer.eos_ids]
        end = ends[-1] + 1 if ends else len(told)
        flags[start:end] = [1] * (end - start)
        last = bool(ends)
    if last is None:
        raise TextError("no message is the assistant's: there is nothing to learn")
    if not last and tokenizer.eos_ids and flags[-1]:
        ids, flags = [*ids, tokenizer.eos_ids[0]], [*flags, 1]
    return ids, flags


def _after_prompt(tokenizer: Tokenizer, before: Sequence[Mapping[str, object]], ids: list[int], number: int) -> int:
    """Where an answer begins: behind the template's prompt, or, where its first word joins the prompt's last one, with
    that; but behind the prompt's last control token, where it has any."""
    prompt = tokenizer.encode_chat(before, add_generation_prompt=True)
    common = next((n for n, pair in enumerate(zip(prompt, ids, strict=False)) if pair[0] != pair[1]), len(prompt))
    controls = [place for place, id in enumerate(prompt) if id in tokenizer.control_ids]
    if common < (controls[-1] + 1 if controls else len(prompt) - 1):
        raise TextError(f"message {number}: the chat template begins it otherwise than it asks for an answer")
    return min(common, len(ids))
