import json
import os
import pty

import pytest
import torch

PROMPT = "the cat sat on"


def greedy(oracle, ids, n):
    """What Hugging Face continues with, taking the most probable token."""
    model, tokenizer, _ = oracle
    rows = torch.tensor([ids])
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    out = model.generate(
        rows,
        attention_mask=torch.ones_like(rows),
        max_new_tokens=n,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=end,
    )
    return out[0, len(ids) :].tolist()


def test_run_continues_as_the_oracle_does(oracle, ask):
    model, tokenizer, folder = oracle
    found = ask("run", folder, PROMPT, "--max-new-tokens", 9)
    ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    assert found["prompt_ids"] == ids
    assert found["ids"] == greedy(oracle, ids, 9)
    with torch.no_grad():
        first = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    assert found["logprobs"][0] == pytest.approx(float(first.max()), abs=1e-4)
    assert found["finish_reason"] == ("stop" if len(found["ids"]) < 9 else "length")


def test_run_streams_the_text_of_the_record(call, ask, tiny):
    options = (
        "--max-new-tokens",
        12,
        "--temperature",
        1.5,
        "--seed",
        3,
        "--top-k",
        50,
        "--top-p",
        0.9,
        "--min-p",
        0.01,
    )
    record = ask("run", tiny, PROMPT, *options)
    assert call("run", tiny, PROMPT, *options) == (0, record["text"] + "\n", "")
    assert record["sampling"]["seed"] == 3
    assert record["sampling"]["temperature"] == 1.5
    assert ask("run", tiny, PROMPT, *options[:-7], 4, *options[-6:])["ids"] != record["ids"]


def test_several_stop_texts_end_the_text(ask, tiny):
    text = ask("run", tiny, PROMPT, "--max-new-tokens", 8)["text"]
    early, late = text[2:4], text[4:6]
    found = ask("run", tiny, PROMPT, "--max-new-tokens", 8, "--stop", late, "--stop", early)
    assert found["text"] == text[: min(text.index(early), text.index(late))]
    assert found["finish_reason"] == "stop"


def test_a_prompt_from_stdin_loses_only_the_newline_of_echo(start, ask, tiny):
    out, err = start("run", tiny, "-", "--max-new-tokens", 4, "--json").communicate(f"{PROMPT}\n\n", timeout=120)
    assert err == ""
    assert json.loads(out)["prompt"] == f"{PROMPT}\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--temperature", -1), "temperature"),
        (("--top-p", 2), "top_p"),
        (("--max-new-tokens", -1), "max_new_tokens"),
        (("--stop", ""), "stop"),
    ],
)
def test_settings_out_of_range_are_one_line(call, tiny, options, said):
    code, out, err = call("run", tiny, PROMPT, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_a_person_sees_a_spinner_and_stdout_stays_clean(start, tiny):
    outer, inner = pty.openpty()
    try:
        process = start("run", tiny, PROMPT, "--max-new-tokens", 2, "--json", stderr=inner)
        out, _ = process.communicate(timeout=120)
        seen = os.read(outer, 4096).decode()
    finally:
        os.close(outer)
        os.close(inner)
    assert "loading" in seen
    assert out[0] == "{"
    assert "\x1b" not in out
