"""Beam search: against Hugging Face's generate, against every continuation there is, and one prompt at a time."""

from dataclasses import replace
from functools import cache
from itertools import product
from math import log
from tempfile import TemporaryDirectory

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from pellucid.generation import Decoding, Sampling
from pellucid.generation.beam import Beams, Search, beam_search
from pellucid.generation.prompts import pad_right
from pellucid.model.config import Dropout, Parallel, PreNorm, Window
from pellucid.model.flow import Memory
from pellucid.model.rotary import DynamicNTK, Rotary
from pellucid.model.transformer import Transformer
from pellucid.weights.loading import load_checkpoint
from tiny import build, configs, random_ids, tiny_gpt2, with_encoder

V, START = 23, 0
LLAMA = {
    "vocab_size": V,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
MARIAN = {
    "vocab_size": V,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 12,
    "max_position_embeddings": 32,
    "activation_function": "relu",
    "pad_token_id": START,
    "eos_token_id": 1,
    "decoder_start_token_id": START,
}
FAMILIES = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=32, n_embd=24, n_layer=2, n_head=4)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**LLAMA, sliding_window=3)),
    "marian": lambda: MarianMTModel(MarianConfig(**MARIAN)),
}


@cache
def pair(family: str) -> tuple[PreTrainedModel, Transformer]:
    """A tiny random model of theirs, every weight drawn, and the same opened here; both in fp64."""
    torch.manual_seed(3)
    theirs = FAMILIES[family]()
    for name, weight in theirs.state_dict().items():
        if "embed_positions" not in name and weight.is_floating_point():
            weight.normal_(std=0.4)
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = load_checkpoint(folder, dtype=torch.float64).transformer
    # What the released models' settings add of their own: none of it is beam search.
    for name in ("bos_token_id", "eos_token_id", "forced_eos_token_id", "bad_words_ids"):
        setattr(theirs.generation_config, name, None)
    return theirs.double().eval(), ours.eval()


def hugging_faces(theirs: PreTrainedModel, prompt: list[int], beams: Beams, forbidden: list[int]):
    """Ids (up to the stop id) and scores of what their generate returns for one prompt."""
    out = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        num_beams=beams.width,
        length_penalty=beams.length_penalty,
        early_stopping=beams.early_stopping,
        num_return_sequences=beams.returned,
        max_new_tokens=beams.max_new_tokens,
        min_new_tokens=beams.min_new_tokens or None,
        eos_token_id=list(beams.stop_ids) or None,
        suppress_tokens=forbidden or None,
        pad_token_id=START,
        output_scores=True,
        return_dict_in_generate=True,
    )
    start = 1 if theirs.config.is_encoder_decoder else len(prompt)
    # What stands behind a stop id is padding; rows that end without one are all as long as the longest.
    rows = [up_to_stop(row, beams.stop_ids) for row in out.sequences[:, start:].tolist()]
    return list(zip(rows, out.sequences_scores.tolist(), strict=True))


def up_to_stop(ids: list[int], stops) -> tuple[int, ...]:
    ends = [at + 1 for at, id in enumerate(ids) if id in stops]
    return tuple(ids[: ends[0]] if ends else ids)


def memory_of(model: Transformer, sources: list[list[int]]) -> Memory:
    with torch.no_grad():
        return model.encode(*pad_right(sources, model.W_U.device))


