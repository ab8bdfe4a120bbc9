"""Decoding on ids: against Hugging Face's generate, one prompt at a time, and without a cache."""

from dataclasses import replace

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from pellucid.generation import Decoding, Sampling, Watch
from pellucid.model.config import Bidirectional, Config, Dropout, Init, RMSNorm, SwiGLU, Window
from pellucid.model.rotary import DynamicNTK, LongRope, Rotary
from pellucid.model.transformer import Transformer
from tiny import arguments, build, configs, random_ids, tiny_gpt2

PROMPTS = [[5, 6, 7, 8], [9, 10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [11], [20, 21, 22, 23]]


def rotary(**changes) -> Config:
    settings = {"vocab_size": 50, "context_length": 64, "n_layers": 2, "d_model": 32, "n_heads": 4, "init": Init(0.5)}
    return Config(**({"positions": Rotary(100.0), "n_kv_heads": 2} | settings | changes))


def decode(model: Transformer, prompts, sampling=None, **options):
    """Ids, log-probabilities and reason of every row."""
    found = [([], [], []) for _ in prompts]
    for step in Decoding(model, prompts, sampling or Sampling(), **options):
        for token in step.tokens:
            for kept, value in zip(found[token.row], (token.id, token.logprob, token.finish_reason), strict=True):
                kept.append(value)
    return found


def assert_same(one, other):
    assert [row[0] for row in one] == [row[0] for row in other]
    assert [row[2] for row in one] == [row[2] for row in other]
    for (_, ours, _), (_, theirs, _) in zip(one, other, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-10)


def hf_gpt2() -> tuple[GPT2LMHeadModel, Transformer]:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=4, initializer_range=0.5)
    theirs = GPT2LMHeadModel(config).double().eval()
    ours = build(Config(50, 32, 2, 32, 4))
    weights, state = theirs.transformer.state_dict(), {}
    table = {
        "ln_1": ("attention.norm", False),
        "attn.c_attn": ("attention.qkv", True),
        "attn.c_proj": ("attention.out", True),
        "ln_2": ("ffn.norm", False),
        "mlp.c_fc": ("ffn.up", True),
        "mlp.c_proj": ("ffn.down", True),
    }
    for layer in range(2):
        for name, (here, transposed) in table.items():
            weight = weights[f"h.{layer}.{name}.weight"]
            state[f"blocks.{layer}.{here}.weight"] = weight.T if transposed else weight
            state[f"blocks.{layer}.{here}.bias"] = weights[f"h.{layer}.{name}.bias"]
    state |= {"embed.token.weight": weights["wte.weight"], "embed.position.weight": weights["wpe.weight"]}
    state |= {"final_norm.weight": weights["ln_f.weight"], "final_norm.bias": weights["ln_f.bias"]}
    ours.load_state_dict(state)
    return theirs, ours


def hf_llama() -> tuple[LlamaForCausalLM, Transformer]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        max_position_embeddings=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,
    )
    theirs = LlamaForCausalLM(config).double().eval()
    shape = {"n_kv_heads": 2, "d_ff": 48, "positions": Rotary(10000.0), "norm": RMSNorm(1e-6), "activation": SwiGLU()}
    biases = {"qkv_bias": False, "out_bias": False, "ffn_bias": False, "tied": False}
    ours = build(Config(50, 64, 2, 32, 4, **shape, **biases))
    weights, state = theirs.state_dict(), {}
    for layer in range(2):
        at, to = f"model.layers.{layer}", f"blocks.{layer}"
        state[f"{to}.attention.qkv.weight"] = torch.cat([weights[f"{at}.self_attn.{x}_proj.weight"] for x in "qkv"])
        state[f"{to}.attention.out.weight"] = weights[f"{at}.self_attn.o_proj.weight"]
        state[f"{to}.attention.norm.weight"] = weights[f"{at}.input_layernorm.weight"]
        state[f"{to}.ffn.norm.weight"] = weights[f"{at}.post_attention_layernorm.weight"]
        for part in ("gate", "up", "down"):
            state[f"{to}.ffn.{part}.weight"] = weights[f"{at}.mlp.{part}_proj.weight"]
    state |= {"embed.token.weight": weights["model.embed_tokens.weight"], "unembed.weight": weights["lm_head.weight"]}
    ours.load_state_dict(state | {"final_norm.weight": weights["model.norm.weight"]})
    return theirs, ours


