"""`pellucid convert`, held against Hugging Face and the gguf package."""

import json
import shutil
from dataclasses import replace

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM, MistralForCausalLM

import pellucid
import spm
from pellucid.front import load
from pellucid.inside.edit_files import write_edits
from pellucid.inside.edits import zero
from pellucid.model.transformer import Transformer
from pellucid.weights.gguf_saving import save_gguf
from pellucid.weights.loading import load_checkpoint
from pellucid.weights.presets import preset
from pellucid.weights.saving import save_checkpoint, tokenizer_files

IDS = torch.arange(8)[None]


@torch.no_grad()
def test_folder_to_folder(ask, oracle, tmp_path):
    """The weights, the ends of a text and the tokenizer's files."""
    model, tokenizer, folder = oracle
    found = ask("convert", folder, tmp_path / "m")
    assert (found["layout"], found["type"]) == ("llama", "float32")
    assert found["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert "tokenizer.json" in found["tokenizer"]
    other = LlamaForCausalLM.from_pretrained(tmp_path / "m").eval()
    assert torch.equal(other(IDS).logits, model(IDS).logits)
    assert other.config.eos_token_id == model.config.eos_token_id
    words = type(tokenizer).from_pretrained(tmp_path / "m")
    assert words.encode("The capital of France") == tokenizer.encode("The capital of France")


@torch.no_grad()
def test_another_layout_and_type(call, oracle, tmp_path):
    model, _, folder = oracle
    code, out, err = call("convert", folder, tmp_path / "m", "--layout", "mistral", "--type", "bf16")
    assert (code, err) == (0, "")
    assert "mistral, bfloat16" in out
    other = MistralForCausalLM.from_pretrained(tmp_path / "m", dtype="auto").eval()
    assert other.config.sliding_window is None
    assert torch.equal(other.model.norm.weight, model.model.norm.weight.bfloat16())


@torch.no_grad()
def test_to_gguf_and_back(ask, oracle, tmp_path):
    model, _, folder = oracle
    assert ask("convert", folder, tmp_path / "m.gguf")["type"] == "f32"
    assert ask("convert", tmp_path / "m.gguf", tmp_path / "back")["layout"] == "llama"
    found = ask("convert", folder, tmp_path / "small.gguf", "--type", "f16")
    other = LlamaForCausalLM.from_pretrained(tmp_path / "back").eval()
    assert (other(IDS).logits - model(IDS).logits).abs().max() <= 2e-5 * model(IDS).logits.abs().max()
    assert (found["layout"], found["type"], found["left_out"]) == ("llama", "f16", "")
    (values,) = (t for t in gguf.GGUFReader(tmp_path / "small.gguf").tensors if t.name == "output.weight")
    assert np.array_equal(values.data, model.lm_head.weight.half().numpy())


def test_a_gguf_keeps_its_tokenizer(ask, oracle, tmp_path):
    _, _, folder = oracle
    words = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"], "general.name": "tiny"}
    save_gguf(tmp_path / "a.gguf", load_checkpoint(folder).transformer, type="f32", metadata=words)
    found = ask("convert", tmp_path / "a.gguf", tmp_path / "b.gguf", "--type", "f32")
    assert found["tokenizer"] == ["tokenizer.ggml.model", "tokenizer.ggml.tokens"]
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


TEXTS = ["The capital of France", "I'll  say\n\n 12 naïve 日本語 <|end|>", ""]


def same_words(source, other):
    """Two checkpoints' tokenizers, both read here."""
    one, two = (pellucid.load(str(each)) for each in (source, other))
    for text in TEXTS:
        assert two.encode(text) == one.encode(text)
        assert two.encode(text, special=True) == one.encode(text, special=True)
        assert two.decode(one.encode(text)) == one.decode(one.encode(text))
    assert two.tokenizer.eos_ids == one.tokenizer.eos_ids


def test_the_tokenizer_goes_into_a_gguf_and_out_again(ask, oracle, tmp_path):
    _, theirs, folder = oracle
    found = ask("convert", folder, tmp_path / "m.gguf")
    assert "tokenizer.ggml.merges" in found["tokenizer"]
    same_words(folder, tmp_path / "m.gguf")
    read = gguf.GGUFReader(tmp_path / "m.gguf")
    assert read.get_field("tokenizer.ggml.pre").contents() == "gpt-2"
    assert read.get_field("tokenizer.chat_template").contents() == theirs.chat_template
    found = ask("convert", tmp_path / "m.gguf", tmp_path / "back")
    assert (found["tokenizer"], found["left_out"]) == (["tokenizer.json", "tokenizer_config.json"], "")
    same_words(folder, tmp_path / "back")
    words = AutoTokenizer.from_pretrained(tmp_path / "back")
    assert [words.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]
    talk = [{"role": "user", "content": "1 2 3"}]
    assert words.apply_chat_template(talk, tokenize=False) == theirs.apply_chat_template(talk, tokenize=False)


def changed(folder, tmp_path, **parts):
    """The folder with parts of its tokenizer.json changed."""
    shutil.copytree(folder, tmp_path / "changed")
    file = tmp_path / "changed" / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | parts))
    return tmp_path / "changed"


