"""Pellucid: one readable transformer, and everything inside it."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .front import Model, load
    from .front.training import train
    from .generation.sampling import Sampling
    from .inside.attribution import Attribution, attribution
    from .inside.circuit import Circuit
    from .inside.circuit_search import find_circuit
    from .inside.eap import edge_scores
    from .inside.edit_files import read_edits, write_edits
    from .inside.edits import Edit, add, freeze, knockout, mean, noise, patch, resample, scale, zero
    from .inside.edits import map_with as map
    from .inside.edits import set_to as set
    from .inside.effects import Effects
    from .inside.elsewhere import names_table
    from .inside.jacobian_lens import JacobianLens, jacobian_lens
    from .inside.metrics import Metric, divergence, log_probability, logit, loss, probability
    from .inside.neurons import Neurons, Scan
    from .inside.pairs import Pair
    from .inside.patchscope import carried, read_in
    from .inside.path_patching import path_patch
    from .inside.probes import probe
    from .inside.steering import steering
    from .inside.sweep import sweep, sweep_edits
    from .inside.sweep_work import SweepOptions
    from .inside.trace import Trace
    from .inside.tuned_lens import TunedLens, tune_lens
    from .model.budget import budget
    from .model.config import Config
    from .model.sites import Site
    from .training.adapters import load_adapter
    from .views.figures import View
    from .views.table import Table
    from .weights.presets import preset
else:

    def __getattr__(name: str) -> object:
        """Import a name when it is first asked for (PEP 562), so that `import pellucid` costs nothing."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(_unknown(name))
        home, _, own = _HOMES[name].partition(":")
        value = getattr(import_module(home, __name__), own or name)
        globals()[name] = value
        return value


__all__ = [
    "Attribution", "Circuit", "Config", "Edit", "Effects", "JacobianLens", "Metric", "Model", "Neurons", "Pair",
    "Sampling", "Scan", "Site", "SweepOptions", "Table", "Trace", "TunedLens", "View", "__version__", "add",
    "attribution", "budget", "carried", "divergence", "edge_scores", "find_circuit", "freeze", "jacobian_lens",
    "knockout", "load", "load_adapter", "log_probability", "logit", "loss", "map", "mean", "names_table", "noise",
    "patch", "path_patch", "preset", "probability", "probe", "read_edits", "read_in", "resample", "scale", "set",
    "steering", "sweep", "sweep_edits", "train", "tune_lens", "write_edits", "zero",
]  # fmt: skip

_HOMES = {
    "Attribution": ".inside.attribution",
    "Circuit": ".inside.circuit",
    "Config": ".model.config",
    "Edit": ".inside.edits",
    "Effects": ".inside.effects",
    "JacobianLens": ".inside.jacobian_lens",
    "Metric": ".inside.metrics",
    "Model": ".front",
    "Neurons": ".inside.neurons",
    "Pair": ".inside.pairs",
    "Sampling": ".generation.sampling",
    "Scan": ".inside.neurons",
    "Site": ".model.sites",
    "SweepOptions": ".inside.sweep_work",
    "Table": ".views.table",
    "Trace": ".inside.trace",
    "TunedLens": ".inside.tuned_lens",
    "View": ".views.figures",
    "add": ".inside.edits",
    "attribution": ".inside.attribution",
    "budget": ".model.budget",
    "carried": ".inside.patchscope",
    "divergence": ".inside.metrics",
    "edge_scores": ".inside.eap",
    "find_circuit": ".inside.circuit_search",
    "freeze": ".inside.edits",
    "jacobian_lens": ".inside.jacobian_lens",
    "knockout": ".inside.edits",
    "load": ".front",
    "load_adapter": ".training.adapters",
    "log_probability": ".inside.metrics",
    "logit": ".inside.metrics",
    "loss": ".inside.metrics",
    "map": ".inside.edits:map_with",
    "mean": ".inside.edits",
    "names_table": ".inside.elsewhere",
    "noise": ".inside.edits",
    "patch": ".inside.edits",
    "path_patch": ".inside.path_patching",
    "preset": ".weights.presets",
    "probability": ".inside.metrics",
    "probe": ".inside.probes",
    "read_edits": ".inside.edit_files",
    "read_in": ".inside.patchscope",
    "resample": ".inside.edits",
    "scale": ".inside.edits",
    "set": ".inside.edits:set_to",
    "steering": ".inside.steering",
    "sweep": ".inside.sweep",
    "sweep_edits": ".inside.sweep",
    "train": ".front.training",
    "tune_lens": ".inside.tuned_lens",
    "write_edits": ".inside.edit_files",
    "zero": ".inside.edits",
}


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    nearest = get_close_matches(name, __all__, n=1)
    hint = f"Did you mean {nearest[0]!r}?" if nearest else f"It has {', '.join(__all__)}."
    return f"module {__name__!r} has no attribute {name!r}. {hint}"


def __dir__() -> list[str]:
    return sorted(__all__)
