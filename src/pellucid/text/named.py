"""What a checkpoint folder's small files say of single tokens: which stand beside the vocabulary, and what for."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken

from .coder import Coder
from .errors import TextError, one_line, shown
from .files import file_in, has, read_object, read_text
from .settings import Settings, id_list
from .template import ChatTemplate

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OWN = {"bos_token": "bos_id", "eos_token": "eos_ids", "pad_token": "pad_id"}

# What tokens with a task are usually called, for files that do not say.
USUAL = {
    "bos": ("<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "<|endoftext|>"),
    "eos": ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>"),
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
}


def said_in(folder: Path, config: Mapping[str, object]) -> dict[str, object]:
    """What the folder names: special_tokens_map.json, and tokenizer_config.json, whose word is the last."""
    return read_object(file_in(folder, "special_tokens_map.json")) | dict(config)


def texts_in(said: Mapping[str, object]) -> dict[str, str]:
    """The texts of tokens with a task, by its name."""
    return {name: token_text(said[name], name) for name in NAMES if said.get(name) is not None}


def control_texts(said: Mapping[str, object]) -> list[str]:
    """The texts of all tokens that are named as control tokens."""
    return [*texts_in(said).values(), *further_tokens(said)]


def settings_of(folder: Path, config: Mapping[str, object], coder: Coder, own: Settings | None = None) -> Settings:
    """What the folder's files say of its tokenizer. Where they do not name a token it is what the vocabulary itself
    says (`own`); where there is no such word, and they name no token at all, what is usual. Nothing is said of what is
    put around a text."""
    said = said_in(folder, config)
    texts = texts_in(said)
    settings = usual_settings(coder) if own is None else own
    if not said.keys().isdisjoint(NAMES):
        ids = {name: coder.vocabulary.get(text) for name, text in texts.items()}
        for name in ("bos_token", "eos_token"):
            if name in ids and ids[name] is None:
                raise TextError(f"{folder}: {name} is {shown(texts[name])}, which the vocabulary does not have")
        named = settings_with({name.removesuffix("_token"): id for name, id in ids.items()})
        unsaid = () if own is None else tuple(field for name, field in OWN.items() if name not in said)
        settings = replace(named, **{field: getattr(own, field) for field in unsaid})
    generation = file_in(folder, "generation_config.json")
    ends = id_list(read_object(generation).get("eos_token_id"), f"{generation}: eos_token_id")
    template = template_of(folder, config, texts)
    return replace(settings, eos_ids=tuple(dict.fromkeys(settings.eos_ids + ends)), chat_template=template)


def usual_settings(coder: Coder) -> Settings:
    """The tokens with a task by the names that they usually have."""
    controls = {text: id for id, text in coder.controls.items()}
    found = {task: next((controls[text] for text in names if text in controls), None) for task, names in USUAL.items()}
    return settings_with(found)


def settings_with(ids: Mapping[str, int | None]) -> Settings:
    """Settings with the ids of tokens by their task."""
    eos_ids = id_list(ids.get("eos"), "eos_token")
    bos, pad, cls, sep, mask = (ids.get(task) for task in ("bos", "pad", "cls", "sep", "mask"))
    return Settings(bos_id=bos, eos_ids=eos_ids, pad_id=pad, cls_id=cls, sep_id=sep, mask_id=mask)


def tokens_of(folder: Path, config: Mapping[str, object]) -> dict[int, AddedToken]:
    """The tokens, by id, that stand beside the vocabulary: in tokenizer_config.json and in added_tokens.json."""
    tokens: dict[int, AddedToken] = {}
    for text, id in read_object(file_in(folder, "added_tokens.json")).items():
        if type(id) is not int or id < 0:
            raise TextError(f"{folder / 'added_tokens.json'}: expected ids of tokens, got {one_line(id, 60)}")
        tokens[id] = AddedToken(text, normalized=False)
    listed = config.get("added_tokens_decoder") or {}
    for id, entry in listed.items() if isinstance(listed, dict) else [("", listed)]:
        if (
            not id.isdecimal()
            or len(id) > 9
            or not isinstance(entry, dict)
            or not isinstance(entry.get("content"), str)
        ):
            raise TextError(f"tokenizer_config.json: added_tokens_decoder: cannot use {one_line({id: entry}, 80)}")
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        given = {key: bool(entry[key]) for key in flags if key in entry}
        tokens[int(id)] = AddedToken(entry["content"], **given)
    return tokens


def token_text(value: object, name: str) -> str:
    """A token as the files name it: its text, or an object with its text under "content"."""
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise TextError(f"{name}: expected the text of a token, got {one_line(value, 60)}")
    return text


def further_tokens(said: Mapping[str, object]) -> list[str]:
    """The texts of control tokens without a task of their own."""
    found = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        listed = said.get(name) or []
        values = listed.values() if isinstance(listed, dict) else listed
        if not isinstance(values, Iterable):
            raise TextError(f"{name}: expected a list of tokens, got {one_line(values, 60)}")
        found += [token_text(value, name) for value in values]
    return found


def template_of(folder: Path, config: Mapping[str, object], texts: Mapping[str, str]) -> ChatTemplate | None:
    """The chat template: chat_template.jinja, or the entry of tokenizer_config.json, of several the default one."""
    if has(folder, "chat_template.jinja"):
        return ChatTemplate(read_text(file_in(folder, "chat_template.jinja")), texts)
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    if source is not None and not isinstance(source, str):
        raise TextError(f"{folder}: chat_template: expected the text of a template, got {one_line(source, 60)}")
    return None if source is None else ChatTemplate(source, texts)