def test_what_a_gguf_has_no_place_for_is_said(ask, call, oracle, tmp_path):
    source = changed(oracle[2], tmp_path, normalizer={"type": "NFC"})
    found = ask("convert", source, tmp_path / "m.gguf")
    assert "tokenizer.ggml.merges" in found["tokenizer"]
    reason = "GGUF's tokenizers have no place for this: text is put into another form first ('NFC')"
    assert found["left_out"] == f"of the tokenizer: {reason}"
    code, out, err = call("convert", source, tmp_path / "m.gguf", "--replace")
    assert (code, out.splitlines()[-1], err) == (0, f"left out: of the tokenizer: {reason}", "")


def test_a_rule_without_a_name_leaves_the_tokenizer_out(call, oracle, tmp_path):
    rule = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    code, out, _ = call("convert", changed(oracle[2], tmp_path, pre_tokenizer=rule), tmp_path / "m.gguf")
    assert code == 0
    assert "tokenizer: none, which its file or folder must bring\nleft out: the tokenizer: GGUF names the rule" in out
    assert pellucid.load(str(tmp_path / "m.gguf")).tokenizer is None


def test_rows_without_a_token_are_filled_up_and_tokens_without_a_row_are_not_written(ask, oracle, tmp_path):
    _, theirs, folder = oracle
    config = load_checkpoint(folder).config
    for rows in (len(theirs) + 7, len(theirs) - 1):
        save_checkpoint(
            tmp_path / str(rows), Transformer(replace(config, vocab_size=rows)), beside=tokenizer_files(folder)
        )
    more, fewer = (ask("convert", tmp_path / str(len(theirs) + n), tmp_path / f"{n}.gguf") for n in (7, -1))
    assert "tokenizer.ggml.tokens" in more["tokenizer"]
    assert fewer["tokenizer"] == []
    assert (
        fewer["left_out"]
        == f"the tokenizer: it has {len(theirs)} tokens, and the model's embedding {len(theirs) - 1} rows"
    )


def test_bert_says_how_many_types_its_tokens_have(ask, tmp_path):
    shape = {"vocab_size": 8, "n_layers": 1, "d_model": 32, "n_heads": 2, "n_kv_heads": 2, "d_head": 16, "d_ff": 32}
    encoder = {"head": None, "pooler": False, "next_sentence": False}
    words = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n##s\na\n"
    model = Transformer(replace(preset("bert-base-uncased"), **shape, **encoder))
    save_checkpoint(tmp_path / "b", model, beside={"vocab.txt": words})
    found = ask("convert", tmp_path / "b", tmp_path / "b.gguf")
    assert found["layout"] == "bert"
    read = gguf.GGUFReader(tmp_path / "b.gguf")
    assert read.get_field("tokenizer.ggml.token_type_count").contents() == 2
    ask("convert", tmp_path / "b.gguf", tmp_path / "back")
    assert AutoTokenizer.from_pretrained(tmp_path / "back").encode("Hellos a") == [2, 5, 6, 7, 3]


