"""Every family that is read and written, by its model_type. The last, our own, can express any Config."""

from . import bert, gpt2, gpt_neo, gpt_neox, llama, marian, mistral, native
from .family import Family

FAMILIES: dict[str, Family] = {
    "gpt2": gpt2.FAMILY,
    "llama": llama.FAMILY,
    "mistral": mistral.FAMILY,
    "gpt_neox": gpt_neox.FAMILY,
    "gpt_neo": gpt_neo.FAMILY,
    "bert": bert.FAMILY,
    "marian": marian.FAMILY,
    "pellucid": native.FAMILY,
}
