"""The front door: a model made of a transformer and a tokenizer, and its verbs."""

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
import transformers

import pellucid
from pellucid.front import Model, load
from pellucid.model.config import Config, Init, RMSNorm, SwiGLU
from pellucid.model.rotary import DynamicNTK, Rotary
from pellucid.weights.checkpoint import end_ids, forbidden_ids
from tiny import build, tiny_gpt2, with_encoder


def llama(dtype=torch.float64, scaling=None) -> Model:
    config = Config(
        50, 32, 3, 24, 6, n_kv_heads=2, positions=Rotary(scaling=scaling), norm=RMSNorm(), activation=SwiGLU(),
        qkv_bias=False, out_bias=False, ffn_bias=False, tied=False, init=Init(0.4),
    )  # fmt: skip
    return Model(build(config, dtype=dtype), name="tiny")


@pytest.mark.parametrize("make", [llama, lambda dtype: Model(tiny_gpt2(dtype), name="tiny")])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 5e-6)])
def test_the_trace_of_generated_text_is_the_trace_of_the_finished_text(make, dtype, bound):
    model = make(dtype)
    found = model.generate([5, 6, 7], max_new_tokens=8, trace=True)
    assert len(found.ids) == 8
    whole = model.trace([*found.prompt_ids, *found.ids])
    assert found.trace.ids.tolist() == whole.ids.tolist()
    for name in whole.names:
        ours, theirs = found.trace[name], whole[name]
        hidden = theirs.isinf()
        assert torch.equal(ours.isinf(), hidden)
        ours, theirs = ours[~hidden], theirs[~hidden]
        assert float((ours - theirs).abs().max()) <= bound * max(1.0, float(theirs.abs().max())), name


def test_generated_text_under_length_dependent_rotation_keeps_its_frequencies():
    model = llama(scaling=DynamicNTK(2.0, 6))
    found = model.generate([5, 6, 7], max_new_tokens=10, trace=True)
    again = model.trace([*found.prompt_ids, *found.ids])
    torch.testing.assert_close(found.trace["3.stream"], again["3.stream"], atol=1e-11, rtol=1e-11)


def test_generating_with_and_without_a_trace_gives_the_same():
    model = llama()
    plain, traced = (model.generate([5, 6], max_new_tokens=6, temperature=1.0, seed=3, trace=t) for t in (False, True))
    assert plain.ids == traced.ids
    assert plain.logprobs == pytest.approx(traced.logprobs, abs=1e-12)
    assert plain.trace is None


def test_several_prompts_draw_the_same_with_a_trace():
    model, prompts = llama(), [[5, 6, 7], [5, 6, 7]]
    plain, traced = (model.generate(prompts, max_new_tokens=5, temperature=1.0, seed=3, trace=t) for t in (False, True))
    assert [found.ids for found in plain] == [found.ids for found in traced]
    assert plain[0].ids != plain[1].ids


def test_several_prompts_at_once_equal_one_at_a_time():
    model, prompts = llama(), [[5, 6, 7, 8], [9], [3, 4]]
    together = model.generate(prompts, max_new_tokens=6)
    for prompt, found in zip(prompts, together, strict=True):
        alone = model.generate(prompt, max_new_tokens=6)
        assert found.ids == alone.ids
        assert found.logprobs == pytest.approx(alone.logprobs, abs=1e-10)


def test_stream_gives_the_tokens_of_generate():
    model = llama()
    assert (
        tuple(piece.id for piece in model.stream([5, 6], max_new_tokens=6))
        == model.generate([5, 6], max_new_tokens=6).ids
    )


def test_the_checkpoints_end_ids_end_a_text():
    model = llama()
    ids = model.generate([5, 6], max_new_tokens=6).ids
    ending = Model(model.transformer, name="ending", eos_ids=(ids[2],))
    found = ending.generate([5, 6], max_new_tokens=6)
    assert found.ids == ids[: ids.index(ids[2]) + 1]
    assert found.finish_reason == "stop"
    assert end_ids({"eos_token_id": [2, 3]}) == (2, 3)
    assert end_ids({"eos_token_id": 2}) == (2,)
    assert end_ids({}) == ()


def test_prompts_of_different_lengths_are_traced_as_if_alone():
    model = llama()
    together = model.trace([[5, 6, 7, 8], [9, 10]])
    assert together.mask.tolist() == [[True] * 4, [True, True, False, False]]
    alone = model.trace([9, 10])
    torch.testing.assert_close(together["logits"][1, :2], alone["logits"][0], atol=1e-12, rtol=1e-12)
    masked = model.trace(torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]]), mask=[[1, 1, 1, 1], [0, 0, 1, 1]])
    torch.testing.assert_close(masked["logits"][1, 2:], alone["logits"][0], atol=1e-12, rtol=1e-12)


