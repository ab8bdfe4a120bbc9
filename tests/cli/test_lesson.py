import pytest

from pellucid.cli.lesson import _parsed
from pellucid.lessons import LESSONS
from pellucid.lessons.depth import shortcuts


def test_lessons_are_listed(call, ask):
    code, out, err = call("lesson")
    assert (code, err) == (0, "")
    assert [each.name for each in LESSONS if f"\n{each.name} " not in out] == []
    assert max(map(len, out.splitlines())) <= 80
    found = ask("lesson")["lessons"]
    assert [each["name"] for each in found] == [each.name for each in LESSONS]
    assert {each["name"]: each["takes"] for each in found}["layer-norm"] == "[MODEL] [--numbers]"
    assert {each["name"]: each["takes"] for each in found}["lens"] == "MODEL"


def test_a_lesson_is_printed_and_drawn(call, ask, tmp_path):
    code, out, err = call("lesson", "shortcuts", "--save", tmp_path / "x.png")
    assert (code, err) == (0, "")
    assert out == f"{shortcuts()}\n"
    assert "1099.0" in out
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    found = ask("lesson", "shortcuts", "--save", tmp_path / "y.svg")
    assert found["figure"] == str(tmp_path / "y.svg")
    assert found["tables"] == [table.to_json() for table in shortcuts().tables]
    assert (tmp_path / "y.svg").read_bytes().startswith(b"<?xml")


def test_numbers_are_the_vector(ask):
    (table,) = ask("lesson", "layer-norm", "--numbers", "1,2,3,4,5")["tables"]
    assert [row[2] for row in table["rows"]] == [-2, -1, 0, 1, 2]


def test_a_lesson_on_a_model_reads_the_text(ask, tiny):
    from pellucid.front import load

    model = load(tiny)
    found = ask("lesson", "next-token", tiny, "--text", "the cat sat")
    trace = model.trace("the cat sat")
    assert [row[1] for row in found["tables"][0]["rows"]] == trace.tokens()[:-1]
    assert found["tables"][1]["rows"] == trace.top(5).to_json()["rows"]


def test_two_texts_are_compared(ask, tiny):
    found = ask("lesson", "recomputed", tiny, "--text", "the cat", "--text", "the dog")
    assert [table["title"].rpartition("the ")[2] for table in found["tables"]] == ["first text", "second text"]


def test_without_a_model_a_random_one_shows_it(ask):
    (table,) = ask("lesson", "position-wise")["tables"]
    assert [row[2] for row in table["rows"]] == [0.0] * 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("softmx",), "there is no lesson 'softmx'; the nearest are softmax"),
        (("lens",), "looks into a trained model: pellucid lesson lens MODEL"),
        (("gelu", "TINY"), "the lesson gelu is computed without a model"),
        (("recomputed", "TINY", "--text", "one"), "takes --text 2 times, got 1"),
        (("gelu", "--text", "x"), "--text is what a model reads: name the model too"),
        (("gelu", "--numbers", "1"), "the lesson gelu takes no numbers"),
        (("softmax", "TINY", "--numbers", "1"), "takes numbers or a model, not both"),
        (("softmax", "--numbers", "1,x"), "commas between them, as 2,4,4,5; got '1,x'"),
        (("family", "--save", "x.gif"), "a figure is saved as .png, .svg, .pdf, .html, got 'x.gif'"),
        (("batch-norm", "--save", "x.png"), "the lesson batch-norm has no figure to save"),
        (("lens", ""), "the model's name is empty"),
        (("--numbers", "1,2"), "--numbers is for one lesson: name it"),
        (("--text", "x"), "--text is for one lesson: name it"),
        (("--save", "x.png"), "--save is for one lesson: name it"),
    ],
)
def test_what_can_go_wrong_is_one_line(call, tiny, arguments, said):
    code, out, err = call("lesson", *(tiny if each == "TINY" else each for each in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_an_encoder_decoder_is_refused(call, translating):
    code, _, err = call("lesson", "lens", translating)
    assert code == 2
    assert "has an encoder beside its decoder" in err


def test_numbers_are_parsed():
    assert _parsed("2, -4.5,1e-3") == (2.0, -4.5, 0.001)
