"""The same numbers as TransformerLens: every value of a pass, attribution and patching, on the same random models.

    python bench/agreement.py [--out bench/agreement.md]

A GPT-2 and a Llama with grouped queries, small and random, in fp32. Differences are the largest, relative to the
largest number of the kind; the bound is 1e-4.
"""

import argparse
import datetime
import importlib.metadata
import tempfile
from pathlib import Path
from typing import Any

import torch
from run import installed, table
from tokenizers import Tokenizer, models
from transformer_lens.model_bridge import TransformerBridge
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pellucid.inside.attribution import attribution
from pellucid.inside.metrics import logit
from pellucid.inside.renamed import renamed
from pellucid.inside.sweep import sweep
from pellucid.inside.sweep_work import SweepOptions
from pellucid.inside.trace import Trace, trace
from pellucid.weights.loading import load_checkpoint

BOUND = 1e-4
V, L = 50, 3
TOKEN, MINUS = 7, 11
MODELS = {
    "GPT-2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=V, n_embd=32, n_layer=L, n_head=4, n_positions=16, bos_token_id=0, eos_token_id=0)
    ),
    "Llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=V, hidden_size=32, intermediate_size=48, num_hidden_layers=L, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=16,
        )
    ),
}  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=Path(__file__).with_name("agreement.md"))
    given = options.parse_args()
    torch.set_num_threads(1)
    rows = [(name, *row) for name, make in MODELS.items() for row in compare(make)]
    text = f"# Agreement with TransformerLens\n\n{versions()}\nMade by `python bench/agreement.py`.\n\n"
    text += table(("model", "what", "numbers", "largest difference"), rows)
    given.out.write_text(text)
    print(text)
    assert all(float(row[-1]) <= BOUND for row in rows), f"a difference above {BOUND:g}"


def versions() -> str:
    """When, and of which releases."""
    releases = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in installed())
    return f"{datetime.date.today()}, {releases}, fp32, 1 thread."


def compare(make: Any) -> list[tuple[str, ...]]:
    """One line for each kind of number."""
    ours, theirs = opened(make)
    one, other = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]]), torch.tensor([[1, 2, 3, 9, 5, 6, 10, 8]])
    base, source = trace(ours, one), trace(ours, other)
    _, cache = theirs.run_with_cache(one)
    _, cached = theirs.run_with_cache(other)
    values = {name: value for name, value in renamed(base).items() if name in cache}
    pairs = [(value, cache[name]) for name, value in values.items()]
    found = [("values of a pass", pairs), ("direct logit attribution by head", attributions(base, theirs, cache))]
    found += [("patching of the stream, layer x position", patched(base, source, theirs, cached, one))]
    found += [("attribution patching of the stream", estimated(base, source, theirs, one))]
    return [(what, str(sum(ours.numel() for ours, _ in pairs)), f"{difference(pairs):.1e}") for what, pairs in found]


def opened(make: Any) -> tuple[Any, Any]:
    """One random model in both libraries."""
    torch.manual_seed(0)
    model = make()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    words = Tokenizer(models.WordLevel({str(id): id for id in range(V)}, unk_token="0"))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        ours = load_checkpoint(folder).transformer
        ours.load_state_dict({name: weight.clone() for name, weight in ours.state_dict().items()}, assign=True)
        PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0").save_pretrained(folder)
        model = type(model).from_pretrained(folder, attn_implementation="eager").eval()
        theirs = TransformerBridge.boot_transformers(folder, hf_model=model, device="cpu").eval()
    return ours, theirs


def attributions(base: Trace, theirs: Any, cache: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What each head wrote for a logit: its output through W_O, the final norm's scale and the unembedding."""
    ours = dict(base.ledger(TOKEN, minus=MINUS, by="head").entries)
    norm, pairs = base.transformer.final_norm, []
    direction = (base.transformer.W_U[TOKEN] - base.transformer.W_U[MINUS]) * norm.weight
    for layer in range(L):
        heads = cache[f"blocks.{layer}.attn.hook_z"][0, -1]
        writes = torch.einsum("hk,hkd->hd", heads, base.transformer.blocks[layer].attention.W_O)
        writes = writes if norm.bias is None else writes - writes.mean(-1, keepdim=True)
        theirs_here = writes @ direction / cache["ln_final.hook_scale"][0, -1]
        mine = torch.tensor([ours[f"{layer}.attention head {head}"] for head in range(len(heads))])
        pairs.append((mine.float(), theirs_here.detach()))
    return pairs


def patched(base: Trace, source: Trace, theirs: Any, cached: Any, ids: torch.Tensor) -> list[Any]:
    """The logit difference after each stream state of the source is put into the base's run."""
    metric = logit(TOKEN, MINUS)
    mine = sweep(base, source, "*.stream", metric=metric, options=SweepOptions(normalised=False)).values[:L]
    found = torch.zeros(mine.shape, dtype=torch.float64)
    for layer in range(L):
        name = f"blocks.{layer}.hook_resid_pre"
        for at in range(ids.shape[1]):

            def put(value: torch.Tensor, hook: Any, name: str = name, at: int = at) -> torch.Tensor:
                value = value.clone()
                value[:, at] = cached[name][:, at]
                return value

            with torch.no_grad():
                logits = theirs.run_with_hooks(ids, fwd_hooks=[(name, put)])[0, -1]
            found[layer, at] = float(logits[TOKEN] - logits[MINUS])
    return [(mine, found)]


def estimated(base: Trace, source: Trace, theirs: Any, ids: torch.Tensor) -> list[Any]:
    """(source - base) . gradient, by their backward pass over their own hooks."""
    mine = attribution(base, source, "*.stream", metric=logit(TOKEN, MINUS), normalised=False).values[:L]
    held: dict[str, torch.Tensor] = {}

    def keep(value: torch.Tensor, hook: Any) -> torch.Tensor:
        value.retain_grad()
        held[hook.name] = value
        return value

    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(L)]
    logits = theirs.run_with_hooks(ids, fwd_hooks=[(name, keep) for name in names])[0, -1]
    (logits[TOKEN] - logits[MINUS]).backward()
    rows = []
    for layer, value in enumerate(held.values()):
        change = source[f"{layer}.stream"] - base[f"{layer}.stream"]
        rows.append((change * value.grad).sum(-1)[0])
    return [(mine, torch.stack(rows).double())]


def difference(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The largest difference of all pairs, relative to the largest finite number of its pair."""
    worst = 0.0
    for ours, theirs in pairs:
        finite = ours.isfinite()
        assert ours.shape == theirs.shape, f"{tuple(ours.shape)} and {tuple(theirs.shape)}"
        scale = ours[finite].abs().max()
        worst = max(worst, float(((ours - theirs)[finite]).abs().max() / scale))
    return worst


if __name__ == "__main__":
    main()