def test_sites_are_listed_with_shapes_and_bytes():
    table = llama().sites(length=7, batch=2)
    rows = {row[0]: row for row in table}
    assert rows["1.attention.pattern"][3:] == ("2x6x7x7", 2 * 6 * 7 * 7 * 8)
    assert rows["2.attention.key"][3:] == ("2x7x2x4", 2 * 7 * 2 * 4 * 8)
    assert "embed.position" not in rows


def test_a_model_can_be_copied_and_pickled():
    model = llama()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.generate([5, 6], max_new_tokens=4).ids == model.generate([5, 6], max_new_tokens=4).ids


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model: model.trace("text"), "no tokenizer"),
        (lambda model: model.generate("text"), "no tokenizer"),
        (lambda model: model.trace([]), "nothing to trace"),
        (lambda model: model.trace([[1], []]), "nothing to trace"),
        (lambda model: model.trace([1, 50]), r"0\.\.49, got 50"),
        (lambda model: model.generate([1], max_tokens=3), "no option max_tokens; it has .*max_new_tokens"),
        (lambda model: model.trace([[1, 2], [3]], mask=[[1, 1], [1, 0]]), "texts of different lengths"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(call, said):
    with pytest.raises(ValueError, match=said):
        call(llama())


def test_a_name_that_is_nothing_is_refused():
    import pellucid

    with pytest.raises(ValueError, match="smollm"):
        pellucid.load("smolm2")


def test_beams_are_the_best_first_and_one_beam_is_greedy():
    model = Model(tiny_gpt2())
    found = model.beams([1, 2, 3], width=4, returned=3, max_new_tokens=6)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    greedy = model.generate([1, 2, 3], max_new_tokens=6)
    (alone,) = model.beams([1, 2, 3], width=1, max_new_tokens=6)
    assert alone.ids == greedy.ids
    assert alone.logprob == pytest.approx(sum(greedy.logprobs), abs=1e-9)
    assert found[0].score >= alone.score
    with pytest.raises(ValueError, match="Beams has no option widht"):
        model.beams([1], widht=2)


def test_an_encoder_decoder_answers_its_prompt():
    config = with_encoder(tiny_gpt2().config)
    model = Model(build(config), start_id=1, eos_ids=(2,))
    source = [7, 8, 9, 10]
    found = model.generate(source, max_new_tokens=5, trace=True)
    memory = model.transformer.encode(torch.tensor([source]))
    text = torch.tensor([[1]])
    for token in found.ids:
        here = model.transformer.begin(text, memory=memory)
        logits = model.transformer.logits(model.transformer.run(model.transformer.embed(text, here), here), here)
        assert int(logits[0, -1].argmax()) == token
        text = torch.cat((text, torch.tensor([[token]])), 1)
    assert found.prompt_ids == (1,)
    assert [piece.id for piece in model.stream(source, max_new_tokens=5)] == list(found.ids)
    assert model.beams(source, width=1, max_new_tokens=5)[0].ids == found.ids
    again = model.trace([1, *found.ids], source=source)
    for name in ("encoder.1.attention.pattern", "decoder.0.cross.scores", "decoder.2.stream", "decoder.logits"):
        torch.testing.assert_close(found.trace[name], again[name], atol=1e-11, rtol=1e-11)
    with pytest.raises(ValueError, match="start_id"):
        Model(model.transformer).generate(source)
    with pytest.raises(ValueError, match="no encoder"):
        Model(tiny_gpt2()).trace([1], source=source)


WRONG = """
import torch
import pellucid as pl
from pellucid.front import Model
from pellucid.model.config import Config
from pellucid.model.transformer import Transformer

shape = dict(vocab_size=50, context_length=16, n_layers=1, d_model=12, n_heads=2)
m = Model(Transformer(Config(**shape)))
typed = Model(Transformer(Config(**shape, n_token_types=2)))
a = m.trace([1, 2, 3])
calls = [
    (lambda: m.generate(None), "a prompt is a text"),
    (lambda: m.generate(b"abc"), "got bytes"),
    (lambda: m.generate([1], {"temperature": 1}), "expected a Sampling or Beams record"),
    (lambda: m.beams([1], 0), "expected a Sampling or Beams record"),
    (lambda: m.beams([1], beams=5), "Beams has no option beams"),
    (lambda: m.trace([1])[5], "a site is a name"),
    (lambda: m.trace([1]).ledger(1.5), "its text or its id, got 1.5"),
    (lambda: m.trace([1]).ledger(True), "got True"),
    (lambda: m.trace([1]).ledger(direction=[0.0] * 12), "12 finite numbers, got list"),
    (lambda: m.trace([1]).ledger(direction=torch.full((12,), torch.nan)), "12 finite numbers, got 12 that are not"),
    (lambda: m.trace([1, 2], types=[[0, 0]]), "no token types"),
    (lambda: typed.trace([1, 2, 3, 4], types=[[0]]), "must have the ids' shape"),
    (lambda: m.trace(torch.tensor([[1.0, 2.0]])), "must be whole numbers"),
    (lambda: m.sites(length=-1), "at least 1, got -1"),
    (lambda: Config(**shape, positions="x"), "positions must be Learned or"),
    (lambda: Config(**(shape | {"d_model": "8"})), "d_model must be a whole number"),
    (lambda: Config(**shape, masks="Causal"), "masks must be a tuple"),
    (lambda: Config(**shape, tied="x"), "tied must be bool"),
    (lambda: Config(**shape, attention_scales=5), "tuple of numbers"),
    (lambda: Config(**shape, logit_scale=float("nan")), "finite numbers other than 0"),
    (lambda: Config(**shape, embedding_scale=0.0), "finite numbers other than 0"),
    (lambda: a.edit([pl.zero("0.stream")]), "several follow one another, got a list"),
    (lambda: a.edit(pl.zero("0.attention.heads", head=True)), "a choice is a whole number"),
    (lambda: a.edit(pl.zero("0.attention.heads", head=1.5)), "a choice is a whole number"),
    (lambda: a.edit(pl.zero("0.attention.heads", head="1")), "a choice is a whole number"),
    (lambda: pl.zero(None), "an edit names a site"),
    (lambda: pl.scale("0.stream", float("nan")), "must be finite, got nan"),
    (lambda: pl.noise("0.stream", -1.0), "must be at least 0"),
    (lambda: pl.set("0.stream", float("nan")), "not a number"),
    (lambda: pl.add("0.stream", None), "a value for '0.stream' is a tensor or a number, got None"),
    (lambda: pl.patch("0.stream", a, row=3), "rows 0..0, got row=3"),
    (lambda: pl.patch("0.stream", None), "from a trace, got NoneType"),
    (lambda: pl.sweep(a, a, metric=None), "a metric is made by logit"),
    (lambda: pl.sweep(a, m.trace([1, 2, 4]), metric=pl.logit(3), each=""), "a sweep goes over each 'position'"),
    (lambda: pl.SweepOptions(row="0"), "row must be a whole number, got '0'"),
    (lambda: pl.SweepOptions(memory=1e9), "memory must be a whole number, got 1000000000.0"),
    (lambda: pl.SweepOptions(progress=True), "progress is a function of (finished, all), got bool"),
    (lambda: pl.SweepOptions(folder=3), "folder is a path, got int"),
    (lambda: pl.jacobian_lens(m.transformer, [[1, 2]]), "one axis, got a list"),
    (lambda: pl.jacobian_lens(m.transformer, [torch.ones(1, 3, dtype=torch.long)]), "one axis, got shape [1, 3]"),
    (lambda: pl.sweep(a, None, metric=pl.logit(3)), "(model.trace(text)), got NoneType"),
    (lambda: pl.sweep_edits(m, [], pl.logit(3)), "(model.trace(text)), got Model"),
    (lambda: pl.attribution(a, a, metric=" Paris"), "a metric is made by logit"),
    (lambda: pl.edge_scores(a, a, None), "a metric is made by logit"),
    (lambda: a.gradient(None), "a metric is made by logit"),
    (lambda: a.top(1.5), "k must lie in"),
    (lambda: a.ledger(3, position=1.5), "position=1.5"),
    (lambda: a.ledger(3, row="0"), "row='0'"),
    (lambda: a.save("."), "found a folder"),
    (lambda: pl.tune_lens(m.transformer, [], steps=-1), "steps must be a whole number of at least 1, got -1"),
    (lambda: m.neurons("hello"), "put it in a list"),
    (lambda: m.neurons([[1.5]]), "row 0 must hold token ids"),
]
for number, (call, said) in enumerate(calls):
    try:
        call()
    except ValueError as error:
        assert said in str(error), (number, str(error))
    else:
        raise AssertionError(f"call {number} was accepted")
"""


def test_what_a_person_gets_wrong_is_a_value_error():
    # In a process of its own, as users run it: here the tests' type checker would answer first.
    done = subprocess.run([sys.executable, "-c", WRONG], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_end_ids_past_the_vocabulary_never_come():
    model = Model(tiny_gpt2(), eos_ids=(50256,))
    assert len(model.generate([1, 2], max_new_tokens=4).ids) == 4
    assert model.beams([1, 2], width=2, max_new_tokens=4)


def test_a_device_that_is_not_there_is_refused(tmp_path):
    for device in ("cuda:99", "foo"):
        with pytest.raises(ValueError, match=f"device '{device}' cannot be used here"):
            pellucid.load(tmp_path, device=device)


def test_each_text_of_an_encoder_decoder_needs_a_source_of_its_own():
    model = Model(build(with_encoder(tiny_gpt2().config)), start_id=1)
    with pytest.raises(ValueError, match="source of its own: got 1 and 2"):
        model.trace([1, 2], source=[[3], [4]])
    with pytest.raises(ValueError, match="source of its own: got 2 and 1"):
        model.trace([[1, 2], [3, 4]], source=[3])
    stream = model.transformer.encode(torch.tensor([[3, 4]])).stream
    torch.testing.assert_close(model.embed([3, 4])[0], stream[0].mean(0))


def test_heads_are_the_report_card_of_the_model():
    model = Model(build(Config(50, 40, 1, 12, 2, init=Init(0.4))))
    card = model.heads(sequences=2)
    assert len(card.kinds) == 1
    assert len(card.kinds[0]) == 2


def test_ids_that_a_checkpoint_forbids_are_never_generated(tmp_path):
    torch.manual_seed(3)
    theirs: Any = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=20, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=24,
            pad_token_id=19, eos_token_id=0, decoder_start_token_id=19, forced_eos_token_id=None, bos_token_id=None,
        )
    )  # fmt: skip
    for name, weight in theirs.named_parameters():
        if "embed_positions" not in name:
            torch.nn.init.normal_(weight, std=0.5)
    source, never = torch.tensor([[5, 6, 0]]), []
    for _ in range(2):  # what it would say, and what it says when it may not say that
        theirs.generation_config.bad_words_ids = [[id] for id in never] or None
        never.append(int(theirs.generate(source, min_new_tokens=2, max_new_tokens=2, num_beams=1)[0, 1]))
    theirs.generation_config.bad_words_ids = [[id] for id in never]
    theirs.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.forbidden_ids == tuple(never)
    for beams in (1, 3):
        expected = theirs.generate(source, max_new_tokens=8, do_sample=False, num_beams=beams)
        found = model.beams([5, 6, 0], width=beams, max_new_tokens=8)[0].ids
        assert list(found) == expected[0, 1:].tolist()
    assert model.generate([5, 6, 0], max_new_tokens=8).ids == model.beams([5, 6, 0], width=1, max_new_tokens=8)[0].ids
    assert 3 not in model.generate([5, 6, 0], max_new_tokens=8, forbidden_ids=(3,)).ids


