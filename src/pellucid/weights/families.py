"""Every family that is read and written, by its model_type."""

from . import gpt2, llama
from .family import Family

FAMILIES: dict[str, Family] = {
    "gpt2": gpt2.FAMILY,
    "llama": llama.FAMILY,
}
