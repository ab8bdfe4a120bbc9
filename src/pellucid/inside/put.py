"""Writing a file so that whoever reads it meanwhile sees the old one or the whole new one."""

import os
import secrets
from pathlib import Path


def put(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file aside, make sure that it is on the disk, and move it into place.

    Raises ValueError if its folder does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"{path}: its folder does not exist: make it first")
    if path.is_dir():
        raise ValueError(f"{path}: expected a file, or nothing there yet; found a folder")
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with aside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
