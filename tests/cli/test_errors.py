import os
import shlex
import shutil
import signal
import subprocess
import sys

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


@pytest.mark.parametrize("name", ["~nouser/x", "x" * 5000])
@pytest.mark.parametrize("words", [["run", "x"], ["params"]])
def test_names_that_cannot_be_paths_are_refused_in_a_line(call, name, words):
    err = one_line(call(words[0], name, *words[1:]))
    assert "it cannot be the path of a file" in err
    assert len(err) < 300


@pytest.mark.parametrize("words", [["run", "smolm2", "x"], ["chat", "smolm2"], ["trace", "smolm2", "x"]])
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_an_unknown_model_is_one_line_with_the_nearest(call, words, json):
    assert "smollm2" in one_line(call(*words, *json))


@pytest.mark.parametrize("words", [["explain", "gpt3", "x"], ["params", "gpt3"], ["sites", "gpt3"]])
def test_an_unknown_name_is_one_line_with_the_nearest(call, words):
    assert "gpt2" in one_line(call(*words))


@pytest.mark.parametrize(
    "words",
    [["run", "", "x"], ["trace", " ", "x"], ["chat", ""], ["fill", "", "x"], ["params", ""], ["convert", "", "y"]],
)
def test_an_empty_name_is_not_the_current_folder(call, words):
    assert "the model's name is empty" in one_line(call(*words))


@pytest.mark.parametrize(
    "words", [["run", "gpt3-175b", "x"], ["convert", "gpt3-175b", "y"], ["fill", "gpt3-175b", "x"]]
)
def test_a_preset_has_no_weights(call, words):
    assert "gpt3-175b is a preset, a shape without weights" in one_line(call(*words))


def test_a_folder_named_as_a_preset_is_the_folder(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt3-175b").mkdir()
    assert "config.json" in one_line(call("run", "gpt3-175b", "x"))


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_a_model_that_fills_masks_cannot_continue(call, masked, json):
    assert "fills masks, and cannot continue a text: use pellucid fill" in one_line(call("run", masked[2], "is", *json))


@pytest.mark.parametrize("words", [["run", "{}", "x"], ["explain", "{}", "x"], ["chat", "{}"], ["fill", "{}", "x"]])
def test_a_model_without_a_tokenizer_says_what_one_is(call, tiny, tmp_path, words):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(f"{tiny}/{name}", tmp_path)
    said = one_line(call(*(word.format(tmp_path) for word in words)))
    assert "has no tokenizer" in said
    assert "tokenizer.json" in said
    assert "vocab.txt" in said


def test_a_layer_list_that_names_none_is_refused(call, tiny):
    for text in ("0-99999999999", "1-0", ","):
        one_line(call("trace", tiny, "x", "--layers", text))


def closed(command, *arguments):
    """The command in a shell that closes one of its streams."""
    words = shlex.join([sys.executable, "-m", "pellucid", *arguments])
    return subprocess.run(f"{words} {command}", shell=True, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("arguments", [("run", "{}", "-"), ("chat", "{}"), ("trace", "{}", "-")])
def test_a_closed_stdin_is_one_line(tiny, arguments):
    done = closed("<&-", *(word.format(tiny) for word in arguments))
    assert "stdin is closed" in one_line((done.returncode, done.stdout, done.stderr))


def test_a_closed_stdout_is_one_line(tiny):
    for arguments in (("run", tiny, "x"), ("--help",)):
        done = closed(">&-", *arguments)
        assert "stdout is closed" in one_line((done.returncode, done.stdout, done.stderr))


@pytest.mark.slow
def test_a_closed_stderr_is_no_error(tiny):
    done = closed("2>&-", "run", tiny, "the cat", "--max-new-tokens", "2")
    assert (done.returncode, done.stderr, done.stdout[-1:]) == (0, "", "\n")
    done = closed("2>&-", "run", tiny, "")
    assert (done.returncode, done.stdout) == (2, "")


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


LOSING = """
import os
try:
    os.kill(os.getpid(), {signal})
    while True:
        pass
except KeyboardInterrupt:
    pass
"""


def test_an_interrupt_that_an_import_would_lose_still_ends_it(tmp_path):
    """Extensions swallow what is raised inside them while they are imported, or abort."""
    (tmp_path / "losing.py").write_text(LOSING.format(signal=int(signal.SIGINT)))
    check = "from pellucid.__main__ import watch_interrupts; watch_interrupts(); import losing; print('went on')"
    done = subprocess.run(
        [sys.executable, "-c", check],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
def test_an_interrupt_while_text_is_made_ends_it_quietly(start, tiny):
    process = start("run", tiny, "the cat", "--max-new-tokens", 60, "--temperature", 1)
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) in (130, 0)
    assert process.stderr.read() == ""


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


@pytest.mark.slow
def test_a_terminal_without_block_characters_still_gets_the_numbers(start):
    process = start("params", "gpt2", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "124,439,808" in out
