"""Low-rank adapters against plain matrices, hand-merged models of transformers, and PEFT where it is installed."""

import json

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pellucid.training.adapters import load_adapter, save_adapter
from pellucid.training.lora import Adapted, Adapters, Lora, adapt
from pellucid.weights.adapters import places
from pellucid.weights.errors import CheckpointError
from pellucid.weights.loading import load_checkpoint
from tiny import build, configs, passed, random_ids, tiny_gpt2, traced

EVERY = Lora(r=3, alpha=6.0, targets=("all",))


def randomised(adapters: Adapters, seed=5) -> Adapters:
    """Adapters whose B are no zeros."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for each in adapters.adapted.values():
            for low in each.low_rank():
                low.B.normal_(0.0, 0.3)
    return adapters


def bits(transformer):
    return {name: tensor.clone() for name, tensor in transformer.state_dict().items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# --- In the model ---


@settings(max_examples=15)
@given(configs(), st.sampled_from(["attention", "ffn", "all"]))
def test_a_fresh_adapter_changes_nothing(config, target):
    model, ids = build(config), random_ids(2, 5)
    before = passed(model, ids)
    adapt(model, Lora(r=2, targets=(target,)))
    assert torch.equal(passed(model, ids), before)


@settings(max_examples=15)
@given(configs())
def test_merged_and_unmerged_compute_the_same(config):
    model, ids = build(config), random_ids(2, 5)
    plain = passed(model, ids)
    adapters = randomised(adapt(model, EVERY))
    beside = passed(model, ids)
    assert (beside - plain).abs().max() > 1e-3
    adapters.merge()
    assert not any(isinstance(module, Adapted) for module in model.modules())
    torch.testing.assert_close(passed(model, ids), beside, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_unmerging_and_removing_give_back_every_bit(dtype):
    model = tiny_gpt2(dtype)
    plain = bits(model)
    adapters = randomised(adapt(model, EVERY))
    beside = bits(model)
    for _ in range(3):
        adapters.merge()
        assert model.state_dict().keys() == plain.keys()
        assert not same(bits(model), plain)
        adapters.unmerge()
        assert same(bits(model), beside)
    with adapters.merged():
        assert adapters.is_merged
    assert not adapters.is_merged
    adapters.merge()
    adapters.remove()
    assert same(bits(model), plain)


def test_an_update_is_scale_b_a_on_its_own_rows():
    model = build(llama_config())
    plain = model.blocks[1].attention.qkv.weight.clone()
    adapters = randomised(adapt(model, Lora(r=2, alpha=3.0, targets=("key",))))
    attention = model.blocks[1].attention
    (low,) = adapters.adapted["blocks.1.attention.qkv"].low_rank()
    expected = plain.clone()
    expected[16:24] += 1.5 * low.B.detach() @ low.A.detach()  # 4 query heads of 4 rows, then 2 key heads
    torch.testing.assert_close(attention.qkv.weight.detach(), expected, rtol=1e-13, atol=1e-13)
    assert torch.equal(attention.W_Q.detach(), plain[:16].unflatten(0, (4, 4)).transpose(1, 2))
    assert not torch.equal(attention.W_K.detach(), plain[16:24].unflatten(0, (2, 4)).transpose(1, 2))


def test_what_is_read_inside_an_adapted_model_adds_up():
    """Head writes and neurons are read from `weight`, so that a ledger of an adapted model has no remainder."""
    model = tiny_gpt2()
    randomised(adapt(model, EVERY))
    found = traced(model, random_ids(1, 6))
    assert abs(found.ledger(3, by="head").remainder) < 1e-10


def test_only_the_adapters_are_trained():
    model = tiny_gpt2(torch.float32)
    plain = bits(model)
    adapters = adapt(model, Lora(r=2, targets="all"))
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert len(trained) == 2 * 2 * 4
    assert all(name.endswith((".A", ".B")) for name in trained)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.1)
    for _ in range(2):
        model(random_ids(2, 5)).square().mean().backward()
        optimizer.step()
    adapters.remove()
    assert same(bits(model), plain)


def test_dropout_is_of_what_a_reads_and_while_training_only():
    model, ids = tiny_gpt2(), random_ids(2, 5)
    randomised(adapt(model, Lora(r=2, dropout=0.5)))
    still = model(ids)
    assert torch.equal(model(ids), still)
    model.train()
    assert not torch.equal(model(ids), model(ids))
    assert torch.equal(model.eval()(ids), still)


def llama_config(**changes):
    from pellucid.model.config import Config, Init, RMSNorm, SwiGLU
    from pellucid.model.rotary import Rotary

    shape = {"vocab_size": 50, "context_length": 32, "n_layers": 2, "d_model": 16, "n_heads": 4, "n_kv_heads": 2}
    kinds = {"d_ff": 24, "positions": Rotary(), "norm": RMSNorm(), "activation": SwiGLU(), "init": Init(0.4)}
    flags = dict.fromkeys(("qkv_bias", "out_bias", "ffn_bias"), False)
    return Config(**(shape | kinds | flags | changes))


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (("attention",), ["q_proj", "k_proj", "v_proj", "o_proj"]),
        (("query", "value"), ["q_proj", "v_proj"]),
        (("qkv", "down"), ["q_proj", "k_proj", "v_proj", "down_proj"]),
        (("o_proj", "ffn"), ["o_proj", "gate_proj", "up_proj", "down_proj"]),
    ],
)
def test_targets_by_group_by_matrix_and_by_the_files_own_name(targets, expected):
    adapters = adapt(build(llama_config()), Lora(targets=targets))
    names = [update.place.theirs for update in adapters.updates() if ".0." in update.place.theirs]
    assert sorted(name.rpartition(".")[2] for name in names) == sorted(expected)


def test_wrong_targets_and_numbers_are_refused():
    with pytest.raises(ValueError, match="no matrix 'querry', but query"):
        adapt(build(llama_config()), Lora(targets=("querry",)))
    with pytest.raises(ValueError, match="no matrix 'query'"):  # GPT-2's files hold one matrix of all three
        adapt(tiny_gpt2(), Lora(targets=("query",)))
    with pytest.raises(ValueError, match=r"lora\.r"):
        Lora(r=0)
    with pytest.raises(ValueError, match=r"lora\.dropout must lie in \[0, 1\), got 1.0"):
        Lora(dropout=1.0)
    with pytest.raises(ValueError, match="targets must name matrices"):
        Lora(targets=())
    model = tiny_gpt2()
    adapt(model)
    with pytest.raises(ValueError, match="adapted already"):
        adapt(model)


# --- In files ---

LLAMA = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "initializer_range": 0.4,
}  # fmt: skip
GPT2 = {"vocab_size": 50, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 4, "initializer_range": 0.4}
NEOX = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, "initializer_range": 0.4, "hidden_act": "gelu", "rotary_pct": 1.0,
}  # fmt: skip
FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, LLAMA),
    "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel, GPT2),
    "neox": (transformers.GPTNeoXConfig, transformers.GPTNeoXForCausalLM, NEOX),
}


def published(name, folder):
    """A tiny random model of transformers, saved in a folder."""
    config, model, fields = FAMILIES[name]
    torch.manual_seed(3)
    made = model(config(**fields)).eval()
    made.save_pretrained(folder)
    return made


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("targets", [("attention",), ("all",)])
def test_a_saved_adapter_read_by_name_makes_transformers_model_the_same(family, targets, tmp_path):
    """The oracle adds scale * B A to each matrix of the model that the file names, as PEFT's documentation says."""
    theirs = published(family, tmp_path / "model").double()
    ours = load_checkpoint(tmp_path / "model").transformer.double()
    adapters = randomised(adapt(ours, Lora(r=3, alpha=6.0, targets=targets)))
    path = save_adapter(tmp_path / "adapter", adapters, base="tiny")
    tensors, said = (
        load_file(path / "adapter_model.safetensors"),
        json.loads((path / "adapter_config.json").read_text()),
    )
    assert {said[name] for name in ("peft_type", "bias", "base_model_name_or_path")} == {"LORA", "none", "tiny"}
    turned = said["fan_in_fan_out"]
    assert turned == (family == "gpt2")
    stems = {name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")}
    with torch.no_grad():
        for stem in stems:
            matrix = theirs.get_submodule(stem.removeprefix("base_model.model.")).weight
            change = (
                said["lora_alpha"] / said["r"] * tensors[f"{stem}.lora_B.weight"] @ tensors[f"{stem}.lora_A.weight"]
            )
            matrix += change.T if turned else change
        ids = random_ids(2, 6)
        # transformers keeps its rotary tables in fp32.
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-4, atol=1e-5)
    named = {
        name for name, _ in theirs.named_modules() if name.endswith(tuple(f".{t}" for t in said["target_modules"]))
    }
    assert {f"base_model.model.{name}" for name in named} == stems


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded_is_the_same_adapter(family, tmp_path):
    published(family, tmp_path / "model")
    first, second = (load_checkpoint(tmp_path / "model").transformer for _ in range(2))
    save_adapter(tmp_path / "a", randomised(adapt(first, EVERY)))
    again = load_adapter(second, tmp_path / "a")
    assert same(bits(first), bits(second))
    save_adapter(tmp_path / "b", again)
    files = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT's own