some_beams = st.builds(
    lambda width, returned, least, room, **rest: Beams(
        width=width, returned=min(returned, width), min_new_tokens=min(least, room), max_new_tokens=room, **rest
    ),
    width=st.integers(2, 5),
    returned=st.integers(1, 5),
    least=st.sampled_from([0, 0, 3]),
    room=st.integers(1, 10),
    length_penalty=st.sampled_from([1.0, 0.0, 0.6, 2.0, -1.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
    stop_ids=st.sampled_from([(), (7,), (3, 7), (19,)]),
)
some_prompts = st.lists(st.lists(st.integers(1, V - 1), min_size=1, max_size=8), min_size=1, max_size=3)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12)
@given(beams=some_beams, prompts=some_prompts, forbidden=st.sampled_from([[], [5], [2, 11]]))
def test_sequences_and_scores_are_hugging_faces(family, beams, prompts, forbidden):
    """Theirs one prompt at a time, ours as a batch."""
    theirs, ours = pair(family)
    if ours.encoder is None:
        found = beam_search(ours, prompts, beams, forbidden)
    else:
        found = beam_search(ours, [[START]] * len(prompts), beams, forbidden, memory_of(ours, prompts))
    for prompt, hypotheses in zip(prompts, found, strict=True):
        expected = hugging_faces(theirs, prompt, beams, forbidden)
        assert [hypothesis.ids for hypothesis in hypotheses] == [ids for ids, _ in expected]
        # Their log-probabilities and sums are fp32.
        scores = [score for _, score in expected]
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(scores, rel=1e-6, abs=2e-5)


def reread(model: Transformer, prompt: list[int], ids: tuple[int, ...], memory: Memory | None = None) -> float:
    """The sum of the new ids' log-probabilities, from one pass without a cache."""
    text = torch.tensor([[*prompt, *ids]])
    with torch.no_grad():
        here = model.begin(text, memory=memory)
        logprobs = model.logits(model.run(model.embed(text, here), here), here).log_softmax(-1)[0]
    return sum(logprobs[len(prompt) - 1 + at, id].item() for at, id in enumerate(ids))


def assert_hypotheses(model, prompt, hypotheses, beams, memory=None):
    """What every result must be, whichever sequences were found."""
    scores = [hypothesis.score for hypothesis in hypotheses]
    assert 1 <= len(hypotheses) <= beams.returned
    assert scores == sorted(scores, reverse=True)
    assert len({hypothesis.ids for hypothesis in hypotheses}) == len(hypotheses)
    room = min(beams.max_new_tokens, model.config.context_length - len(prompt))
    for found in hypotheses:
        n = len(found.ids)
        assert 1 <= n <= room
        assert found.logprob == pytest.approx(reread(model, prompt, found.ids, memory), abs=1e-9)
        assert found.score == pytest.approx(found.logprob / n**beams.length_penalty, abs=1e-9)
        assert not set(beams.stop_ids) & set(found.ids[:-1])
        stopped = found.ids[-1] in beams.stop_ids
        assert found.finish_reason == ("stop" if stopped else "length")
        assert n >= beams.min_new_tokens if stopped else n == room


def assert_alike(some, others):
    assert [[h.ids for h in row] for row in some] == [[h.ids for h in row] for row in others]
    assert [[h.finish_reason for h in row] for row in some] == [[h.finish_reason for h in row] for row in others]
    for one, other in zip(some, others, strict=True):
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-9)


@settings(max_examples=12)
@given(config=configs("decoder"), beams=some_beams, prompts=some_prompts)
def test_pos_1_a_batch_is_its_prompts_one_at_a_time(config, beams, prompts):
    model = build(config)
    found = beam_search(model, prompts, beams)
    for prompt, hypotheses in zip(prompts, found, strict=True):
        assert_hypotheses(model, prompt, hypotheses, beams)
    assert_alike(found, [beam_search(model, [prompt], beams)[0] for prompt in prompts])


@settings(max_examples=10)
@given(config=configs("decoder"), beams=some_beams, prompts=some_prompts, shared=st.booleans(), data=st.data())
def test_a_batch_of_an_encoder_decoder(config, beams, prompts, shared, data):
    """Sources and beginnings of any lengths."""
    apart = replace(config, block=PreNorm()) if isinstance(config.block, Parallel) else config
    model = build(with_encoder(apart, 1, shared))
    starts = data.draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=3, max_size=3))
    starts = starts[: len(prompts)]
    found = beam_search(model, starts, beams, memory=memory_of(model, prompts))
    for start, source, hypotheses in zip(starts, prompts, found, strict=True):
        memory = memory_of(model, [source])
        assert_hypotheses(model, start, hypotheses, beams, memory)
        assert_alike([hypotheses], beam_search(model, [start], beams, memory=memory))


