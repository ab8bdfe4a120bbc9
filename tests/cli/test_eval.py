import io
import json

import pytest
import torch

TEXT = "The capital of France is Paris. the cat sat on the mat and the dog " * 4


def hugging_faces(model, ids, length, stride):
    """The loop of Hugging Face's own page on the perplexity of models of fixed length; (nats, tokens)."""
    nats, tokens, before = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + length, len(ids))
        window = torch.tensor([ids[begin:end]])
        target = window.clone()
        target[:, : -(end - before)] = -100
        scored = int((target[:, 1:] != -100).sum())
        with torch.no_grad():
            nats += model(window, labels=target).loss.item() * scored
        tokens, before = tokens + scored, end
        if end == len(ids):
            break
    return nats, tokens


@pytest.mark.parametrize(("length", "stride"), [(64, 32), (20, 7)])
def test_eval_gives_hugging_faces_perplexity(ask, oracle, tiny, tmp_path, length, stride):
    model, words, _ = oracle
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    found = ask("eval", tiny, tmp_path / "a.txt", "--length", length, "--stride", stride)
    nats, tokens = hugging_faces(model, words.encode(TEXT), length, stride)
    assert found["tokens"] == tokens
    assert found["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert found["perplexity"] == pytest.approx(2.718281828459045 ** (nats / tokens), rel=1e-4)
    assert found["bytes"] == found["characters"] == len(TEXT) - len(words.decode(words.encode(TEXT)[:1]))
    assert (found["length"], found["stride"], found["texts"]) == (length, stride, 1)


def test_eval_says_what_it_scored(call, tiny, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT + "\n"))
    code, out, err = call("eval", tiny, "-")
    assert (code, err) == (0, "")
    assert [line.split("  ")[0] for line in out.splitlines()[:4]] == [
        "loss", "perplexity", "bits per byte", "bits per character",
    ]  # fmt: skip
    assert "tokens scored" in out
    assert "in windows of 64, each token with 32 before it or more" in out


def test_eval_reads_folders_and_lines(ask, tiny, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(TEXT)
    lines = [{"text": TEXT[:50]}, {"text": TEXT[50:90]}]
    (tmp_path / "texts" / "b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert ask("eval", tiny, tmp_path / "texts")["texts"] == 3


def test_eval_reads_pythons_sources_where_nothing_is_given(ask, tiny, monkeypatch):
    monkeypatch.setattr("pellucid.cli.eval.CHARACTERS", 60)
    found = ask("eval", tiny)
    assert found["texts"] == 16
    assert 0 < found["characters"] <= 16 * 60


def test_what_eval_refuses_is_one_line(call, tiny, masked, translating, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text("")
    for said, *arguments in (
        ("no such file", tiny, tmp_path / "absent.txt"),
        ("at least two tokens", tiny, tmp_path / "b.txt"),
        ("length must be from 2 to the context of 64", tiny, tmp_path / "a.txt", "--length", 65),
        ("stride must be from 1 to 9", tiny, tmp_path / "a.txt", "--length", 10, "--stride", 10),
        ("predicts each next token", masked[2], tmp_path / "a.txt"),
        ("predicts each next token", translating, tmp_path / "a.txt"),
        ("give it alone", tiny, tmp_path / "a.txt", "-"),
    ):
        code, out, err = call("eval", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err
