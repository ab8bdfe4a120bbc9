"""`pellucid convert`: the same weights in another form."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json, ModelName
from .talk import print_json, waiting

if TYPE_CHECKING:
    from ..weights.checkpoint import Checkpoint

TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "q8_0": None}
_FAMILIES = "gpt2, llama, mistral, gpt_neox, gpt_neo, bert, marian"

Out = Annotated[
    Path, typer.Argument(metavar="OUT", help="A folder to make, or a name that ends in .gguf.", show_default=False)
]
LayoutName = Annotated[
    str, typer.Option("--layout", metavar="NAME", help=f"A folder's family: {_FAMILIES}; hf takes the first that fits.")
]
TypeName = Annotated[
    str,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="f32, f16, bf16, and for .gguf q8_0; by default as the weights are, f32 where they come quantized.",
        show_default=False,
    ),
]


def convert(source: ModelName, out: Out, layout: LayoutName = "hf", type: TypeName = "", as_json: Json = False) -> None:
    """Write a model's weights in another form.

    A folder as Hugging Face's transformers reads it, or a .gguf file. The tokenizer's files come along from folder to
    folder, its metadata from .gguf to .gguf.
    """
    to_file = out.suffix == ".gguf"
    _check(to_file, layout, type)
    with waiting(f"reading {source}"):
        from ..weights.loading import load_checkpoint

        checkpoint = load_checkpoint(source, dtype=TYPES.get(type))
    with waiting(f"writing {out}"):
        written = _to_gguf(out, checkpoint, type) if to_file else _to_folder(out, checkpoint, layout)
    count = sum(weight.numel() for weight in checkpoint.transformer.parameters())
    if as_json:
        print_json({"out": str(out), "parameters": count, **written})
        return
    tokenizer = ", ".join(written["tokenizer"]) or "none, which its file or folder must bring"
    print(f"{out}: {count:,} parameters, {written['layout']}, {written['type']}\ntokenizer: {tokenizer}")


def _check(to_file: bool, layout: str, type: str) -> None:
    if type not in ("", *TYPES):
        raise ValueError(f"no type {type!r}, only {', '.join(TYPES)}")
    if type == "q8_0" and not to_file:
        raise ValueError("q8_0 is a type of .gguf files: give OUT a name that ends in .gguf")
    if layout != "hf" and to_file:
        raise ValueError("--layout is for folders: a .gguf file has the architecture that fits the model")


def _to_folder(out: Path, checkpoint: "Checkpoint", layout: str) -> dict[str, Any]:
    import json

    from ..weights.saving import save_checkpoint, tokenizer_files

    files = tokenizer_files(checkpoint.folder) if checkpoint.folder else {}
    one = checkpoint.tokenizer_file
    if one is not None and one.name == "tokenizer.model":
        files = {one.name: one.read_bytes()}
    named = None if layout == "hf" else layout
    folder = save_checkpoint(
        out, checkpoint.transformer, layout=named, generation=checkpoint.generation, tokenizer_files=files
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return {"layout": config["model_type"], "type": config.get("dtype", "mixed"), "tokenizer": sorted(files)}


def _to_gguf(out: Path, checkpoint: "Checkpoint", type: str) -> dict[str, Any]:
    from ..weights.gguf_saving import form_for, save_gguf

    transformer = checkpoint.transformer
    own = {"float16": "f16", "bfloat16": "bf16"}.get(str(transformer.W_U.dtype).removeprefix("torch."), "f32")
    known = checkpoint.gguf_metadata or {}
    metadata = {key: value for key, value in known.items() if key.startswith(("tokenizer.", "general."))}
    save_gguf(out, transformer, type=type or own, metadata=metadata)
    words = sorted(key for key in metadata if key.startswith("tokenizer."))
    form = form_for(transformer.config, transformer.state_dict())
    return {"layout": form.architecture, "type": type or own, "tokenizer": words}