@settings(max_examples=12)
@given(
    config=configs("decoder"),
    room=st.integers(1, 3),
    penalty=st.sampled_from([0.0, 1.0, -2.0, 3.0]),
    early=st.sampled_from([False, "never"]),
    stops=st.sampled_from([(), (1,), (0, 2)]),
)
def test_as_wide_as_all_continuations_it_is_exhaustive(config, room, penalty, early, stops):
    """Every continuation there is, in the order of its score by brute force."""
    model, prompts = build(replace(config, vocab_size=3)), [[0, 1], [2], [1, 1, 2, 0]]
    everything = Beams(3**room, penalty, early, returned=3**room, max_new_tokens=room, stop_ids=stops)
    for prompt, found in zip(prompts, beam_search(model, prompts, everything), strict=True):
        all_ids = {up_to_stop(list(ids), stops) for ids in product(range(3), repeat=room)}
        scores = {ids: reread(model, prompt, ids) / len(ids) ** penalty for ids in all_ids}
        assert {h.ids for h in found} == all_ids
        assert [h.score for h in found] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-9)
        assert [h.score for h in found] == pytest.approx([scores[h.ids] for h in found], abs=1e-9)


@settings(max_examples=12)
@given(
    config=configs("decoder"),
    beams=some_beams.map(lambda beams: replace(beams, width=1, returned=1)),
    prompts=some_prompts,
)
def test_width_1_is_greedy(config, beams, prompts):
    model = build(config)
    greedy = Sampling(max_new_tokens=beams.max_new_tokens, min_new_tokens=beams.min_new_tokens, stop_ids=beams.stop_ids)
    tokens = [token for step in Decoding(model, prompts, greedy, [5]) for token in step.tokens]
    for row, [found] in enumerate(beam_search(model, prompts, beams, [5])):
        expected = [token for token in tokens if token.row == row]
        assert found.ids == tuple(token.id for token in expected)
        assert found.finish_reason == expected[-1].finish_reason
        assert found.logprob == pytest.approx(sum(token.logprob for token in expected), abs=1e-9)


