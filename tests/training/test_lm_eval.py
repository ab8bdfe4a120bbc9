"""lm_eval's requests against the formula, one by one; and the harness itself where it is installed."""

import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from pellucid.generation import Sampling, generate
from pellucid.model.config import Bidirectional
from pellucid.training.harness import Scorer, language_model, rolled, sampling_of
from pellucid.training.vocabulary import train_bpe, write_files

PAIRS = [
    ("the cat sat", " on"), ("the", " mat and the dog sat on the mat"), ("", "the cat"), ("the ", "dog"), ("a", ""),
    ("the dog and the cat and the dog " * 4 + "sat on the", " mat"), ("<|endoftext|>", "the"), (" ", "cat"),
]  # fmt: skip


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    texts = ["the cat sat on the mat and the dog sat on the cat. "] * 20
    return write_files(tmp_path_factory.mktemp("words"), train_bpe(texts, 275))


@pytest.fixture(scope="module")
def model():
    return tiny.tiny_gpt2(dtype=torch.float32, vocab_size=280)


def asked(*requests):
    return [SimpleNamespace(args=request) for request in requests]


def by_hand(model, words, context, continuation):
    """One row, without padding, all logits at once."""
    end = words.eos_ids[0]
    context, continuation = context.rstrip(" "), " " * (len(context) - len(context.rstrip(" "))) + continuation
    whole = words.encode(context + continuation)
    count = len(whole) - len(words.encode(context))
    ids = whole if context else [end, *whole]
    read = torch.tensor([ids[-17:][:-1] or ids])
    logs = model(read).double().log_softmax(-1)[0]
    told = ids[len(ids) - count :]
    own = [logs[len(logs) - count + n] for n in range(count)]
    return sum(each[id].item() for each, id in zip(own, told, strict=True)), all(
        int(each.argmax()) == id for each, id in zip(own, told, strict=True)
    )


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_scores_do_not_depend_on_how_many_rows_share_a_batch(model, words, rows):
    scorer = Scorer(model, words, rows)
    found = scorer.loglikelihood(asked(*PAIRS))
    for (score, greedy), pair in zip(found, PAIRS, strict=True):
        expected, best = by_hand(model, words, *pair)
        assert score == pytest.approx(expected, abs=2e-5)
        assert greedy == best
    assert scorer.shortened == 1
    assert found[4] == (0.0, True)


def test_the_most_probable_continuation_is_greedy(model, words):
    ids = list(generate(model, words, ["the cat"], Sampling(max_new_tokens=3))[0].ids)
    score, greedy = Scorer(model, words)._scored([(words.encode("the cat"), ids)])[0]
    assert greedy
    assert score < 0
    assert not Scorer(model, words)._scored([(words.encode("the cat"), [*ids[:-1], (ids[-1] + 1) % 270])])[0][1]


@settings(max_examples=30)
@given(st.integers(0, 40), st.integers(1, 9))
def test_windows_predict_each_id_once_with_all_the_context_there_is(count, length):
    ids = list(range(count))
    told = []
    for before, predicted in rolled(ids, -1, length):
        assert len(before) + len(predicted) <= length + 1
        first = predicted[0]
        assert before == ([-1] if first == 0 else ids[max(0, predicted[-1] - length) : first])
        told += predicted
    assert told == ids


def test_a_whole_text_is_the_sum_of_its_tokens(model, words):
    text = "the cat sat on the mat and the dog sat on the cat. " * 2
    ids, end = words.encode(text), words.eos_ids[0]
    assert len(ids) > 16
    logs = model(torch.tensor([[end, *ids[:15]]])).double().log_softmax(-1)[0]
    expected = sum(logs[n, ids[n]].item() for n in range(16))
    rest = len(ids) - 16
    logs = model(torch.tensor([ids[-17:-1]])).double().log_softmax(-1)[0]
    expected += sum(logs[16 - rest + n, ids[16 + n]].item() for n in range(rest))
    assert rest <= 16
    assert Scorer(model, words).loglikelihood_rolling(asked((text,), ("",)))[0] == pytest.approx(expected, abs=2e-5)


def test_texts_are_written_as_generate_writes_them(model, words):
    contexts = ["the cat", "the dog sat", "a", ""]
    options = {"until": ["t", "."], "max_gen_toks": 6}
    found = Scorer(model, words, 3).generate_until(asked(*((context, options) for context in contexts)))
    for context, text in zip(contexts, found, strict=True):
        alone = generate(model, words, [context or [words.bos_id]], Sampling(max_new_tokens=6, stop=("t", ".")))[0]
        assert text == alone.text
        assert not {"t", "."} & set(text)