@pytest.mark.parametrize("family", FAMILIES)
def test_peft_opens_ours_and_we_open_pefts(family, tmp_path):
    peft = pytest.importorskip("peft")
    theirs = published(family, tmp_path / "model")
    ours, ids = load_checkpoint(tmp_path / "model").transformer, random_ids(2, 6)
    adapters = randomised(adapt(ours, EVERY))
    path = save_adapter(tmp_path / "ours", adapters)
    opened = peft.PeftModel.from_pretrained(theirs, path).eval()
    with torch.no_grad():
        torch.testing.assert_close(opened(ids).logits, ours(ids), rtol=1e-4, atol=1e-4)
    opened.save_pretrained(tmp_path / "theirs")
    adapters.remove()
    load_adapter(ours, tmp_path / "theirs")
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), opened(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.fixture
def saved(tmp_path):
    """An adapter's folder, its settings and tensors to be changed, and a loader."""
    model = build(llama_config(), dtype=torch.float32)
    path = save_adapter(tmp_path / "a", randomised(adapt(model, Lora(r=2, targets=("query", "down")))))
    values = json.loads((path / "adapter_config.json").read_text())
    tensors = load_file(path / "adapter_model.safetensors")

    def load():
        (path / "adapter_config.json").write_text(json.dumps(values))
        save_file(tensors, path / "adapter_model.safetensors")
        fresh = build(llama_config(), dtype=torch.float32)
        return fresh, load_adapter(fresh, path)

    return values, tensors, load


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3"}, "expected peft_type LORA, got 'IA3'"),
        ({"use_dora": True}, "'use_dora' ask for more than low-rank updates"),
        ({"bias": "all"}, "'bias' ask for more"),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save' ask for more"),
        ({"init_lora_weights": "pissa"}, "'init_lora_weights' ask for more"),
        ({"some_day": {"a": 1}}, "'some_day' ask for more"),
        ({"r": 0}, "r must be a whole number of at least 1, got 0"),
        ({"lora_alpha": None}, "lora_alpha must be a number, got None"),
    ],
)
def test_settings_that_ask_for_more_are_refused(saved, change, said):
    said_there, _, load = saved
    said_there.update(change)
    with pytest.raises(CheckpointError, match=said):
        load()


