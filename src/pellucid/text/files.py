"""Reading the small files beside a checkpoint's weights, any of which may be missing, cut short or hostile."""

import json
import os
import re
from pathlib import Path

from .errors import TextError, one_line

MOST_BYTES = 1 << 28  # the largest tokenizer.json in use has 35 million
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
GIT_LFS_POINTER = b"version https://git-lfs"


def has(folder: Path, name: str) -> bool:
    """Whether a folder has such a file; also a symbolic link that leads nowhere, which is no reason to take another."""
    return os.path.lexists(folder / name)


def file_in(folder: Path, name: str) -> Path:
    """The path of a file of a checkpoint folder, which need not exist.

    A symbolic link must end inside the folder. In a hub cache (`<cache>/models--org--name/snapshots/<revision>`) it may
    also end in the `blobs` folder of that repository or of that cache, where the hub keeps the bytes. Raises TextError.
    """
    path = folder / name
    try:
        target, home = path.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:
        raise TextError(f"{path}: this symbolic link leads nowhere: {one_line(error)}") from error
    homes = [home]
    if home.parent.name == "snapshots" and re.match("(models|datasets|spaces)--.", home.parent.parent.name):
        repository = home.parent.parent
        homes += [repository / "blobs", repository.parent / "blobs"]
    if not any(target.is_relative_to(each) for each in homes):
        raise TextError(
            f"{path}: this symbolic link leads out of its folder, to {target}. Put the file itself into the folder"
        )
    return path


def read_bytes(path: Path) -> bytes:
    """The bytes of a file. Raises TextError, also for the few lines that git-lfs leaves in a file's place."""
    try:
        if not path.is_file():
            raise TextError(f"{one_line(path)}: {'expected a file' if path.exists() else 'no such file'}")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise TextError(f"{path}: {size} bytes are too many for a tokenizer's file, which has at most {MOST_BYTES}")
        content = path.read_bytes()
    except OSError as error:
        raise TextError(f"{one_line(path)}: cannot be read: {error.strerror}") from error
    if content.startswith(GIT_LFS_POINTER):
        raise TextError(f"{path}: git-lfs pointer, file not downloaded: run `git lfs pull` or download the file again")
    return content


def read_text(path: Path) -> str:
    """The text of a file, with one character for each end of a line. Raises TextError."""
    try:
        return read_bytes(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise TextError(f"{path}: cannot be read as UTF-8 text: {one_line(error)}") from error


def parse_object(text: str, where: object) -> dict[str, object]:
    """The JSON object in a text."""
    try:
        value = json.loads(text)
        if SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # fails for a lone one, which is no text
    except (ValueError, RecursionError) as error:
        raise TextError(f"{where}: expected JSON: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise TextError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in a file, empty if there is no such file."""
    return parse_object(read_text(path), path) if os.path.lexists(path) else {}
