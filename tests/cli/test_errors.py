import os

import pytest

from pellucid.cli import app
from pellucid.cli.main import run


def one_line(result):
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("pellucid: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sitez"], "No such command 'sitez'. Did you mean 'sites'?"),
        (["run"], "Missing argument 'MODEL'"),
        (["run", "x"], "Missing argument 'PROMPT'"),
        (["run", "x", "y", "--nope"], "No such option: --nope"),
        (["run", "x", "y", "--top-k", "many"], "Invalid value for '--top-k'"),
        (["sites", "gpt2", "--length", "0"], "--length"),
        (["sites", "gpt2", "--layers", "12"], "the layers are 0..11, got 12"),
        (["sites", "gpt2", "--layers", "a-b"], "--layers takes numbers and ranges"),
    ],
)
def test_misuse_is_one_line(call, arguments, said):
    assert said in one_line(call(*arguments))


@pytest.mark.parametrize("words", [["run", "smolm2", "x"], ["chat", "smolm2"], ["trace", "smolm2", "x"]])
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_an_unknown_model_is_one_line_with_the_nearest(call, words, json):
    assert "smollm2" in one_line(call(*words, *json))


@pytest.mark.parametrize("words", [["explain", "gpt3", "x"], ["params", "gpt3"], ["sites", "gpt3"]])
def test_an_unknown_name_is_one_line_with_the_nearest(call, words):
    assert "gpt2" in one_line(call(*words))


def test_a_file_that_is_no_model_is_one_line(call, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    one_line(call("params", tmp_path))
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    one_line(call("run", tmp_path / "model.gguf", "x"))


def failing(error):
    def fetch(name):
        raise error

    return fetch


def test_a_message_of_several_lines_becomes_one(call, monkeypatch):
    monkeypatch.setattr(app, "fetch", failing(ValueError("one\n  two")))
    assert one_line(call("run")) == "pellucid: one two\n"


def test_an_error_of_the_system_is_one_line(call, monkeypatch):
    monkeypatch.setattr(app, "fetch", failing(PermissionError(13, "Permission denied", "/x")))
    assert "Permission denied: '/x'" in one_line(call("run"))


def test_an_interrupt_is_quiet(call, monkeypatch):
    monkeypatch.setattr(app, "fetch", failing(KeyboardInterrupt()))
    assert call("run") == (130, "", "")


def test_an_error_of_the_program_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(app, "fetch", failing(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        run(["run"])


def test_a_reader_who_leaves_is_no_error(start):
    process = start("sites", "gpt2-xl", "--json")
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == ""


def test_bytes_that_are_no_text_are_one_line(start):
    process = start("run", "smollm2", b"\xff".decode(errors="surrogateescape"))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert "not valid text" in err


def test_a_terminal_without_block_characters_still_gets_the_numbers(start):
    process = start("params", "gpt2", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "124,439,808" in out
