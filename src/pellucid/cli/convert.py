"""`pellucid convert`: the same weights in another form."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json, ModelName
from .talk import print_json, waiting

if TYPE_CHECKING:
    from ..text import Tokenizer
    from ..weights.checkpoint import Checkpoint

TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "q8_0": None}
_FAMILIES = "gpt2, llama, mistral, gpt_neox, gpt_neo, bert, marian"
_GGML = "tokenizer.ggml."

Out = Annotated[
    Path, typer.Argument(metavar="OUT", help="A folder to make, or a name that ends in .gguf.", show_default=False)
]
LayoutName = Annotated[
    str,
    typer.Option(
        "--layout",
        metavar="NAME",
        help=f"A folder's family: {_FAMILIES}; hf: the first of them that fits; pellucid: our own, for any model. "
        "By default hf, else pellucid.",
        show_default=False,
    ),
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


Replace = Annotated[bool, typer.Option("--replace", help="Write over what stands at OUT.")]


def convert(
    source: ModelName,
    out: Out,
    layout: LayoutName = "",
    type: TypeName = "",
    replace: Replace = False,
    as_json: Json = False,
) -> None:
    """Write a model's weights in another form.

    A folder as Hugging Face's transformers reads it, or a .gguf file. The tokenizer comes along, as the form that is
    written has it; what that has no place for is left out, and said.
    """
    to_file = out.suffix == ".gguf"
    _check(to_file, layout, type)
    if out.exists() and not replace:
        raise ValueError(f"{out} is there already: choose another name, or say --replace to write over it")
    with waiting(f"reading {source}"):
        from ..weights.loading import load_checkpoint

        checkpoint = load_checkpoint(source, dtype=TYPES.get(type))
    edits = None if checkpoint.edits_file is None else checkpoint.edits_file.read_bytes()
    if edits is not None and to_file:
        raise ValueError(
            f"{source} is edited by its edits.json, for which a .gguf file has no place: convert to a folder"
        )
    with waiting(f"writing {out}"):
        written = _to_gguf(out, checkpoint, type) if to_file else write_folder(out, checkpoint, layout, edits)
    count = sum(weight.numel() for weight in checkpoint.transformer.parameters())
    if as_json:
        print_json({"out": str(out), "parameters": count, **written})
        return
    layout = "pellucid, which only Pellucid reads" if written["layout"] == "pellucid" else written["layout"]
    print(f"{out}: {count:,} parameters, {layout}, {written['type']}")
    print("tokenizer:", ", ".join(written["tokenizer"]) or "none, which its file or folder must bring")
    if written["left_out"]:
        print("left out:", written["left_out"])


def _check(to_file: bool, layout: str, type: str) -> None:
    if type not in ("", *TYPES):
        raise ValueError(f"no type {type!r}, only {', '.join(TYPES)}")
    if type == "q8_0" and not to_file:
        raise ValueError("q8_0 is a type of .gguf files: give OUT a name that ends in .gguf")
    if layout and to_file:
        raise ValueError("--layout is for folders: a .gguf file has the architecture that fits the model")


def write_folder(out: Path, checkpoint: "Checkpoint", layout: str, edits: bytes | None = None) -> dict[str, Any]:
    """Write a checkpoint's weights and tokenizer as a folder, and edits if there are any; what is in it."""
    import json

    from ..weights.checkpoint import EDITS
    from ..weights.saving import save_checkpoint

    files, left_out = _files(checkpoint)
    beside = files if edits is None else {**files, EDITS: edits}
    folder = save_checkpoint(
        out, checkpoint.transformer, layout=layout or None, generation=checkpoint.generation, beside=beside
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    type = config.get("dtype", "mixed")
    return {"layout": config["model_type"], "type": type, "tokenizer": sorted(files), "left_out": left_out}


def _files(checkpoint: "Checkpoint") -> tuple[dict[str, bytes], str]:
    """The tokenizer's own files, else those made of it; and why there are none, if there might have been."""
    from ..text import TextError
    from ..weights.saving import tokenizer_files

    one = checkpoint.tokenizer_file
    if checkpoint.folder is not None:
        return tokenizer_files(checkpoint.folder), ""
    if one is not None and one.name == "tokenizer.model":
        return {one.name: one.read_bytes()}, ""
    try:
        tokenizer = _tokenizer(checkpoint)
        return {} if tokenizer is None else tokenizer.to_files(), ""
    except TextError as error:
        return {}, f"the tokenizer: {error}"


def _to_gguf(out: Path, checkpoint: "Checkpoint", type: str) -> dict[str, Any]:
    from ..weights.gguf_saving import form_for, save_gguf

    transformer, known = checkpoint.transformer, checkpoint.gguf_metadata
    own = {"float16": "f16", "bfloat16": "bf16"}.get(str(transformer.W_U.dtype).removeprefix("torch."), "f32")
    form, left_out = form_for(transformer.config, transformer.state_dict()), ""
    if known is None:
        metadata, left_out = _words(checkpoint)
    else:
        metadata = {key: value for key, value in known.items() if key.startswith(("tokenizer.", "general."))}
    if metadata and form.architecture == "bert":
        metadata[_GGML + "token_type_count"] = transformer.config.n_token_types  # llama.cpp asks for it here
    save_gguf(out, transformer, type=type or own, metadata=metadata)
    words = sorted(key for key in metadata if key.startswith("tokenizer."))
    return {"layout": form.architecture, "type": type or own, "tokenizer": words, "left_out": left_out}


def _words(checkpoint: "Checkpoint") -> tuple[dict[str, Any], str]:
    """The tokenizer as a .gguf file's metadata; and what of it, or why all of it, is left out."""
    from ..text import TextError

    rows = checkpoint.config.vocab_size
    try:
        tokenizer = _tokenizer(checkpoint)
    except TextError as error:
        return {}, f"the tokenizer: {error}"
    if tokenizer is None:
        return {}, ""
    try:
        words, left_out = tokenizer.to_gguf(rows), ""
    except TextError as strict:
        try:
            words, left_out = tokenizer.to_gguf(rows, lossy=True), f"of the tokenizer: {strict}"
        except TextError as error:
            return {}, f"the tokenizer: {error}"
    number = len(words[_GGML + "tokens"])  # type: ignore[arg-type]
    if number > rows:
        return {}, f"the tokenizer: it has {number} tokens, and the model's embedding {rows} rows"
    return words, left_out


def _tokenizer(checkpoint: "Checkpoint") -> "Tokenizer | None":
    from ..text.finding import find_tokenizer

    return find_tokenizer(checkpoint.folder, checkpoint.tokenizer_file, checkpoint.gguf_metadata)
