import json
import signal

import pytest

from pellucid.training.token_file import open_tokens

SMALL = [
    "steps=6", "schedule.warmup=2", "model.n_layers=1", "model.d_model=8", "model.n_heads=2", "data.length=8",
    "data.rows=2", "evaluate.every=3", "sample.every=6", "sample.tokens=12", "sample.prompt=the", "log.curve=false",
]  # fmt: skip


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("the cat sat on the mat. " * 12, encoding="utf-8")
    return path


@pytest.fixture
def options(tmp_path, text):
    def make(*changes):
        every = [*SMALL, f"folder={tmp_path / 'run'}", f"data.text={text}", *changes]
        return [part for change in every for part in ("--set", change)]

    return make


def refused(call, said, *arguments):
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_train_shows_losses_and_samples_and_saves_a_model(call, ask, options, tmp_path):
    code, out, err = call("train", *options())
    assert (code, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines() if "validation" in line] == ["3", "6"]
    assert "\nthe" in out
    assert out.endswith(f"The model is in {tmp_path / 'run' / 'model'}\n")
    found = ask("run", tmp_path / "run" / "model", "the", "--max-new-tokens", 3)
    assert found["prompt_ids"]


def test_train_as_json_is_one_object(ask, options, tmp_path):
    found = ask("train", *options())
    assert found["steps"] == 6
    assert found["best"] <= found["validation"]
    assert found["text"].startswith("the")
    assert found["model"] == str(tmp_path / "run" / "model")


def test_a_file_of_settings_and_its_folder(ask, text, tmp_path):
    tables = "".join(f"{change}\n" for change in SMALL if "sample.prompt" not in change)
    (tmp_path / "run.toml").write_text(
        f'{tables}sample.prompt = "the"\ndata.text = "{text}"\nfolder = "{tmp_path}/b"\n'
    )
    whole = ask("train", tmp_path / "run.toml")
    assert ask("train", tmp_path / "b", "--resume")["best"] == whole["best"]


def test_what_is_wrong_is_one_line(call, options, tmp_path):
    refused(call, "has no field 'lenght'; Data has length", "train", "--set", "data.lenght=3")
    refused(call, "no such file", "train", tmp_path / "absent.toml")
    refused(call, "no such file", "train", *options(f"data.text={tmp_path / 'absent.txt'}"))
    refused(call, "holds no run", "train", *options(f"folder={tmp_path / 'new'}"), "--resume")
    assert call("train", *options(f"folder={tmp_path / 'new'}"))[0] == 0
    refused(call, "holds a run: go on with it (--resume)", "train", *options(f"folder={tmp_path / 'new'}"))


@pytest.mark.slow
def test_ctrl_c_ends_after_the_step_and_resume_goes_on(start, ask, options, tmp_path):
    process = start("train", *options("steps=100000", "evaluate.every=5", "save.every=100000"))
    assert "validation" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "--resume goes on" in out.splitlines()[-1]
    steps = int(out.splitlines()[-1].split()[2])
    kept = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert int(kept[-1].name) == steps
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(steps))


def test_tokenize_writes_a_file_and_its_tokenizer(call, ask, text, tmp_path):
    found = ask("tokenize", tmp_path / "b.tokens", text)
    file = open_tokens(tmp_path / "b.tokens")
    assert found == {"path": str(file.path), "tokens": len(file), "documents": 1, "vocab_size": file.vocab_size}
    assert len(file) == len(text.read_text()) + 1
    code, out, err = call("tokenize", tmp_path / "c.tokens", text, "--tokenizer", "bpe", "--vocab-size", 270)
    assert (code, err) == (0, "")
    assert "tokens in 1 documents" in out
    used = ["data.text=[]", f"data.tokens={tmp_path / 'c.tokens'}", f"folder={tmp_path / 'run'}", *SMALL]
    assert ask("train", *[part for change in used for part in ("--set", change)])["steps"] == 6


def test_a_models_own_tokenizer_is_taken(ask, oracle, tiny, text, tmp_path):
    _, tokenizer, _ = oracle
    ask("tokenize", tmp_path / "b.tokens", text, "--tokenizer", tiny)
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert open_tokens(tmp_path / "b.tokens").tokens.tolist() == [*tokenizer.encode(text.read_text()), end]


def test_what_tokenize_refuses_is_one_line(call, text, tmp_path):
    refused(call, "no such folder", "tokenize", tmp_path / "absent" / "a.tokens", text)
    refused(call, "no such file", "tokenize", tmp_path / "a.tokens", tmp_path / "absent.txt")
    refused(call, "two sources", "tokenize", tmp_path / "a.tokens", text, "--dataset", "a/b")
    refused(call, "needs 257 tokens", "tokenize", tmp_path / "a.tokens", text, "--tokenizer", "bpe", "--vocab-size", 9)
    refused(call, "jobs must be 0", "tokenize", tmp_path / "a.tokens", text, "--jobs", -1)