def test_options_of_a_task_become_a_sampling():
    assert sampling_of({}, 0) == Sampling(max_new_tokens=256)
    assert sampling_of({"until": "x", "temperature": 0.0}, 0) == Sampling(max_new_tokens=256, stop=("x",))
    drawn = sampling_of({"do_sample": True, "temperature": 0.7, "top_p": 0.9, "max_gen_toks": 3}, 5)
    assert drawn == Sampling(temperature=0.7, top_p=0.9, max_new_tokens=3, seed=5)


def test_a_long_context_loses_its_beginning(model, words):
    scorer, context = Scorer(model, words), "the cat sat on the mat and the dog sat on the cat. " * 3
    text = scorer.generate_until(asked((context, {"max_gen_toks": 4})))[0]
    assert text == generate(model, words, [words.encode(context)[-12:]], Sampling(max_new_tokens=4))[0].text
    assert scorer.shortened == 1


def test_control_tokens_in_a_text_stay_text_unless_they_are_wanted(model, words):
    pair = asked(("the<|endoftext|>", "cat"))
    assert Scorer(model, words).loglikelihood(pair) != Scorer(model, words, special=True).loglikelihood(pair)


def test_what_cannot_be_asked_is_told(model, words):
    with pytest.raises(ValueError, match="predict each next token"):
        Scorer(tiny.tiny_gpt2(masks=(Bidirectional(),)), words)
    with pytest.raises(ValueError, match="rows must be at least 1"):
        Scorer(model, words, rows=0)
    with pytest.raises(ValueError, match=r"a continuation has \d+ tokens, the context only 16"):
        Scorer(model, words).loglikelihood(asked(("a", "xyz" * 9)))
    with pytest.raises(ValueError, match="leave no room for a context"):
        Scorer(model, words).generate_until(asked(("a", {"max_gen_toks": 16})))
    with pytest.raises(ValueError, match="no chat template"):
        Scorer(model, words).apply_chat_template([])


def test_the_package_is_asked_for_by_name(model, words, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lm_eval.api.model", None)
    with pytest.raises(ValueError, match=r"pip install 'pellucid\[eval\]'"):
        language_model(model, words)


@pytest.mark.slow
def test_lm_eval_runs_a_local_task(model, words, tmp_path):
    lm_eval = pytest.importorskip("lm_eval")
    rows = [{"question": "the cat sat on the", "choices": [" mat", " dog", " cat"], "answer": n % 3} for n in range(6)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    local = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "a.jsonl")}}}
    choosing = {
        "task": "choosing", **local, "test_split": "test", "output_type": "multiple_choice",
        "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}",
        "target_delimiter": "", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    rolling = {
        "task": "rolling", **local, "test_split": "test", "output_type": "loglikelihood_rolling", "doc_to_text": "",
        "doc_to_target": "{{question}}", "metric_list": [{"metric": "bits_per_byte"}],
    }  # fmt: skip
    writing = {
        "task": "writing", **local, "test_split": "test", "output_type": "generate_until",
        "doc_to_text": "{{question}}", "doc_to_target": "x", "generation_kwargs": {"until": ["t"], "max_gen_toks": 4},
        "metric_list": [{"metric": "exact_match"}],
    }  # fmt: skip
    lm = language_model(model, words, rows=4)
    found = lm_eval.simple_evaluate(model=lm, tasks=[choosing, rolling, writing], bootstrap_iters=0, log_samples=True)
    scores = [by_hand(model, words, "the cat sat on the", choice)[0] for choice in rows[0]["choices"]]
    best = scores.index(max(scores))
    assert found["results"]["choosing"]["acc,none"] == pytest.approx(2 / 6)
    assert [sample["acc"] for sample in found["samples"]["choosing"]] == [float(n % 3 == best) for n in range(6)]
    (whole,) = Scorer(model, words).loglikelihood_rolling(asked(("the cat sat on the",)))
    bits = -whole / torch.tensor(2.0).log().item() / len("the cat sat on the")
    assert found["results"]["rolling"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-5)
    (text,) = Scorer(model, words).generate_until(asked(("the cat sat on the", {"until": ["t"], "max_gen_toks": 4})))
    assert found["samples"]["writing"][0]["resps"] == [[text]]
