"""The commands on a real model, by its known name."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("smollm2_path")]

PROMPT = "The capital of France is"


def test_paris(call):
    code, out, err = call("run", "smollm2", PROMPT, "--max-new-tokens", 12, "--temperature", 0)
    assert (code, err) == (0, "")
    assert out.startswith(" Paris")


def test_paris_is_explained(ask):
    found = ask("explain", "smollm2", PROMPT, "--minus", " London")
    assert found["top"]["rows"][0][1] == "␣Paris"
    assert len(found["lens"]["rows"]) == 31
    for ledger, entries in ((found["ledger"]["sublayer"], 61), (found["ledger"]["head"], 1 + 30 * 9 + 30)):
        assert len(ledger["entries"]) == entries
        assert sum(entry["amount"] for entry in ledger["entries"]) == pytest.approx(ledger["value"], abs=1e-4)


def test_its_parameters(ask):
    assert ask("params", "smollm2")["total"] == 134_515_008


def test_thirty_layers_stay_readable(call):
    code, out, _ = call("trace", "smollm2", PROMPT)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert len(out.splitlines()) < 90
