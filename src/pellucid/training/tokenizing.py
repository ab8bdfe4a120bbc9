"""Text to token files, in as many processes as there are cores."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from ..text import TextError, Tokenizer
from .documents import Corpus, Document
from .token_file import TokenFile, open_tokens, writing
from .vocabulary import fingerprint, ids_needed

TASK_BYTES = 1 << 20  # of text that a process is handed at a time
ALONE = 8 << 20  # bytes of text below which starting processes takes longer than it saves

Progress = Callable[[int], Any]  # told of each so many bytes of text that are done
Encode = Callable[[str], np.ndarray]


def tokenize(
    path: str | os.PathLike[str], tokenizer: Tokenizer, corpus: Corpus, jobs: int = 0, progress: Progress | None = None
) -> TokenFile:
    """Write the token file of a corpus, each document followed by the id that ends a text if there is one.

    `jobs` processes encode (0: one for each core, or this one alone where there is little text); the file is the same
    whatever their number. Raises ValueError for text that is none, or that the vocabulary has no tokens for.
    """
    if jobs < 0:
        raise ValueError(f"jobs must be 0 (one for each core) or more, got {jobs}")
    if not jobs:
        jobs = 1 if corpus.size is not None and corpus.size < ALONE else os.cpu_count() or 1
    with writing(Path(path), ids_needed(tokenizer), fingerprint(tokenizer)) as writer:
        for size, documents in _encoded(tokenizer, corpus, jobs):
            for ids in documents:
                writer.add(ids)
            if progress is not None:
                progress(size)
    return open_tokens(path)


def encoder(tokenizer: Tokenizer) -> Encode:
    """A function from one document to its ids."""
    end = list(tokenizer.eos_ids[:1])

    def encode(text: str) -> np.ndarray:
        try:
            ids = tokenizer.encode(text, bos=False) if text else []
        except TextError as error:
            raise TextError(_explained(tokenizer, text) or str(error)) from error
        # Some vocabularies put the end behind every text themselves.
        return np.asarray(ids + end if ids and ids[-1:] != end else ids, dtype=np.uint32)

    return encode


def _explained(tokenizer: Tokenizer, text: str) -> str | None:
    """Which character a text cannot be encoded for."""
    for character in sorted(set(text)):
        try:
            tokenizer.encode(character, bos=False)
        except TextError:
            return (
                f"this vocabulary has no token for {character!r} (at character {text.index(character)} of a text): "
                "make the vocabulary of text that has it, or take a byte-level one"
            )
    return None


Encoded = tuple[int, list[np.ndarray]]


def _encoded(tokenizer: Tokenizer, corpus: Corpus, jobs: int) -> Iterator[Encoded]:
    tasks = _tasks(corpus.read())
    if jobs == 1:
        yield from (_task(tokenizer, documents) for documents in tasks)
        return
    # Fresh processes: a fork would copy the locks of threads that torch and the tokenizers library hold.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        waiting: deque[Future[Encoded]] = deque()
        try:
            for documents in tasks:
                waiting.append(pool.submit(_task, tokenizer, documents))
                if len(waiting) > 2 * jobs:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _task(tokenizer: Tokenizer, documents: list[Document]) -> Encoded:
    encode = encoder(tokenizer)
    return sum(document.size for document in documents), [encode(document.text) for document in documents]


def _tasks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Documents in runs of about `TASK_BYTES`."""
    run: list[Document] = []
    size = 0
    for document in documents:
        run.append(document)
        size += len(document.text)
        if size >= TASK_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run
