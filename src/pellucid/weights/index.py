"""The index of a checkpoint in several files: which weight lies in which of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from .errors import CheckpointError
from .files import check_downloaded, check_regular, file_in, parse_json, shown

MOST_BYTES = 100_000_000


def read_index(index: Path) -> tuple[dict[str, str], dict[str, Path]]:
    """weight -> file name, and file name -> path; every file is there, inside the folder of the index.

    Raises CheckpointError that lists the files that are missing.
    """
    weight_map = _weight_map(index)
    files = {name: file_in(index.parent, name) for name in sorted(set(weight_map.values()))}
    missing = [name for name, path in files.items() if not path.exists()]
    if missing:
        raise CheckpointError(
            f"{index}: {len(missing)} of its {len(files)} files are missing from the folder: "
            f"{shown(missing, most=20)}. Download them"
        )
    return weight_map, files


def check_index(index: Path, weight_map: Mapping[str, str], found: Mapping[str, Iterable[str]]) -> None:
    """Refuse an index that names a weight where it is not, or leaves one out; `found` is what each file holds."""
    held = {(weight, name) for name, weights in found.items() for weight in weights}
    absent = [f"{weight} in {name}" for weight, name in weight_map.items() if (weight, name) not in held]
    extra = [f"{weight} in {name}" for weight, name in sorted(held) if weight_map.get(weight) != name]
    if absent or extra:
        parts = [f"names weights that are not there: {shown(absent)}"] if absent else []
        parts += [f"does not name weights that are there: {shown(extra)}"] if extra else []
        raise CheckpointError(f"{index}: {' and '.join(parts)}. Index and files are not of one checkpoint: download it")


def _weight_map(index: Path) -> dict[str, str]:
    """weight -> file, as the index states it; no file name in it has been checked."""
    check_regular(index)
    with index.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    check_downloaded(index, data)
    if len(data) > MOST_BYTES:
        raise CheckpointError(f"{index}: expected an index of at most {MOST_BYTES} bytes. Check what this file is")
    weight_map = parse_json(data, index, "the index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: expected a weight_map of names to files, got {shown([weight_map])}")
    wrong = [value for value in weight_map.values() if not isinstance(value, str)]
    if wrong:
        raise CheckpointError(f"{index}: expected file names in its weight_map, got {shown(wrong)}")
    return weight_map
