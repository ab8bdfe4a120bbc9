"""The one error of this room."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TextError(ValueError):
    """Text, ids or a tokenizer's files cannot be used as asked: the message says what was expected, what came and what
    to do."""


def one_line(words: object, most: int = 300) -> str:
    """Any object's text on one line of at most `most` characters, safe to print: an error shows what a file holds."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(str(words)[: 4 * most].split()))
    return line if len(line) <= most else line[: most - 3] + "..."


def shown(text: str, most: int = 60) -> str:
    """A text in quotes, blanks and odd characters visible, cut after `most` characters."""
    return repr(text if len(text) <= most else text[:most] + "...")


@contextmanager
def naming(where: object) -> Iterator[None]:
    """Says which folder an error comes from, where the error does not."""
    try:
        yield
    except TextError as error:
        if str(error).startswith(str(where)):
            raise
        raise TextError(f"{where}: {error}") from error


@contextmanager
def raised_as_text_error(where: object, why: Callable[[], str | None] | None = None) -> Iterator[None]:
    """Turn whatever the tokenizers library raises, its panics included, into a TextError that names `where`. `why` may
    look for a better reason than the library gives."""
    try:
        yield
    except TextError:
        raise
    except BaseException as error:
        # A panic of the Rust library is no Exception, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = (why() if why is not None else None) or one_line(error)
        raise TextError(f"{where}: the tokenizers library refuses it: {reason}") from error
