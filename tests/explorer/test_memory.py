"""Five hundred requests leave nothing behind but the runs that are kept."""

import gc
import sys

import pytest
import torch

import tiny
from explorer.letters import letters
from explorer.serving import ask, done, served
from pellucid.explorer.worker import Job
from pellucid.front import Model
from pellucid.inside.trace import Trace
from pellucid.model.config import Config

REQUESTS, WARM = 500, 160
KEPT = 3
LENGTH = 6
EDIT = {"kind": "scale", "site": "0.ffn.update", "factor": 2.0}


def one_round(url, at):
    """Some requests, each other than those before: a run, one that is edited, answers, a continuation, mistakes."""
    ids = [at % 50, at // 50 % 50, *range(LENGTH - 2)]
    first = done(ask(url, "/api/traces", {"model": "tiny", "ids": ids}))["id"]
    edited = done(ask(url, "/api/traces", {"model": "tiny", "ids": ids, "edits": [{**EDIT, "factor": 1.5 + at}]}))["id"]
    assert ask(url, f"/api/traces/{edited}/next?k={1 + at % 40}").status == 200
    assert ask(url, f"/api/traces/{first}/draw", {"seed": at}).status == 200
    assert done(ask(url, "/api/generate", {"model": "tiny", "ids": ids, "max_new_tokens": 2}))["ids"]
    assert ask(url, f"/api/traces/{at}").status == 404
    assert ask(url, "/api/traces", {"model": "tiny", "ids": [at + 50]}).status == 400
    assert ask(url, f"/api/traces/{first}/next?odd{at}=1").status == 400
    return 8


def living():
    """How many objects of the kinds that requests make are alive."""
    gc.collect()
    kinds = [type(each) for each in gc.get_objects()]
    found = {"runs": Trace, "jobs": Job, "tensors": torch.Tensor}
    return {name: sum(issubclass(each, kind) for each in kinds) for name, kind in found.items()}


@pytest.mark.slow
def test_memory_stays_flat():
    model = Model(tiny.build(Config(50, 16, 2, 8, 2)), letters(), "tiny")
    size, others = model.trace([1] * LENGTH).nbytes, living()["runs"]  # other tests of this process hold some
    with served(model, held=KEPT * size + size // 2) as url:
        made = at = 0
        while made < WARM:
            made, at = made + one_round(url, at), at + 1
        before, blocks = living(), sys.getallocatedblocks()
        while made < WARM + REQUESTS:
            made, at = made + one_round(url, at), at + 1
        assert living() == before
        assert before["runs"] - others == len(url.held.traces) == KEPT
        assert sys.getallocatedblocks() - blocks < REQUESTS  # of memory: less than one for each request
        assert url.held.worker.length == 0
