"""What every config.json of Hugging Face holds beside the model's own numbers."""

from collections.abc import Mapping
from typing import Any

from ..model.config import Activation, Config, Gelu, GeluTanh, Init, Relu, Silu, SwiGLU
from .fields import Fields
from .files import shown

# Plain activations under their names there; the first name of a record is the one that is written.
_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": Gelu(),
    "gelu_new": GeluTanh(),
    "relu": Relu(),
    "gelu_pytorch_tanh": GeluTanh(),
    "gelu_fast": GeluTanh(),
    "silu": Silu(),
    "swish": Silu(),
}

# Settings of how text is generated; older files keep them in config.json. They go to the decoder, not to the model.
_GENERATION = (
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "do_sample", "temperature", "top_k",
    "top_p", "min_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "num_beams",
    "num_beam_groups", "num_return_sequences", "diversity_penalty", "max_length", "min_length", "max_new_tokens",
    "early_stopping", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id",
    "forced_eos_token_id", "exponential_decay_length_penalty", "encoder_no_repeat_ngram_size", "remove_invalid_values",
)  # fmt: skip

# Bookkeeping: who wrote the file, how Python calls should answer, labels of heads that are not loaded.
_BOOKKEEPING = (
    "transformers_version", "torch_dtype", "dtype", "_name_or_path", "_commit_hash", "use_cache", "use_bfloat16",
    "output_attentions", "output_hidden_states", "output_scores", "output_past", "return_dict", "torchscript",
    "return_dict_in_generate", "chunk_size_feed_forward", "is_decoder", "id2label", "label2id", "_num_labels",
    "num_labels", "problem_type", "finetuning_task", "tokenizer_class", "prefix", "sep_token_id",
    "task_specific_params", "tf_legacy_loss", "gradient_checkpointing", "transformers.js_config", "auto_map",
    "_attn_implementation_autoset", "_attn_implementation", "attn_implementation",
)  # fmt: skip


def take_common(fields: Fields, architectures: tuple[str, ...], encoder_decoder: bool = False) -> dict[str, Any]:
    """Take the fields that all families share; gives back those that belong to generation.

    Raises CheckpointError for an architecture outside `architectures` (a model with another head), and for fields
    that make another model of it (an encoder-decoder, pruned heads, quantized weights).
    """
    named = fields.collect("architectures").get("architectures") or []
    for architecture in named if isinstance(named, list) else [named]:
        if architecture not in architectures:
            raise fields.error(f"architecture {shown([architecture])} is not known, only {', '.join(architectures)}")
    fields.ignore("model_type", *_BOOKKEEPING)
    fields.only("is_encoder_decoder", encoder_decoder)
    for name in ("tie_encoder_decoder", "add_cross_attention"):
        fields.only(name, False)
    fields.only("pruned_heads", {})
    fields.only("cross_attention_hidden_size")
    fields.only("quantization_config")
    return fields.collect(*_GENERATION)


def take_activation(fields: Fields, name: str, default: str) -> Activation:
    """A plain activation. Raises CheckpointError for one that is not known, and for gated ones."""
    named = fields.text(name, default)
    if named not in _ACTIVATIONS:
        raise fields.error(f"{name}={shown([named])} is not known, only {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[named]


def activation_name(activation: Activation) -> str:
    """The name that config.json has for an activation."""
    if isinstance(activation, SwiGLU):
        return "silu"
    return next(name for name, record in _ACTIVATIONS.items() if record == activation)


def spread(config: Config) -> float:
    """initializer_range: the spread of fresh weights, for whoever trains the model on."""
    return config.init.std if isinstance(config.init, Init) else Init().std