def logs(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def test_two_beams_find_what_greedy_misses():
    """First 0 (0.6) or 1 (0.4); after 0 every next token is unlikely, after 1 token 2 is nearly sure."""
    first, after_0, after_1 = [0.6, 0.4, 0.0], [0.4, 0.3, 0.3], [0.05, 0.05, 0.9]
    found = {}
    for width in (1, 2):
        search = Search(2, Beams(width, length_penalty=0.0))
        search.grow(logs(first))
        assert [branch.ids for branch in search.branches] == [(0,), (1,)][:width]
        search.grow(logs(after_0, after_1)[:width])
        assert search.branches == []
        found[width] = search.ended
    assert [(h.ids, h.logprob) for h in found[1]] == [((0, 0), pytest.approx(log(0.6 * 0.4)))]
    assert [(h.ids, h.logprob) for h in found[2]] == [
        ((1, 2), pytest.approx(log(0.4 * 0.9))),
        ((0, 0), pytest.approx(log(0.6 * 0.4))),
    ]


@pytest.mark.parametrize(
    ("early", "penalty", "over"),
    [(True, 1.0, True), (False, 1.0, True), ("never", 1.0, False), ("never", 0.0, True), (False, 2.0, True)],
)
def test_when_the_search_is_over(early, penalty, over):
    """Two branches end at once, of log-probabilities log 0.4 and log 0.3; those that grow hold 0.2 and 0.1.

    Over 4 tokens, the most there may be, log(0.2) / 4 = -0.40 beats log(0.3) / 1 = -1.20.
    """
    search = Search(4, Beams(2, penalty, early, stop_ids=(0, 1)))
    search.grow(logs([0.4, 0.3, 0.2, 0.1]))
    assert [h.ids for h in search.ended] == [(0,), (1,)]
    assert [branch.ids for branch in search.branches] == ([] if over else [(2,), (3,)])


@pytest.mark.parametrize(("early", "penalty"), [(False, 0.0), ("never", 0.0), ("never", -1.0), (False, 1.0)])
def test_the_best_that_grows_is_held_against_the_worst_that_ended(early, penalty):
    """0.5 and 0.4 * 0.3 = 0.12 have ended, 0.4 * 0.65 = 0.26 grows.

    By a penalty of -1, 2 log(0.26) = -2.69 beats 2 log(0.12) = -4.24, which it would not at its greatest length.
    """
    search = Search(4, Beams(2, penalty, early, stop_ids=(0,)))
    search.grow(logs([0.5, 0.4, 0.1]))
    assert len(search.branches) == 2
    search.grow(logs([0.3, 0.65, 0.05], [0.3, 0.3, 0.4]))
    assert [h.ids for h in search.ended] == [(0,), (1, 0)]
    assert [branch.ids for branch in search.branches] == [(1, 1), (2, 2)]


def test_no_better_is_over():
    search = Search(4, Beams(2, stop_ids=(0, 1)))
    search.grow(logs([0.25, 0.25, 0.25, 0.25]))
    assert search.branches == []


def test_never_hopes_for_no_more_than_there_is_room():
    """log(0.05) / 2 = -1.50 does not beat log(0.3) = -1.20; over more tokens than 2 it would."""
    search = Search(2, Beams(2, early_stopping="never", stop_ids=(0, 1)))
    search.grow(logs([0.4, 0.3, 0.05, 0.04]))
    assert search.branches == []


def test_the_first_end_of_a_single_beam_is_its_last():
    search = Search(4, Beams(1, early_stopping="never", stop_ids=(0,)))
    search.grow(logs([0.4, 0.3, 0.3]))
    assert [h.ids for h in search.ended] == [(0,)]
    assert search.branches == []


def test_what_ends_outside_the_width_is_not_kept():
    """The third best continuation ends, and two are kept: it neither ends nor goes on."""
    search = Search(4, Beams(2, stop_ids=(3,)))
    search.grow(logs([0.1, 0.4, 0.3, 0.2]))
    assert search.ended == []
    assert [(branch.ids, branch.parent) for branch in search.branches] == [((1,), 0), ((2,), 0)]


def test_equals_go_on_in_the_order_of_branch_and_id():
    search = Search(3, Beams(2))
    search.grow(torch.zeros(1, 400))
    assert [branch.ids for branch in search.branches] == [(0,), (1,)]
    search.grow(torch.zeros(2, 400))
    assert [(branch.ids, branch.parent) for branch in search.branches] == [((0, 0), 0), ((0, 1), 0)]


def test_fewer_than_asked_where_there_are_no_more():
    model = tiny_gpt2()
    only = [id for id in range(50) if id not in (4, 9)]
    [found] = beam_search(model, [[1, 2]], Beams(4, returned=4, max_new_tokens=5, stop_ids=(4, 9)), only)
    assert sorted(h.ids for h in found) == [(4,), (9,)]


@pytest.mark.parametrize("beams", [Beams(3, returned=3), Beams(3, 2.0, "never", 3, 40, 0, (7, 8))])
def test_srv_4_the_end_of_the_context_ends_with_length(beams):
    """Prompts of 16, 14 and 3 tokens in a context of 16: the bound of "never" is the room that each has."""
    model, prompts = tiny_gpt2(), [[1] * 16, [2] * 14, [3, 4, 5]]
    found = beam_search(model, prompts, beams)
    assert [(h.ids, h.score, h.logprob, h.finish_reason) for h in found[0]] == [((), 0.0, 0.0, "length")]
    for prompt, hypotheses in zip(prompts[1:], found[1:], strict=True):
        exactly = replace(beams, max_new_tokens=16 - len(prompt))
        assert_alike([hypotheses], beam_search(model, [prompt], exactly))
        assert any(len(h.ids) == 16 - len(prompt) and h.finish_reason == "length" for h in hypotheses)


def test_srv_3_no_new_tokens():
    [[found]] = beam_search(tiny_gpt2(), [[1, 2]], Beams(max_new_tokens=0))
    assert (found.ids, found.score, found.finish_reason) == ((), 0.0, "length")


@pytest.mark.parametrize("masks", [(Window(5),), (Window(7), Window(3))])
def test_windows_roll_while_beams_are_reordered(masks):
    """A prompt read in several chunks, and more tokens than the rolling cache has room for."""
    model = build(replace(tiny_gpt2().config, context_length=160, masks=masks, positions=Rotary(100.0)))
    prompts, beams = [random_ids(1, 19).tolist()[0], [3, 4]], Beams(2, returned=2, max_new_tokens=75)
    assert_hypotheses(model, prompts[0], beam_search(model, prompts[:1], beams)[0], beams)
    for prompt, found in zip(prompts, beam_search(model, prompts, beams), strict=True):
        assert_hypotheses(model, prompt, found, beams)


def test_prompts_whose_rotation_differs_are_searched_apart():
    positions = Rotary(100.0, scaling=DynamicNTK(2.0, 8))
    model = build(replace(tiny_gpt2().config, positions=positions, context_length=40))
    prompts, beams = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [11, 12]], Beams(3, returned=2, max_new_tokens=9)
    assert_alike(beam_search(model, prompts, beams), [beam_search(model, [prompt], beams)[0] for prompt in prompts])


