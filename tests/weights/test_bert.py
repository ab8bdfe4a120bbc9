"""BERT checkpoints, held against Hugging Face's BertModel and its pre-training heads on tiny random models."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertModel,
)

from pellucid.model.config import Gelu, MaskedLanguage, Relu
from pellucid.model.transformer import Transformer
from pellucid.weights.bert import read_config
from pellucid.weights.errors import CheckpointError
from pellucid.weights.loading import load_checkpoint
from twins import EXACT, LEFT, RIGHT, SINGLE, assert_twins, drawn, edited, opened

SIZES = {
    "vocab_size": 23,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
}
IDS = torch.arange(22).reshape(2, 11) * 7 % 23
TYPES = torch.tensor([[0] * 5 + [1] * 6, [0] * 9 + [1] * 2])


def tiny(kind=BertModel, dtype=torch.float32, **fields):
    return drawn(kind(BertConfig(**(SIZES | fields))), dtype)


def next_sentence(transformer: Transformer, mask=RIGHT) -> torch.Tensor:
    here = transformer.begin(IDS, mask)
    return transformer.next_sentence_logits(transformer.run(transformer.embed(IDS, here, TYPES), here), here)


def pooled(transformer: Transformer) -> torch.Tensor:
    here = transformer.begin(IDS, RIGHT)
    return transformer.pooled(transformer.run(transformer.embed(IDS, here, TYPES), here), here)


def assert_every_output(hf, tolerance: float) -> None:
    """What the model has: the stream, the pooler, the logits and the next-sentence logits, padded and with types."""
    real = RIGHT.bool()
    kind = type(hf)
    given_ids = {"input_ids": IDS, "attention_mask": RIGHT, "token_type_ids": TYPES}
    if kind is BertModel:
        assert_twins(
            hf,
            lambda t: t.hidden(IDS, RIGHT, types=TYPES)[real],
            lambda hf: hf(**given_ids).last_hidden_state[real],
            tolerance,
        )
        assert_twins(hf, pooled, lambda hf: hf(**given_ids).pooler_output, tolerance)
        assert_twins(hf, lambda t: t.hidden(IDS[:1]), lambda hf: hf(IDS[:1]).last_hidden_state, tolerance)
    if kind in (BertForMaskedLM, BertForPreTraining):
        name = "logits" if kind is BertForMaskedLM else "prediction_logits"
        assert_twins(hf, lambda t: t(IDS, RIGHT, types=TYPES)[real], lambda hf: hf(**given_ids)[name][real], tolerance)
        assert_twins(hf, lambda t: t(IDS[:1]), lambda hf: hf(IDS[:1])[name], tolerance)
    if kind in (BertForNextSentencePrediction, BertForPreTraining):
        name = "logits" if kind is BertForNextSentencePrediction else "seq_relationship_logits"
        assert_twins(hf, next_sentence, lambda hf: hf(**given_ids)[name], tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [SINGLE, EXACT])
@pytest.mark.parametrize("kind", [BertModel, BertForMaskedLM, BertForPreTraining, BertForNextSentencePrediction])
@pytest.mark.parametrize("fields", [{}, {"hidden_act": "gelu_new", "layer_norm_eps": 0.1}], ids=str)
def test_outputs(kind, fields, dtype, tolerance):
    assert_every_output(tiny(kind, dtype, **fields), tolerance)


@settings(max_examples=5)
@given(
    heads=st.integers(1, 3),
    layers=st.integers(1, 3),
    d_ff=st.integers(1, 20),
    types=st.integers(2, 4),
    activation=st.sampled_from(["gelu", "relu"]),
)
def test_outputs_of_drawn_configs(heads, layers, d_ff, types, activation):
    fields = {
        "num_attention_heads": heads,
        "hidden_size": 4 * heads,
        "num_hidden_layers": layers,
        "intermediate_size": d_ff,
        "type_vocab_size": types,
        "hidden_act": activation,
    }
    assert_every_output(tiny(BertForPreTraining, torch.float64, **fields), 1e-10)


@torch.no_grad()
def test_pos_2_padding():
    """A masked batch gives the real rows' vectors and the pooler's; a mean must leave padding out."""
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    transformer = opened(tiny(dtype=torch.float64, **sizes)).transformer
    short, long = torch.tensor([[2, 11, 12, 3]]), torch.tensor([[2, 11, 12, 3, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0]])
    alone, padded = transformer.hidden(short), transformer.hidden(long, mask)
    assert (padded[:, :4] - alone).abs().max() <= 1e-12
    assert (transformer.hidden(long)[:, :4] - alone).abs().max() > 0.01
    assert (padded.mean(1) - alone.mean(1)).abs().max() > 0.01
    assert (padded[mask.bool()].mean(0) - alone[0].mean(0)).abs().max() <= 1e-12
    here, whole = transformer.begin(short), transformer.begin(long, mask)
    assert (transformer.pooled(padded, whole) - transformer.pooled(alone, here)).abs().max() <= 1e-12


@torch.no_grad()
def test_padding_on_the_left():
    """The same vectors as on the right: the pooler takes the first real token."""
    transformer = opened(tiny(BertForPreTraining, torch.float64)).transformer
    left = IDS.clone()
    left[1, 4:] = IDS[1, :7]
    assert (transformer(left, LEFT)[1, 4:] - transformer(IDS, RIGHT)[1, :7]).abs().max() <= 1e-12


def test_without_a_pooler(tmp_path):
    hf = drawn(BertModel(BertConfig(**SIZES), add_pooling_layer=False))
    checkpoint = opened(hf)
    assert (checkpoint.config.pooler, checkpoint.config.head) == (False, None)
    assert_twins(hf, lambda t: t.hidden(IDS), lambda hf: hf(IDS).last_hidden_state, 2e-5)


@torch.no_grad()
def test_files_of_the_first_releases(tmp_path):
    """LayerNorm.gamma and beta, position buffers, the unembedding and its bias twice, and more heads than its name."""
    hf = tiny(BertForPreTraining)
    hf.save_pretrained(tmp_path)

    def change(tensors):
        renamed = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in tensors.items()
        }
        return renamed | {
            "bert.embeddings.position_ids": torch.arange(16)[None],
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"],
        }

    edited(tmp_path, change, architectures=["BertForMaskedLM"], gradient_checkpointing=False)
    checkpoint = load_checkpoint(tmp_path)
    assert (checkpoint.config.head, checkpoint.config.next_sentence) == (MaskedLanguage(), True)
    ours, theirs = checkpoint.transformer(IDS, types=TYPES), hf(IDS, token_type_ids=TYPES)
    assert (ours - theirs.prediction_logits).abs().max() <= 2e-5 * ours.abs().max()
    assert (next_sentence(checkpoint.transformer) - hf(IDS, RIGHT, TYPES).seq_relationship_logits).abs().max() <= 2e-5


@pytest.mark.parametrize("copy", ["bias", "weight"])
def test_copies_that_differ(copy, tmp_path):
    tiny(BertForMaskedLM).save_pretrained(tmp_path)
    wrong = torch.zeros(23, 12) if copy == "weight" else torch.zeros(23)
    edited(tmp_path, lambda tensors: tensors | {f"cls.predictions.decoder.{copy}": wrong})
    with pytest.raises(CheckpointError, match="two copies differ"):
        load_checkpoint(tmp_path)


def test_a_head_that_the_architecture_names_and_the_file_lacks(tmp_path):
    tiny(BertModel).save_pretrained(tmp_path)
    edited(tmp_path, architectures=["BertForMaskedLM"])
    with pytest.raises(CheckpointError, match=r"missing: 'cls.predictions.bias'"):
        load_checkpoint(tmp_path)


def config_json(**fields) -> dict:
    return {"model_type": "bert", **SIZES, **fields}


def test_the_published_config():
    """The fields of the published bert-base-uncased's config.json."""
    fields = {
        "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": False,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02,
        "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0, "position_embedding_type": "absolute",
        "transformers_version": "4.6.0.dev0", "type_vocab_size": 2, "use_cache": True, "vocab_size": 30522,
    }  # fmt: skip
    config, generation = read_config(fields, "here")
    assert (config.d_ff, config.norm.eps, config.activation, config.head) == (3072, 1e-12, Gelu(), MaskedLanguage())
    assert generation == {"pad_token_id": 0}
    assert read_config(config_json(hidden_act="relu"), "here")[0].activation == Relu()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key' is not supported"),
        ({"is_decoder": True}, "is_decoder=True is not supported"),
        ({"architectures": ["BertForSequenceClassification"]}, "BertForSequenceClassification"),
        ({"hidden_act": "mish"}, "hidden_act='mish' is not known"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ({"embedding_size": 8}, "unknown fields.*embedding_size=8"),
    ],
)
def test_fields_that_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        read_config(config_json(**fields), "here")
