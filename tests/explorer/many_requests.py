"""Asks a server much, and prints what of it stays in memory: a program of its own, run by test_memory.py.

In the process of the tests, what watches them keeps things too: coverage the name of every function that the checks of
shapes make, and they make some at every call.
"""

import gc
import json
import sys

import torch

import tiny
from explorer.letters import letters
from explorer.serving import ask, done, served
from pellucid.explorer.worker import Job
from pellucid.front import Model
from pellucid.inside.trace import Trace
from pellucid.model.config import Config

REQUESTS, WARM, STRETCHES = 500, 160, 4
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


def requests(url, at, count):
    """Ask `count` times or a few more, from round `at` on; the round that comes next."""
    made = 0
    while made < count:
        made, at = made + one_round(url, at), at + 1
    return at


def living():
    """How many objects of the kinds that requests make are alive."""
    gc.collect()
    kinds = [type(each) for each in gc.get_objects()]
    found = {"runs": Trace, "jobs": Job, "tensors": torch.Tensor}
    return {name: sum(issubclass(each, kind) for each in kinds) for name, kind in found.items()}


def measured():
    """What is alive before and after each stretch of requests, and by how many blocks of memory each one grew."""
    model = Model(tiny.build(Config(50, 16, 2, 8, 2)), letters(), "tiny")
    size = model.trace([1] * LENGTH).nbytes
    with served(model, held=KEPT * size + size // 2) as url:
        at = requests(url, 0, WARM)
        alive, grown = [living()], []
        for _ in range(STRETCHES):
            blocks = sys.getallocatedblocks()
            at = requests(url, at, REQUESTS)
            alive.append(living())
            grown.append(sys.getallocatedblocks() - blocks)
        return {"alive": alive, "grown": grown, "kept": len(url.held.traces), "waiting": url.held.worker.length}


if __name__ == "__main__":
    print(json.dumps(measured()))
