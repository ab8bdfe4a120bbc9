"""Filled masks and sentence vectors against Hugging Face's BERT on a tiny vocabulary."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizer

import pellucid
from tiny import build, tiny_gpt2

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "paris",
    "is",
    "the",
    "capital",
    "of",
    "france",
    "##s",
    ".",
    "it",
]
TEXT = "Paris is the [MASK] of [MASK]."
SHAPE = {
    "vocab_size": len(WORDS), "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 40, "max_position_embeddings": 16, "initializer_range": 0.5,
}  # fmt: skip


def saved(folder: Path, kind: type):
    torch.manual_seed(0)
    theirs = kind(BertConfig(**SHAPE)).eval()
    theirs.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    return theirs, BertTokenizer(str(folder / "vocab.txt")), pellucid.load(folder)


def test_fill_is_hugging_faces(tmp_path):
    theirs, tokenizer, ours = saved(tmp_path, BertForMaskedLM)
    ids = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        chances = theirs(**ids).logits[0].softmax(-1)
    masks = (ids["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten().tolist()
    table = ours.fill(TEXT, k=3)
    expected = [(mask, i) for mask in masks for i in chances[mask].topk(3).indices.tolist()]
    assert [(row[0], row[2]) for row in table] == expected
    for position, _, token, probability, text in table:
        assert probability == pytest.approx(float(chances[position, token]), abs=1e-6)
        assert WORDS[token].removeprefix("##") in text
        assert text.count("[MASK]") == (2 if WORDS[token] == "[MASK]" else 1)


def test_vectors_are_hugging_faces_with_padding_and_alone(tmp_path):
    theirs, tokenizer, ours = saved(tmp_path, BertModel)
    texts = ["Paris is the capital of France.", "it is", "Paris"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = theirs(**batch).last_hidden_state
    real = batch["attention_mask"][..., None]
    mean = (states * real).sum(1) / real.sum(1)
    torch.testing.assert_close(ours.embed(texts), mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.embed(texts, "first"), states[:, 0], atol=1e-5, rtol=1e-5)
    unit = ours.embed(texts, unit=True)
    torch.testing.assert_close(unit.norm(dim=-1), torch.ones(3))
    for text, vector in zip(texts, unit, strict=True):
        torch.testing.assert_close(ours.embed(text, unit=True)[0], vector, atol=1e-6, rtol=1e-5)


def test_a_decoder_embeds_its_final_stream():
    model = pellucid.Model(tiny_gpt2())
    states = model.transformer.hidden(torch.tensor([[1, 2, 3]]))
    torch.testing.assert_close(model.embed([[1, 2, 3], [4, 5]])[0], states[0].mean(0))


def test_what_cannot_be_filled_or_embedded_is_refused(tmp_path):
    _, _, encoder = saved(tmp_path, BertModel)
    with pytest.raises(ValueError, match="no prediction head"):
        encoder.fill(TEXT)
    with pytest.raises(ValueError, match="'mean' or 'first', got 'last'"):
        encoder.embed("it is", "last")
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        encoder.embed([])


def test_filling_needs_a_mask_and_a_model_that_sees_both_ways(tmp_path):
    _, _, model = saved(tmp_path, BertForMaskedLM)
    with pytest.raises(ValueError, match=r"write \[MASK\]"):
        model.fill("it is")
    with pytest.raises(ValueError, match=r"k must lie in 1\.\.14"):
        model.fill(TEXT, k=0)
    decoder = pellucid.Model(build(tiny_gpt2().config), model.tokenizer)
    with pytest.raises(ValueError, match="one direction"):
        decoder.fill(TEXT)