def test_forbidden_sequences_of_several_ids_are_said_to_be_possible():
    with pytest.warns(UserWarning, match=r"may still be generated: \[\[3, 4\]\]"):
        assert forbidden_ids({"bad_words_ids": [[7], [3, 4]], "suppress_tokens": [1]}) == (7, 1)
    assert forbidden_ids({"bad_words_ids": [[7], [2]], "eos_token_id": 2}) == (7,)  # as Hugging Face has it
    assert forbidden_ids({}) == ()


def test_an_edited_model_is_read_under_its_edits_or_says_that_it_is_not():
    model = Model(tiny_gpt2()).edited(pellucid.zero("0.attention.heads"))
    for ask, what in (
        (lambda: model.heads(), "the report card"),
        (lambda: model.neurons([[1, 2]]), "a scan of neurons"),
        (lambda: model.evaluate("a"), "evaluation"),
    ):
        with pytest.raises(ValueError, match=f"{what} reads the weights as they are"):
            ask()
    mean = model.baked().neurons([[1, 2, 3], [4, 5]]).mean[1]
    one, other = (model.trace(ids)["1.ffn.neurons"][0] for ids in ([1, 2, 3], [4, 5]))
    torch.testing.assert_close(mean.double(), torch.cat((one, other)).mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_pairs_are_traced_under_the_edits(smollm2_path):
    model = load(smollm2_path).edited(pellucid.zero("0.attention.heads"))
    pairs = model.pairs([("The capital of France is", "The capital of Italy is")])
    clean, corrupted = model.traces(pairs)
    assert torch.equal(clean["logits"], model.trace("The capital of France is")["logits"])
    assert torch.equal(corrupted["logits"], model.trace("The capital of Italy is")["logits"])


@pytest.mark.slow
def test_a_saved_model_opens_as_it_was_with_its_edits(tmp_path, smollm2_path):
    model = load(smollm2_path).edited(pellucid.add("3.stream", torch.ones(576), position=1))
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert torch.equal(again.trace("The capital of")["logits"], model.trace("The capital of")["logits"])
    assert again.eos_ids == model.eos_ids
    with pytest.raises(ValueError, match=r"pellucid convert.* writes .gguf"):
        model.save(tmp_path / "m.gguf")
