import io
import shutil
import signal
import sys

import pytest


@pytest.fixture
def typed(monkeypatch):
    """What the user's lines are."""

    def lines(text):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    return lines


def answer_of(oracle, messages, n):
    import torch

    model, tokenizer, _ = oracle
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    rows = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    out = model.generate(
        rows,
        attention_mask=torch.ones_like(rows),
        max_new_tokens=n,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=end,
    )
    return tokenizer.decode(out[0, rows.shape[1] :], skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_a_conversation_as_the_template_has_it(oracle, ask, typed):
    typed("the cat\n\n  \n the dog \n")
    found = ask("chat", oracle[2], "--system", "Paris", "--max-new-tokens", 4)["messages"]
    assert [message["role"] for message in found] == ["system", "user", "assistant", "user", "assistant"]
    assert [message["content"] for message in found[:4:3]] == ["Paris", "the dog"]
    assert found[2]["content"] == answer_of(oracle, found[:2], 4)
    assert found[4]["content"] == answer_of(oracle, found[:4], 4)


@pytest.mark.parametrize("end", ["", "/quit\nthe dog\n"])
def test_answers_are_streamed_until_the_end(call, ask, typed, tiny, end):
    typed(f"the cat\n{end}")
    code, out, err = call("chat", tiny, "--max-new-tokens", 4)
    typed(f"the cat\n{end}")
    (_, answer) = ask("chat", tiny, "--max-new-tokens", 4)["messages"]
    assert (code, out, err) == (0, answer["content"] + "\n", "")


def test_nothing_said_is_an_empty_conversation(ask, typed, tiny):
    typed("")
    assert ask("chat", tiny)["messages"] == []


def test_a_model_without_a_chat_template_says_so_before_the_first_line(call, typed, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "plain")
    (tmp_path / "plain" / "chat_template.jinja").unlink()
    typed("")
    code, out, err = call("chat", tmp_path / "plain")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "has no chat template" in err


@pytest.mark.slow
def test_an_interrupt_ends_it_quietly(start, tiny):
    process = start("chat", tiny, "--max-new-tokens", 1)
    process.stdin.write("the cat\n")
    process.stdin.flush()
    process.stdout.readline()  # an answer has come: the program now waits for the next line
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert process.stderr.read() == ""
