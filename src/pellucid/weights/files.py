"""What every checkpoint format asks of a file before it reads it: that it is there, whole, and inside its folder."""

import json
import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath

from .errors import CheckpointError

_LONGEST_NAME = 255  # bytes, on every file system in use
GIT_LFS_POINTER = b"version https://git-lfs"


def check_downloaded(path: Path, start: bytes) -> None:
    """Raise CheckpointError if a file whose first bytes are `start` is the few lines git-lfs leaves in its place."""
    if start.startswith(GIT_LFS_POINTER):
        raise CheckpointError(
            f"{path}: git-lfs pointer, file not downloaded: these few lines of text only name the real file. "
            "Run `git lfs pull` in its folder, or download the file again"
        )


def check_regular(path: Path) -> None:
    """Raise CheckpointError unless `path` is an ordinary file (opening a pipe or a device could wait for ever)."""
    if not path.exists():
        raise CheckpointError(f"{path}: no such file")
    if not path.is_file():
        raise CheckpointError(f"{path}: expected an ordinary file, found a {'folder' if path.is_dir() else 'device'}")


def file_in(folder: Path, name: str) -> Path:
    """The path of the file `name` of a checkpoint folder, which need not exist.

    A checkpoint names its own files, so a name must not lead elsewhere: it is one plain base name, and a symbolic link
    must end inside the folder. In a hub cache (`<cache>/models--org--name/snapshots/<revision>`) it may also end in the
    `blobs` folder of that repository or of that cache, where the hub keeps the bytes. Raises CheckpointError.
    """
    if not _can_be_a_name(name) or PurePosixPath(name).name != name or PureWindowsPath(name).name != name:
        raise CheckpointError(f"{folder}: expected the plain name of a file in this folder, got {shown([name])}")
    path = folder / name
    try:
        target, home = path.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: this symbolic link leads nowhere ({error})") from error
    homes = [home]
    if home.parent.name == "snapshots" and re.match("(models|datasets|spaces)--.", home.parent.parent.name):
        repository = home.parent.parent
        homes += [repository / "blobs", repository.parent / "blobs"]
    if not any(target.is_relative_to(each) for each in homes):
        raise CheckpointError(
            f"{path}: this symbolic link leads out of its folder, to {target}. Put the file itself into the folder"
        )
    return path


def _can_be_a_name(name: str) -> bool:
    try:
        return name not in ("", ".", "..") and "\0" not in name and len(os.fsencode(name)) <= _LONGEST_NAME
    except UnicodeEncodeError:  # half of a character
        return False


def parse_json(data: bytes, path: Path, what: str) -> dict[str, object]:
    """The JSON object in `data`; keys given twice are an error, since two readers would take different ones."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) != len(pairs):
            twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
            raise CheckpointError(f"{path}: {what} gives a key twice: {shown(twice)}. Write the file again")
        return table

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {what} is not valid JSON ({error}). Download the file again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: {what}: expected a JSON object, got {shown([value])}")
    return value


def shown(values: Iterable[object], most: int = 5) -> str:
    """A few values as an error shows them: quoted, escaped, long ones cut."""
    values = list(values)
    short = reprlib.Repr()
    short.maxstring = 80
    texts = map(short.repr, values[:most])
    return ", ".join(texts) + (f" and {len(values) - most} more" if len(values) > most else "")


def shorter(name: str, most: int = 80) -> str:
    """A name without quotes, cut if it is long."""
    return name if len(name) <= most else f"{name[: most // 2]}...{name[-most // 2 :]}"


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` last through a power cut, where the system can."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
