"""Random edits of any kind, for property tests."""

import torch
from hypothesis import strategies as st

from pellucid.inside import edits as edit
from pellucid.inside.edits import Edit
from pellucid.inside.reading import all_sites


def made(kind, site, other, where) -> Edit:
    match kind:
        case "scale":
            return edit.scale(site, 0.7, **where)
        case "noise":
            return edit.noise(site, 0.5, seed=3, **where)
        case "add":
            return edit.add(site, 0.3, **where)
        case "patch":
            return edit.patch(site, other, **where)
        case "mean":
            return edit.mean(site, other, **where)
        case "map":
            return edit.map_with(site, torch.tanh, **where)
        case "knockout":
            return edit.knockout(site, key=[0, 2], **where)
    return edit.zero(site, **where)


def some_edits(draw, model, other) -> list[Edit]:
    """One to three edits of any kind, at any site that has positions, that do not collide."""
    known = [site for site in all_sites(model) if "T" in site.axes and site.name.count("logits") == 0]
    found = []
    for site in draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique_by=lambda site: site.name)):
        where = {"position": draw(st.sampled_from([None, 1, 2, [1, 3], [4]]))}
        if "H" in site.axes:
            where["head"] = draw(st.sampled_from([None, 0]))
        elif "G" in site.axes:
            where["kv_head"] = draw(st.sampled_from([None, 0]))
        elif "F" in site.axes:
            where["neuron"] = draw(st.sampled_from([None, 3, [0, 5]]))
        kind = draw(st.sampled_from(["zero", "scale", "noise", "add", "patch", "mean", "map"]))
        if site.name.endswith("scores"):
            kind = draw(st.sampled_from(["knockout", "scale"]))
        found.append(made(kind, site.name, other, where))
    return found
