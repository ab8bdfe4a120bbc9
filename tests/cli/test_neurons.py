import json

import pytest
import torch

from pellucid.front import load
from pellucid.inside.neuron_weights import promoted, promoting, reads
from pellucid.inside.trace import trace


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "corpus.txt"
    path.write_text("the cat sat on the mat and the dog\nThe capital of France is Paris.\n" * 6, encoding="utf-8")
    return path


def test_a_neuron_by_its_weights_alone(ask, tiny):
    model = load(tiny)
    found = ask("neurons", tiny, "2.7", "--k", 4)
    assert found["promotes"] == promoted(model.transformer, 2, 7, 4, model.tokenizer).to_json()
    assert found["reads"] == reads(model.transformer, 2, 7, 4, model.tokenizer).to_json()
    assert "texts" not in found
    found = ask("neurons", tiny, "--token", " the", "--k", 3)
    assert found["promoting"] == promoting(model.transformer, " the", 3, tokenizer=model.tokenizer).to_json()


def test_a_corpus_gives_the_strongest_texts_and_is_kept(ask, call, tiny, text, tmp_path):
    model, folder = load(tiny), tmp_path / "scan"
    found = ask("neurons", tiny, "1.3", "--corpus", text, "--folder", folder, "--k", 2)
    ids = model.encode(text.read_text(), bos=False)
    rows = [ids[at : at + 64] for at in range(0, len(ids), 64)]  # the model has 64 positions
    seen = []
    for number, row in enumerate(rows):
        values = trace(model.transformer, torch.tensor([row]))["1.ffn.neurons"][0, :, 3]
        seen += [(float(value), number, at) for at, value in enumerate(values) if at > 0]
    best = [row[:1] + row[4:] for row in found["texts"]["rows"]]
    assert best[0][0] == pytest.approx(max(seen)[0], rel=1e-4)
    assert [seen_at[0] for seen_at in best] == pytest.approx(sorted((s[0] for s in seen), reverse=True)[:2], rel=1e-4)
    assert found["lowest"]["rows"][0][0] == pytest.approx(min(seen)[0], rel=1e-4)  # of a gated model
    assert found["scan"]["tokens"] == len(ids) - len(rows)
    kept = ask("neurons", tiny, "1.3", "--folder", folder, "--k", 2)
    assert kept["texts"] == found["texts"]
    again = ask("neurons", tiny, "--token", " the", "--corpus", text, "--folder", folder, "--k", 5)
    assert len(again["firing"]["rows"]) == 5
    code, out, err = call("neurons", tiny, "--folder", folder, "--k", 4)
    assert (code, err) == (0, "")
    assert out.startswith("neurons\n")
    assert json.loads((folder / "scan.json").read_text())["done"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a neuron"),
        (("5",), "as 5.120; got '5'"),
        (("9.1",), "layers 0..2, got 9"),
        (("0.40",), "neurons 0..39, got 40"),
        (("--token", "no such token"), "one token"),
        (("--corpus", "absent.txt"), "absent.txt: no such file"),
        (("--folder", "absent"), "no such file"),
        (("1.1", "--k", "0"), "at least 1"),
    ],
)
def test_what_cannot_be_shown_is_one_line(call, tiny, arguments, said):
    code, out, err = call("neurons", tiny, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_bytes_that_are_no_text_are_one_line(call, tiny, tmp_path):
    path = tmp_path / "bytes.txt"
    path.write_bytes(b"\xff\xfe\x00")
    code, _, err = call("neurons", tiny, "--corpus", path)
    assert code == 2
    assert "expected text in UTF-8" in err


def test_documents_of_json_lines_and_folders_are_read_apart(ask, tiny, tmp_path):
    texts = ["the cat sat on the mat", "The capital of France is Paris.\n"]
    lines, folder = tmp_path / "texts.jsonl", tmp_path / "texts"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")
    model = load(tiny)
    values = [trace(model.transformer, torch.tensor([model.encode(text, bos=False)])) for text in texts]
    best = max(float(found["1.ffn.neurons"][0, 1:, 3].max()) for found in values)
    for corpus in (lines, folder):
        found = ask("neurons", tiny, "1.3", "--corpus", corpus, "--k", 1)
        assert found["scan"]["rows"] == 2
        assert found["texts"]["rows"][0][0] == pytest.approx(best, rel=1e-4)
