"""The list of lessons."""

import inspect
from pathlib import Path

import pytest

from pellucid.inside.trace import trace
from pellucid.lessons import LESSONS, lesson
from pellucid.lessons.found import Found
from pellucid.lessons.small import random_ids, random_model, random_trace
from pellucid.model.config import Bidirectional, MaskedLanguage, Parallel, PostNorm, RMSNorm, SwiGLU
from pellucid.model.rotary import Rotary

PAGE = Path(__file__).parents[2] / "docs" / "lessons.md"


def test_every_lesson_has_a_name_of_its_own_and_can_be_asked():
    names = [each.name for each in LESSONS]
    assert len(set(names)) == len(names)
    for each in LESSONS:
        assert each.alone or each.on
        assert each.summary.endswith(".")
        assert lesson(each.name) is each


def test_lessons_that_can_do_without_take_no_argument_or_numbers():
    for each in LESSONS:
        if each.alone is None:
            continue
        needed = [p for p in inspect.signature(each.alone).parameters.values() if p.default is p.empty]
        assert needed == []
        assert not each.numbers or isinstance(each.alone((1.0, 2.0, 4.0)), Found)


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in LESSONS if each.on])
def test_lessons_on_a_model_run_on_any_and_can_be_drawn(name):
    each = lesson(name)
    found = each.on(*(random_trace(seed) for seed in range(len(each.texts))))
    assert found.tables
    assert max(map(len, str(found).splitlines())) <= 80
    if found.figure is not None:
        assert found.figure.plot()._repr_png_().startswith(b"\x89PNG")


FORMS = {
    "BERT": {"block": PostNorm(), "masks": (Bidirectional(),), "head": MaskedLanguage(), "n_token_types": 2},
    "PaLM": {"block": Parallel(1), "positions": Rotary(), "activation": SwiGLU(), "n_kv_heads": 1, "qkv_bias": False},
    "Llama": {"positions": Rotary(), "norm": RMSNorm(), "activation": SwiGLU(), "n_kv_heads": 2, "tied": False},
}
# What a model cannot be asked for: it has no causal mask, no logits that are a sum, no stream that is one.
REFUSED = {"BERT": {"causal-mask", "next-token", "unembedding", "contributions", "cancelling", "corrections"}}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_lessons_run_on_models_of_every_form_or_say_why_not(form):
    model = random_model(**{"n_layers": 2, "d_model": 32} | FORMS[form])
    traces = [trace(model, random_ids(seed=seed)) for seed in (1, 2)]
    refused = set()
    for each in LESSONS:
        try:
            found = each.on(*traces[: len(each.texts)]) if each.on else None
        except ValueError:
            refused.add(each.name)
        else:
            assert found is None or found.tables
    assert refused == REFUSED.get(form, set())


@pytest.mark.parametrize(
    ("name", "said"), [("layernorm", "nearest are layer-norm"), ("xyzzy", "pellucid lesson lists them")]
)
def test_a_lesson_that_there_is_not(name, said):
    with pytest.raises(ValueError, match=said):
        lesson(name)


def test_the_page_names_every_lesson_with_its_sentence():
    page = PAGE.read_text(encoding="utf-8")
    assert [each.name for each in LESSONS if f"| `{each.name}` | {each.summary} |" not in page] == []
    assert page.count("\n| `") == len(LESSONS)