def test_training_mode_and_gradients_change_nothing():
    model = tiny_gpt2(dropout=Dropout(0.5, 0.5, 0.5))
    expected, saved = beam_search(model, [[1, 2], [3]], Beams(3)), []
    model.train().requires_grad_(True)
    with torch.autograd.graph.saved_tensors_hooks(saved.append, saved.append):
        assert beam_search(model, [[1, 2], [3]], Beams(3)) == expected
    assert saved == []
    assert model.training


def test_no_prompts():
    assert beam_search(tiny_gpt2(), [], Beams()) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"width": True}, "width must be a whole number"),
        ({"returned": 5}, "returned must not exceed width, got 5 and 4"),
        ({"returned": 0}, "returned must be a whole number of at least 1"),
        ({"max_new_tokens": -1}, "max_new_tokens must be a whole number of at least 0"),
        ({"max_new_tokens": 2, "min_new_tokens": 3}, "min_new_tokens must not exceed max_new_tokens, got 3 and 2"),
        ({"length_penalty": float("nan")}, "length_penalty must lie in -32..32, got nan"),
        ({"length_penalty": -33}, "length_penalty must lie in -32..32, got -33"),
        ({"length_penalty": "1"}, "length_penalty must lie in -32..32, got '1'"),
        ({"early_stopping": "always"}, "early_stopping must be True, False or \"never\", got 'always'"),
        ({"early_stopping": 1}, "early_stopping must be True, False"),
        ({"stop_ids": 3}, "stop_ids must be a tuple of whole numbers"),
        ({"stop_ids": (-1,)}, "stop_ids must be a tuple of whole numbers"),
    ],
)
def test_refused_settings(fields, message, monkeypatch):
    # Without it the type checker speaks first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        Beams(**fields)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": [[1], []]}, "prompt 1 is empty"),
        ({"prompts": [[50]]}, r"prompt 0 must hold ids in 0\.\.49, got 50"),
        ({"prompts": [[1] * 17]}, "prompt 0 has 17 tokens, the context only 16"),
        ({"beams": Beams(stop_ids=(50,))}, r"stop_ids must lie in 0\.\.49, got 50"),
        ({"forbidden_ids": [-1]}, r"forbidden ids must lie in 0\.\.49, got -1"),
        ({"forbidden_ids": range(50)}, "every id of the vocabulary is forbidden"),
        ({"forbidden_ids": range(49), "beams": Beams(stop_ids=(49,), min_new_tokens=1)}, "every id of the vocabulary"),
    ],
)
def test_gen_5_refused_prompts_and_ids(arguments, message):
    with pytest.raises(ValueError, match=message):
        beam_search(**({"transformer": tiny_gpt2(), "prompts": [[1]], "beams": Beams()} | arguments))


def test_a_memory_has_a_row_per_prompt():
    model = build(with_encoder(tiny_gpt2().config))
    with pytest.raises(ValueError, match=r"memory must have one row per prompt \(2\), got 1"):
        beam_search(model, [[1], [2]], Beams(), memory=memory_of(model, [[1, 2]]))
    with pytest.raises(ValueError, match="needs a source text"):
        beam_search(model, [[1]], Beams())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_numbers(bad):
    """Of one prompt of several: nobody else reads token 7."""
    model = tiny_gpt2(tied=False)
    model.embed.words[7, :] = bad
    with pytest.raises(ValueError, match="not finite numbers"):
        beam_search(model, [[1, 2], [7, 3]], Beams())
