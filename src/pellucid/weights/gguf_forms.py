"""Every architecture of GGUF that is read and written, by its name there."""

from . import gguf_bert, gguf_gpt2, gguf_gptneox, gguf_llama
from .gguf_form import Form

FORMS: dict[str, Form] = {
    "llama": gguf_llama.FORM,
    "gpt2": gguf_gpt2.FORM,
    "gptneox": gguf_gptneox.FORM,
    "bert": gguf_bert.FORM,
}
