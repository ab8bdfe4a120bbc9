"""The list of lessons."""

import inspect
from pathlib import Path

import pytest

from pellucid.lessons import LESSONS, lesson
from pellucid.lessons.found import Found
from pellucid.lessons.small import random_trace

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


@pytest.mark.parametrize("name", [each.name for each in LESSONS if each.on])
def test_lessons_on_a_model_run_on_any_and_can_be_drawn(name):
    each = lesson(name)
    found = each.on(*(random_trace(seed) for seed in range(len(each.texts))))
    assert found.tables
    assert max(map(len, str(found).splitlines())) <= 80
    if found.figure is not None:
        assert found.figure.plot()._repr_png_().startswith(b"\x89PNG")


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