@pytest.mark.slow
def test_sentencepiece_goes_both_ways_or_says_why_not(ask, oracle, tmp_path):
    config = replace(load_checkpoint(oracle[2]).config, vocab_size=360)
    same = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    for name, options in (("a", {}), ("b", {"user_defined_symbols": ["<u>"]})):
        files = {"tokenizer.model": spm.trained("bpe", **same, **options)}
        save_checkpoint(tmp_path / name, Transformer(config), beside=files)
        ask("convert", tmp_path / name, tmp_path / f"{name}.gguf")
        same_words(tmp_path / name, tmp_path / f"{name}.gguf")
    found, other = (ask("convert", tmp_path / f"{name}.gguf", tmp_path / f"{name}2") for name in "ab")
    assert found["tokenizer"] == ["tokenizer.json", "tokenizer_config.json"]
    same_words(tmp_path / "a", tmp_path / "a2")
    words = AutoTokenizer.from_pretrained(tmp_path / "a2")
    assert words.encode(TEXTS[1]) == pellucid.load(str(tmp_path / "a")).encode(TEXTS[1])
    assert other["tokenizer"] == []
    assert "it has pieces that users defined" in other["left_out"]


def test_a_model_that_no_family_can_hold(ask, call, oracle, tmp_path):
    _, _, folder = oracle
    save_checkpoint(tmp_path / "a", Transformer(replace(load_checkpoint(folder).config, logit_scale=0.5)))
    found = ask("convert", tmp_path / "a", tmp_path / "b")
    assert found["layout"] == "pellucid"
    assert "pellucid, which only Pellucid reads" in call("convert", folder, tmp_path / "c", "--layout", "pellucid")[1]
    code, _, err = call("convert", tmp_path / "a", tmp_path / "d", "--layout", "hf")
    assert code == 2
    assert "no layout of Hugging Face's can hold this model" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{folder}", "{tmp}/m", "--type", "q4"], "no type 'q4', only f32, f16, bf16, q8_0"),
        (["{folder}", "{tmp}/m", "--type", "q8_0"], "q8_0 is a type of .gguf files"),
        (["{folder}", "{tmp}/m.gguf", "--layout", "llama"], "--layout is for folders"),
        (["{folder}", "{tmp}/m", "--layout", "bert"], "the bert layout has no place for"),
        (["{folder}", "{tmp}/m", "--layout", "gpt5"], "no layout 'gpt5', only gpt2, llama"),
        (["{folder}", "{tmp}/no/m"], "does not exist. Make it first"),
        (["{folder}", "{tmp}"], "is there already: choose another name, or say --replace"),
        (["{folder}", "{tmp}/notes"], "is there already"),
        (["{folder}", "{tmp}", "--replace"], "holds other things than a checkpoint's files"),
        (["{tmp}/nothing", "{tmp}/m"], "no model"),
    ],
)
def test_errors_are_one_line(words, message, call, oracle, tmp_path):
    (tmp_path / "notes").write_text("mine")
    code, out, err = call("convert", *(word.format(folder=oracle[2], tmp=tmp_path) for word in words))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert [each.name for each in tmp_path.iterdir()] == ["notes"]


def test_a_model_with_edits_keeps_them_or_is_refused(call, oracle, tmp_path):
    edited = tmp_path / "edited"
    shutil.copytree(oracle[2], edited)
    write_edits(edited / "edits.json", [zero("0.ffn.update", position=1)])
    assert call("convert", edited, tmp_path / "m")[0] == 0
    assert load(tmp_path / "m").edits[0].positions == (1,)
    code, _, err = call("convert", edited, tmp_path / "m.gguf")
    assert (code, "edits.json, for which a .gguf file has no place" in err) == (2, True)
    code, _, _ = call("convert", oracle[2], tmp_path / "m", "--replace")
    assert (code, load(tmp_path / "m").edits) == (0, ())
