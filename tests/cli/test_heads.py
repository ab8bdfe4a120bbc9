import pytest
import torch

from pellucid.cli.heads import by_kind, every_head
from pellucid.inside.circuit_by_hand import START, induction_circuit
from pellucid.inside.grading import report_card


def test_heads_are_scored_as_the_library_does(ask, oracle):
    from pellucid.front import load

    _, _, folder = oracle
    found, model = ask("heads", folder, "--sequences", 2, "--seed", 3), load(folder)
    card = report_card(model.transformer, model.tokenizer, sequences=2, seed=3)
    assert found["heads"]["rows"] == card.to_json()["heads"]["rows"]
    assert len(found["heads"]["rows"]) == 3 * 4
    assert len(found["scores"]) == len(card.measures)
    inductive = found["scores"][0]
    assert (inductive["title"], inductive["text"]) == ("induction score", "repeated")
    assert [row[:3] for row in inductive["rows"]] == [
        [layer, head, pytest.approx(float(card.scores("induction").score[layer, head]))]
        for layer in range(3)
        for head in range(4)
    ]


def test_the_printed_card_is_readable(call, tiny):
    code, out, err = call("heads", tiny, "--sequences", 2, "--layers", "all")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    parts = out.split("\n\n")
    assert [part.partition("\n")[0] for part in parts] == ["heads by kind", "heads", "scores and their nulls"]
    assert len(parts[1].splitlines()) == 3 + 12


def test_kinds_name_their_strongest_heads():
    card = report_card(induction_circuit(), start=START)
    rows = {row[0]: row[1:] for row in by_kind(card, 8)}
    assert rows["induction"][0::2] == (1, "1.0 1.00")
    assert rows["previous token"][0::2] == (1, "0.1 1.00")
    assert rows["none of these"][0] == 2
    table = every_head(card, [1])
    assert table.columns == ("layer", "head", "kind", "prev", "dup", "induct", "first", "entropy", "copy")
    assert table.rows[0][:3] == (1, 0, "induction")
    assert table.column("induct") == tuple(card.scores("induction").score[1].tolist())
    assert table.column("prev") == tuple(card.scores("previous token").score[1].tolist())


def test_layers_that_are_not_there_are_one_line(call, tiny):
    code, out, err = call("heads", tiny, "--layers", "9")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert torch.is_grad_enabled()