@pytest.mark.slow
@pytest.mark.parametrize("pair", [hf_gpt2, hf_llama])
@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.8}, {"min_new_tokens": 15, "stop_ids": (49, 3, 7)}])
def test_greedy_is_hugging_faces(pair, settings):
    theirs, ours = pair()
    for prompt in PROMPTS:
        penalty, least = settings.get("repetition_penalty", 1.0), settings.get("min_new_tokens", 0)
        out = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=20,
            min_new_tokens=least or None,
            repetition_penalty=penalty,
            eos_token_id=list(settings.get("stop_ids", ())) or None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        new = out.sequences[0, len(prompt) :].tolist()
        logprobs = [z.double().log_softmax(-1)[0, id].item() for z, id in zip(out.logits, new, strict=True)]
        found = decode(ours, [prompt], Sampling(max_new_tokens=20, **settings))
        assert found[0][0] == new
        # Their unembedding's output is kept in float32.
        assert found[0][1] == pytest.approx(logprobs, abs=1e-5)


SAMPLINGS = [
    Sampling(max_new_tokens=12),
    Sampling(max_new_tokens=12, temperature=1.5, seed=7),
    Sampling(max_new_tokens=30, temperature=1.0, top_k=20, top_p=0.9, min_p=0.01, seed=3, stop_ids=(3, 4, 5, 6, 7, 8)),
    Sampling(max_new_tokens=12, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5, stop_ids=(1, 2)),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("make", [tiny_gpt2, lambda: build(rotary())])
def test_pos_1_a_batch_is_its_prompts_one_at_a_time(make, sampling):
    model = make()
    alone = []
    for row, prompt in enumerate(PROMPTS):
        seed = None if sampling.seed is None else sampling.seed + row
        alone += decode(model, [prompt], Sampling(**(vars(sampling) | {"seed": seed})))
    assert_same(decode(model, PROMPTS, sampling), alone)
    assert_same(decode(model, PROMPTS, sampling, watch=Watch({}, True)), alone)


@settings(max_examples=15)
@given(
    configs("decoder"),
    st.lists(st.lists(st.integers(0, 49), min_size=1, max_size=31), min_size=1, max_size=4),
    st.data(),
)
def test_a_batch_is_its_prompts_one_at_a_time(config, prompts, data):
    model = build(config)
    seeds = tuple(data.draw(st.integers(0, 2**63 - 1)) for _ in prompts)
    options = {"temperature": data.draw(st.sampled_from([0.0, 1.0])), "max_new_tokens": 6}
    options["stop_ids"] = tuple(data.draw(st.sets(st.integers(0, 49), max_size=12)))
    alone = [
        decode(model, [prompt], Sampling(**options, seed=seed))[0] for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    assert_same(decode(model, prompts, Sampling(**options, seed=seeds)), alone)


@pytest.mark.parametrize("make", [tiny_gpt2, lambda: build(rotary())])
def test_pos_4_cached_greedy_tokens_are_those_of_full_passes(make):
    model, ids, logprobs = make(), [5, 6, 7, 8], []
    for _ in range(12):
        logits = model(torch.tensor([ids]))[0, -1]
        ids.append(int(logits.argmax()))
        logprobs.append(logits.log_softmax(-1)[ids[-1]].item())
    found = decode(model, [ids[:4]], Sampling(max_new_tokens=12))[0]
    assert found[0] == ids[4:]
    assert found[1] == pytest.approx(logprobs, abs=1e-10)


@pytest.mark.parametrize("make", [tiny_gpt2, lambda: build(rotary(context_length=16))])
def test_pos_3_generation_stops_at_the_end_of_the_context(make):
    model = make()
    ids, _, reasons = decode(model, [list(range(10))], Sampling(max_new_tokens=20))[0]
    assert len(ids) == 6
    assert reasons == [None] * 5 + ["length"]
    assert len(decode(model, [list(range(15))], Sampling(max_new_tokens=20))[0][0]) == 1
    assert decode(model, [list(range(16))], Sampling(max_new_tokens=20))[0][0] == []


@pytest.mark.parametrize("make", [tiny_gpt2, lambda: build(rotary(context_length=16))])
def test_pos_3_a_prompt_longer_than_the_context_is_refused(make):
    with pytest.raises(ValueError, match="prompt 1 has 17 tokens, the context only 16"):
        Decoding(make(), [[1], list(range(17))], Sampling())


@pytest.mark.parametrize("prompt", [[], [50], [-1], [1.0], [True], ["a"]])
def test_prompts_that_are_no_ids_are_refused(prompt, monkeypatch):
    # The checker of types, on in tests only, would answer first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="prompt 1"):
        Decoding(tiny_gpt2(), [[1], prompt], Sampling())


def test_srv_3_zero_new_tokens_run_nothing():
    assert list(Decoding(tiny_gpt2(), [[1, 2], [3]], Sampling(max_new_tokens=0))) == []


def test_a_stop_id_is_given_and_ends_its_row(saying):
    looks = saying([4, 5, 6, 7], start=2)
    found = decode(tiny_gpt2(), [[1, 2]], Sampling(stop_ids=(6,)), watch=Watch(looks))[0]
    assert (found[0], found[2]) == ([4, 5, 6], [None, None, "stop"])


def test_a_stop_id_at_the_last_place_is_a_stop(saying):
    found = decode(
        tiny_gpt2(), [[1, 2]], Sampling(max_new_tokens=2, stop_ids=(5,)), watch=Watch(saying([4, 5], start=2))
    )[0]
    assert found[2] == [None, "stop"]


def test_stop_ids_are_held_back_up_to_the_minimum(saying):
    looks = saying([6], start=2)
    sampling = Sampling(min_new_tokens=3, max_new_tokens=9, stop_ids=(6,))
    assert decode(tiny_gpt2(), [[1, 2]], sampling, watch=Watch(looks))[0][0] == [0, 0, 0, 6]


def test_the_caller_ends_a_row():
    decoding, found = Decoding(tiny_gpt2(), [[1], [2]], Sampling(max_new_tokens=5)), []
    for step in decoding:
        found.append(step.rows)
        if len(found) == 2:
            decoding.stop(0)
    assert found == [(0, 1), (0, 1), (1,), (1,), (1,)]
    assert [step.rows for step in decoding] == [(0, 1)] * 5


def test_rows_that_ended_leave_the_batch(saying):
    shapes, padded = [], []

    def see(value, place, _keys):
        shapes.append(tuple(value.shape[:2]))
        padded.append(place.real is not None)
        return value

    looks = {"0.stream": see}
    prompts = [list(range(14)), [1, 2], [3, 4]]
    steps = list(Decoding(tiny_gpt2(), prompts, Sampling(max_new_tokens=4), watch=Watch(looks)))
    assert [step.rows for step in steps] == [(0, 1, 2), (0, 1, 2), (1, 2), (1, 2)]
    assert shapes == [(3, 14), (3, 1), (2, 1), (2, 1)]
    assert padded == [True, True, False, False]  # the rows that are left are equally long


def recording():
    """Looks that keep the last layer's states, with the positions that are real."""
    kept = []

    def see(value, place, _keys):
        kept.append((value, place.positions.expand(value.shape[:2]), place.real))
        return value

    return {"2.stream": see}, kept


@pytest.mark.parametrize("max_new", [0, 1, 4, 40])
def test_the_last_token_is_read_when_asked(max_new):
    model = tiny_gpt2()
    looks, kept = recording()
    sampling = Sampling(max_new_tokens=max_new)
    ids = [5, 6, 7] + decode(model, [[5, 6, 7]], sampling, watch=Watch(looks, True))[0][0]
    assert len(ids) == min(3 + max_new, 16)
    whole, expected = recording()
    model(torch.tensor([ids]), looks=whole)
    torch.testing.assert_close(torch.cat([value for value, _, _ in kept], 1), expected[0][0], rtol=0, atol=1e-12)


def test_steps_name_the_rows_that_looks_see():
    model = tiny_gpt2()
    looks, kept = recording()
    sampling = Sampling(max_new_tokens=30, temperature=1.0, seed=0, stop_ids=tuple(range(12)))
    sequences = [list(prompt) for prompt in PROMPTS]
    states = [{} for _ in PROMPTS]
    for step in Decoding(model, PROMPTS, sampling, watch=Watch(looks, True)):
        value, positions, real = kept.pop()
        for index, row in enumerate(step.rows):
            for column in range(value.shape[1]):
                if real is None or real[index, column]:
                    states[row][int(positions[index, column])] = value[index, column]
        for token in step.tokens:
            sequences[token.row].append(token.id)
    assert len({len(sequence) for sequence in sequences}) > 1
    for sequence, state in zip(sequences, states, strict=True):
        whole, expected = recording()
        model(torch.tensor([sequence]), looks=whole)
        assert sorted(state) == list(range(len(sequence)))
        ours = torch.stack([state[position] for position in range(len(sequence))])
        torch.testing.assert_close(ours, expected[0][0][0], rtol=0, atol=1e-12)


def test_the_prompts_last_position_alone_is_unembedded():
    shapes = []

    def see(value, place, _keys):
        shapes.append((tuple(value.shape), tuple(place.positions.shape)))
        return value

    decode(tiny_gpt2(), [[1, 2, 3], [4, 5, 6]], Sampling(max_new_tokens=2), watch=Watch({"logits": see}))
    assert shapes == [((2, 1, 50), (1, 1))] * 2


def test_dropout_is_off_and_the_mode_is_kept():
    model = tiny_gpt2(dropout=Dropout(0.5, 0.5, 0.5))
    expected = decode(model, PROMPTS)
    model.train()
    assert_same(decode(model, PROMPTS), expected)
    assert model.training


def test_gradients_are_off_inside_and_untouched_outside():
    model = tiny_gpt2().requires_grad_(True)
    seen = []

    def see(value, _place, _keys):
        seen.append(value)
        return value

    for _ in Decoding(model, [[1]], Sampling(max_new_tokens=2), watch=Watch({"2.stream": see})):
        assert torch.is_grad_enabled()
    assert len(seen) == 2
    assert not any(value.requires_grad or value.is_inference() for value in seen)


def test_iterating_again_draws_the_same_tokens():
    decoding = Decoding(tiny_gpt2(), PROMPTS, Sampling(max_new_tokens=5, temperature=1.0))
    assert list(decoding) == list(decoding)


def test_equal_prompts_of_a_batch_draw_apart():
    found = decode(tiny_gpt2(), [[1, 2]] * 3, Sampling(max_new_tokens=10, temperature=2.0, seed=0))
    assert len({tuple(ids) for ids, _, _ in found}) == 3


def test_without_a_seed_torchs_generator_decides():
    model, sampling = tiny_gpt2(), Sampling(max_new_tokens=10, temperature=2.0)
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(decode(model, [[1, 2]], sampling)[0][0])
    assert found[0] == found[1] != found[2]


def test_greedy_choice_leaves_torchs_generator_alone():
    model = tiny_gpt2()
    before = torch.get_rng_state()
    decode(model, [[1, 2]], Sampling(max_new_tokens=3))
    assert torch.equal(before, torch.get_rng_state())


def test_the_number_of_seeds_is_that_of_prompts():
    with pytest.raises(ValueError, match=r"one per prompt \(2\), got 3"):
        Decoding(tiny_gpt2(), [[1], [2]], Sampling(seed=(1, 2, 3)))


@pytest.mark.parametrize(
    "scaling", [DynamicNTK(2.0, 12), LongRope((1.0,) * 4, (4.0,) * 4, original_length=12, factor=4.0)]
)
def test_frequencies_are_those_of_the_declared_length(scaling):
    model = build(rotary(positions=Rotary(100.0, scaling=scaling)))
    prompt, sampling = [1, 2, 3, 4], Sampling(max_new_tokens=14)
    ids = decode(model, [prompt], sampling)[0][0]
    sequence = torch.tensor([prompt + ids])
    here = model.begin(sequence[:, :-1], length=18)
    logits = model.logits(model.run(model.embed(sequence[:, :-1], here), here), here)
    assert logits[0, 3:].argmax(-1).tolist() == ids
    with pytest.raises(ValueError, match="apart"):
        Decoding(model, [[1], [1] * 20], Sampling(max_new_tokens=4))


@pytest.mark.slow
@settings(max_examples=25)
@given(configs("causal"), st.integers(1, 12))
def test_every_form_decodes_the_tokens_of_full_passes(config, length):
    """Windows roll, encoders are attended to, rows leave: each token is the best one of a pass over all before it."""
    config = replace(config, n_token_types=0)
    model, ids = build(config), random_ids(3, length)
    extra = arguments(config, 3, 5)
    memory = None if config.encoder is None else model.encode(extra["source"])
    found = decode(model, ids.tolist(), Sampling(max_new_tokens=8, stop_ids=(1, 2, 3)), memory=memory)
    for row, (made, logprobs, _) in enumerate(found):
        text, source = ids[row : row + 1], {name: value[row : row + 1] for name, value in extra.items()}
        for token, logprob in zip(made, logprobs, strict=True):
            logits = model(text, **source)[0, -1]
            assert int(logits.argmax()) == token
            assert logprob == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-9)
            text = torch.cat((text, torch.tensor([[token]])), dim=1)


def test_mistral_a_long_prompt_is_read_window_by_window():
    config = Config(50, 64, 2, 24, 4, masks=(Window(5), Window(7)), positions=Rotary(), init=Init(0.5))
    widest = []
    watch = Watch({"0.stream": lambda value, _place, _keys: widest.append(value.shape[1]) or value})
    model, prompt = build(config), random_ids(1, 40)[0].tolist()
    found = decode(model, [prompt], Sampling(max_new_tokens=3), watch=watch)[0][0]
    assert widest == [7, 7, 7, 7, 7, 5, 1, 1]
    assert found[0] == int(model(torch.tensor([prompt]))[0, -1].argmax())


def test_a_model_that_sees_both_ways_cannot_be_continued():
    model = build(Config(50, 16, 1, 12, 2, masks=(Bidirectional(),)))
    with pytest.raises(ValueError, match="cannot be continued"):
        decode(model, [[1, 2]])