def test_settings_that_change_nothing_are_taken(saved):
    said_there, _, load = saved
    _, adapters = load()
    before = [(update.place.theirs, update.scale, update.A, update.B) for update in adapters.updates()]
    adapters.remove()
    said_there.update({"use_dora": False, "loftq_config": {}, "some_day": None, "layers_to_transform": [0, 1]})
    _, adapters = load()
    after = [(update.place.theirs, update.scale, update.A, update.B) for update in adapters.updates()]
    assert before
    for old, new in zip(before, after, strict=True):
        assert old[:2] == new[:2]
        assert torch.equal(old[2], new[2])
        assert torch.equal(old[3], new[3])


def test_alpha_by_matrix_and_rank_stabilised_scales(saved):
    said_there, _, load = saved
    said_there.update({"alpha_pattern": {"q_proj": 3}, "use_rslora": True})
    _, adapters = load()
    scales = {update.place.theirs.rpartition(".")[2]: update.scale for update in adapters.updates()}
    assert scales == {"q_proj": pytest.approx(3 / 2**0.5), "down_proj": pytest.approx(16 / 2**0.5)}


def test_matrices_that_do_not_fit_are_refused(saved):
    _, tensors, load = saved
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    right = tensors[name]
    tensors[name] = right[:, :-1].contiguous()
    with pytest.raises(CheckpointError, match=r"takes lora_A of \[r, 16\] and lora_B of \[16, r\], got \[2, 15\]"):
        load()
    tensors[name] = right.int()
    with pytest.raises(CheckpointError, match="expected floating point"):
        load()
    del tensors[name]
    with pytest.raises(CheckpointError, match="needs both lora_A and lora_B"):
        load()
    tensors[name] = right
    tensors["base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"] = right.clone()
    with pytest.raises(CheckpointError, match=r"this model has no place for 'model\.layers\.7\.self_attn\.q_proj'"):
        load()
    tensors.clear()
    with pytest.raises(CheckpointError, match="no low-rank matrices"):
        load()


def test_a_missing_adapter_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        load_adapter(tiny_gpt2(), tmp_path)


def test_names_of_a_model_without_its_head_are_found(saved):
    _, tensors, load = saved
    bare = {name.replace("base_model.model.model.", "base_model.model."): tensor for name, tensor in tensors.items()}
    model, _ = load()
    tensors.clear()
    tensors.update(bare)
    assert same(bits(model), bits(load()[0]))


def test_places_cover_each_row_of_each_matrix_once():
    config = llama_config()
    rows: dict[str, int] = {}
    for place in places(config):
        assert place.first == rows.get(place.ours, 0)
        rows[place.ours] = place.last
    assert rows["blocks.1.attention.qkv"] == 32
    assert len(rows) == 2 * 5
