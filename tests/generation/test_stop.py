"""Stop strings in text that arrives in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.generation import StopMatcher

SRV_2 = [
    ("DEF|G|HI|J", "DEFGHIJ", "", True),
    ("DEF|GH|IK", "DEFGHIJ", "DEFGHIK", False),
    ("The| quick| brown| fox| jumps", "own fox", "The quick br", True),
    ("ple|as", "assistant", "pleas", False),
    ("one|,| two|,| three|,| four|,| five|,| six", "five", "one, two, three, four, ", True),
    ("aa|ab", "aab", "a", True),
    ("abab|ac", "abac", "ab", True),
]


def run(pieces, stops) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    text = "".join([*map(matcher.push, pieces), matcher.finish()])
    return text, matcher.stopped


def by_character(text: str, stops) -> tuple[str, bool]:
    """The definition: read on until the text ends with a stop string, then cut the longest that does."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@pytest.mark.parametrize(("pieces", "stop", "text", "stopped"), SRV_2)
def test_srv_2_stop_strings(pieces, stop, text, stopped):
    assert run(pieces.split("|"), [stop]) == (text, stopped)


letters = st.text("ab", max_size=6)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)


@given(st.lists(letters, max_size=8), stop_lists)
def test_the_result_depends_on_the_text_alone(pieces, stops):
    assert run(pieces, stops) == by_character("".join(pieces), stops)


@given(st.lists(letters, max_size=8), stop_lists)
def test_only_what_may_become_a_stop_string_is_held(pieces, stops):
    matcher, given_back, text = StopMatcher(stops), "", ""
    for piece in pieces:
        given_back += matcher.push(piece)
        text += piece
        if matcher.stopped:
            break
        held = text[len(given_back) :]
        assert given_back + held == text
        longest = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        assert len(held) == longest


def test_nothing_comes_after_a_stop():
    matcher = StopMatcher(["END"])
    assert matcher.push("aENDb") == "a"
    assert (matcher.push("c"), matcher.finish()) == ("", "")


def test_without_stop_strings_text_passes_at_once():
    matcher = StopMatcher(())
    assert (matcher.push("abc"), matcher.finish()) == ("abc", "")
