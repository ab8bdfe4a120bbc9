import json
import re
import shutil

import pytest
import torch

PROMPT = "the cat sat on the"


def printed(table):
    """The amounts of a printed ledger: its entries, then the sum, the remainder and the logit."""
    return [float(number) for number in re.findall(r"(?m)^[\w=+].*? {2,}(-?\d[\d.e-]*)(?: |$)", table)]


def test_explain_says_what_the_oracle_says(oracle, ask):
    model, tokenizer, folder = oracle
    ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    chances = out.logits[0, -1].softmax(-1)
    found = ask("explain", folder, PROMPT, "--top", 3)
    columns = found["top"]["columns"]
    rows = [dict(zip(columns, row, strict=True)) for row in found["top"]["rows"]]
    assert [row["id"] for row in rows] == chances.topk(3).indices.tolist()
    assert [row["probability"] for row in rows] == pytest.approx(chances.topk(3).values.tolist(), abs=1e-5)
    for ledger in found["ledger"].values():
        amounts = [entry["amount"] for entry in ledger["entries"]]
        assert ledger["value"] == pytest.approx(float(out.logits[0, -1].max()), abs=1e-4)
        assert sum(amounts) == pytest.approx(ledger["sum"], abs=1e-9)
        assert ledger["sum"] + ledger["remainder"] == pytest.approx(ledger["value"], abs=1e-9)
        assert abs(ledger["remainder"]) < 1e-4
    assert len(found["lens"]["rows"]) == 4


def test_the_printed_columns_add_up(call, tiny):
    code, out, err = call("explain", tiny, PROMPT, "--entries", 4)
    assert (code, err) == (0, "")
    ledgers = [part for part in out.split("\n\n") if part.startswith("logit of")]
    assert len(ledgers) == 2
    for ledger in ledgers:
        body = ledger.split("─\n", 1)[1]
        *entries, total, remainder, logit = printed(body)
        assert len(entries) == 5  # the four largest, and the others as one
        assert sum(entries) == pytest.approx(total, abs=0.005)
        assert total + remainder == pytest.approx(logit, abs=0.002)


def test_a_difference_of_two_tokens(oracle, ask):
    model, tokenizer, folder = oracle
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer.encode(PROMPT, add_special_tokens=False)])).logits[0]
    a, b = (tokenizer.encode(text, add_special_tokens=False)[0] for text in ("a", "b"))
    found = ask("explain", folder, PROMPT, "--token", "a", "--minus", "b", "--position", 0)
    assert found["ledger"]["head"]["value"] == pytest.approx(float(logits[0, a] - logits[0, b]), abs=1e-4)
    assert found["position"] == 0


def test_a_token_that_is_several_is_one_line(call, tiny):
    code, out, err = call("explain", tiny, PROMPT, "--token", "zebra")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "zebra" in err


@pytest.mark.parametrize("words", [["trace"], ["explain"]])
def test_a_position_that_is_not_there_is_one_line(call, tiny, words):
    code, out, err = call(*words, tiny, PROMPT, "--position", 99)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "99" in err


def test_trace_shows_the_stages_in_order(oracle, ask):
    model, tokenizer, folder = oracle
    found = ask("trace", folder, PROMPT, "--layers", "all", "--values")
    stages = {stage["site"]: stage for stage in found["stages"]}
    sites = [site["site"] for site in ask("sites", folder)["sites"]]
    assert list(stages) == sites
    ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    for layer in range(3):
        assert stages[f"{layer}.stream"]["values"] == pytest.approx(out.hidden_states[layer][0, -1].tolist(), abs=1e-4)
    assert stages["logits"]["shape"] == [1, len(ids), model.config.vocab_size]
    assert stages["logits"]["norm"] == pytest.approx(float(out.logits[0, -1].norm()), rel=1e-4)
    assert found["tokens"][-1] == "␣the"


def test_layers_that_are_not_chosen_show_their_stream(ask, tiny):
    found = [stage["site"] for stage in ask("trace", tiny, PROMPT, "--layers", "1")["stages"]]
    assert "1.attention.pattern" in found
    assert [name for name in found if name[0] in "02"] == ["0.stream", "2.stream"]
    default = [stage["site"] for stage in ask("trace", tiny, PROMPT)["stages"]]
    assert "0.ffn.up" in default
    assert "2.ffn.up" in default
    assert [name for name in default if name[0] == "1"] == ["1.stream"]


def test_sites_are_chosen_by_patterns(ask, call, tiny):
    found = ask("trace", tiny, PROMPT, "--sites", "1.attention.*", "--sites", "*.ffn.up")["stages"]
    names = [stage["site"] for stage in found]
    assert names[0] == "0.ffn.up"
    assert names[-1] == "2.ffn.up"
    assert "1.attention.pattern" in names
    code, out, err = call("trace", tiny, PROMPT, "--sites", "1.attn.*")
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("words", [["trace", "--layers", "all"], ["explain", "--minus", "b"]])
def test_pictures_fit_80_columns_without_colours(call, tiny, words):
    command, *options = words
    code, out, err = call(command, tiny, PROMPT, *options)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert "\x1b" not in out


def test_explain_looks_at_the_mask_where_masks_are_filled(masked, ask, call):
    """The first of two masks, held against Hugging Face; the ledger names the token, and adds up to what it reads."""
    model, words, folder = masked
    text = "paris is [MASK] capital of [MASK]"
    ids = [2, *(words.index(word) for word in text.split()), 3]
    with torch.no_grad():
        chances = model(torch.tensor([ids])).logits[0, 3].softmax(-1)
    found = ask("explain", folder, text, "--top", 3)
    assert found["position"] == 3
    assert [row[2] for row in found["top"]["rows"]] == chances.topk(3).indices.tolist()
    best = words[int(chances.argmax())]
    assert found["ledger"]["head"]["of"] == f"final stream along the direction of {best}"
    code, out, err = call("explain", folder, text, "--minus", "is")
    assert (code, err) == (0, "")
    assert out.startswith("[CLS] paris is » [MASK] « capital of [MASK] [SEP]\n")
    assert f"along the direction of {best} minus is, by head" in out
    assert ask("explain", folder, text, "--position", -1)["position"] == 7
    assert ask("explain", folder, "paris is")["position"] == 3


def test_explain_of_a_model_that_continues_looks_at_the_last_token(ask, tiny):
    found = ask("explain", tiny, PROMPT)
    assert found["position"] == len(found["tokens"]) - 1


@pytest.mark.parametrize("words", [["trace"], ["explain"]])
def test_an_encoder_needs_a_source(call, ask, translating, words):
    code, out, err = call(*words, translating, "the cat")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--source TEXT" in err
    assert ask(*words, translating, "the cat", "--source", "hello")["tokens"][0] == "<pad>"


@pytest.mark.parametrize("words", [["trace"], ["explain"]])
def test_an_empty_prompt_is_begun_as_run_begins_it(call, ask, tiny, tmp_path, words):
    code, out, err = call(*words, tiny, "")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the prompt is empty" in err
    shutil.copytree(tiny, tmp_path / "begun")
    settings = tmp_path / "begun" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"bos_token": "<|start|>"}))
    assert ask(*words, tmp_path / "begun", "")["tokens"] == ["<|start|>"]
    assert ask("run", tmp_path / "begun", "", "--max-new-tokens", 1)["prompt_ids"] == [0]


def test_a_lone_star_is_every_site(ask, tiny):
    found = ask("trace", tiny, PROMPT, "--sites", "*")["stages"]
    assert [stage["site"] for stage in found] == [site["site"] for site in ask("sites", tiny)["sites"]]


@pytest.mark.parametrize("option", ["--token", "--minus"])
def test_a_token_of_bytes_that_are_no_text_is_refused(call, tiny, option):
    code, out, err = call("explain", tiny, PROMPT, option, "\udcff")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{option} is not valid text" in err


def test_a_source_of_bytes_that_are_no_text_is_refused(call, translating):
    for name in ("trace", "explain"):
        code, out, err = call(name, translating, "the cat", "--source", "\udcff")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "--source is not valid text" in err


def test_explain_splits_as_it_is_asked(ask, tiny, call):
    found = ask("explain", tiny, PROMPT, "--by", "neuron", "--by", "source")
    tokens = found["tokens"]
    assert list(found["ledger"]) == ["neuron", "source"]
    neurons = [entry["written by"] for entry in found["ledger"]["neuron"]["entries"]]
    assert "2.ffn neuron 39" in neurons
    sources = [entry["written by"] for entry in found["ledger"]["source"]["entries"]]
    assert sources[1 : 1 + len(tokens)] == [f"position {at} ({token})" for at, token in enumerate(tokens)]
    for ledger in found["ledger"].values():
        assert ledger["sum"] + ledger["remainder"] == pytest.approx(ledger["value"], abs=1e-9)
        assert abs(ledger["remainder"]) < 1e-4
    code, out, err = call("explain", tiny, PROMPT, "--by", "layer")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "'sublayer', 'head', 'neuron', 'source' or 'head and source', got 'layer'" in err


def test_explain_checks_itself_by_running_without_the_largest_writers(oracle, ask, call):
    """The oracle's own model, its largest sublayer's output made zero at the last token by a hook."""
    model, tokenizer, folder = oracle
    ids = torch.tensor([tokenizer.encode(PROMPT, add_special_tokens=False)])
    found = ask("explain", folder, PROMPT, "--by", "sublayer", "--check")
    table = found["check"]["sublayer"]
    rows = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}
    name = next(name for name in rows if name[0].isdigit())
    layer, part = name.split(".")
    module = getattr(model.model.layers[int(layer)], {"attention": "self_attn", "ffn": "mlp"}[part])
    token = found["top"]["rows"][0][2]

    def silence(_module, _given, out):
        first = out[0] if isinstance(out, tuple) else out
        first = first.index_fill(1, torch.tensor([ids.shape[1] - 1]), 0.0)
        return (first, *out[1:]) if isinstance(out, tuple) else first

    with torch.no_grad():
        before = model(ids).logits[0, -1, token]
        handle = module.register_forward_hook(silence)
        after = model(ids).logits[0, -1, token]
        handle.remove()
    assert rows[name]["happened"] == pytest.approx(float(after - before), abs=1e-4)
    entries = {entry["written by"]: entry["amount"] for entry in found["ledger"]["sublayer"]["entries"]}
    assert rows[name]["predicted"] == pytest.approx(-entries[name], abs=1e-9)
    assert "all 5 together" in rows
    assert "check" not in ask("explain", folder, PROMPT)
    code, out, err = call("explain", folder, PROMPT, "--check")
    assert (code, err) == (0, "")
    assert out.count("its largest writers taken away") == 2
    assert max(map(len, out.splitlines())) <= 80
