"""Instruction tuning: the assistant's words and the end after them are learnt, nothing else."""

import json

import pytest
import torch

import pellucid
from pellucid.model.config import Config
from pellucid.model.transformer import Transformer
from pellucid.text import TextError, Tokenizer
from pellucid.training.batch import NO_TARGET
from pellucid.training.conversations import answers
from pellucid.training.run import Run
from pellucid.training.settings import read_run
from pellucid.training.vocabulary import train_bpe
from pellucid.weights.safetensors_file import open_safetensors
from pellucid.weights.saving import save_checkpoint

CHATML = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
OPEN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"  # noqa: E501
FORGETFUL = "{% for message in messages %}{% if loop.last or message.role == 'user' %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"  # noqa: E501
TALK = [
    {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Good day!"}, {"role": "user", "content": "Bye<|end|>"},
    {"role": "assistant", "content": "Farewell."},
]  # fmt: skip


def files(template=CHATML, end="<|end|>"):
    made = train_bpe(
        ["Be kind. Hello Good day! Bye Farewell. user assistant system"] * 9, 300, ["<|start|>", "<|end|>"]
    )
    settings = json.loads(made["tokenizer_config.json"])
    settings |= {"eos_token": end, "chat_template": template}
    return {**made, "tokenizer_config.json": json.dumps(settings).encode()}


def tokenizer(folder, **settings) -> Tokenizer:
    for name, content in files(**settings).items():
        (folder / name).write_bytes(content)
    return Tokenizer.from_folder(folder)


def learnt(words, messages):
    """The texts of the runs of ids that are learnt."""
    ids, flags = answers(words, messages)
    assert len(ids) == len(flags)
    runs, before = [], 0
    for id, flag in zip(ids, flags, strict=True):
        if flag and not before:
            runs.append([])
        if flag:
            runs[-1].append(id)
        before = flag
    return [words.decode(run) for run in runs]


def test_what_the_assistant_says_and_its_end_are_learnt(tmp_path):
    words = tokenizer(tmp_path)
    assert learnt(words, TALK) == ["Good day!<|end|>", "Farewell.<|end|>"]
    ids, flags = answers(words, TALK)
    assert ids == words.encode_chat(TALK, add_generation_prompt=False)
    # complaint 9: the id that ends a text is a target, though it is also what others pad with
    assert [ids[n] for n in range(1, len(ids)) if flags[n] and not (flags[n + 1])] == [words.eos_ids[0]] * 2


def test_the_prompt_of_an_answer_is_all_that_stands_before_it(tmp_path):
    words = tokenizer(tmp_path)
    ids, flags = answers(words, TALK[:3])
    first = flags.index(1)
    assert ids[:first] == words.encode_chat(TALK[:2], add_generation_prompt=True)


def test_where_a_template_writes_no_end_it_is_put_there(tmp_path):
    words = tokenizer(tmp_path, template=OPEN, end="<|endoftext|>")
    assert learnt(words, TALK[:3])[-1].endswith("Good day!\n<|endoftext|>")
    assert learnt(words, TALK[:4])[-1].endswith("Good day!\n")


def test_an_answer_that_begins_with_a_blank_line_is_learnt_from_there(tmp_path):
    words = tokenizer(tmp_path)
    blank = [*TALK[:2], {"role": "assistant", "content": "\n\nGood"}]
    (told,) = learnt(words, blank)
    assert told.endswith("Good<|end|>")
    assert told.strip("\n") == "Good<|end|>"


def test_what_cannot_be_learnt_from_is_told(tmp_path):
    words = tokenizer(tmp_path)
    with pytest.raises(TextError, match="no message is the assistant's"):
        answers(words, TALK[:2])
    (tmp_path / "other").mkdir()
    with pytest.raises(TextError, match="message 2: the chat template writes it otherwise"):
        answers(tokenizer(tmp_path / "other", template=FORGETFUL), TALK)


# --- Runs ---

SMALL = [
    "steps=6", "data.length=64", "data.rows=2", "evaluate.every=3", "sample.every=0", "save.every=2",
    "schedule.warmup=2", "log.curve=false", "objective=instruction", "data.validation=0.2",
]  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("start") / "model"
    model = Transformer(Config(vocab_size=300, context_length=64, n_layers=1, d_model=8, n_heads=2))
    return save_checkpoint(folder, model, beside=files())


@pytest.fixture
def run(tmp_path, start):
    path = tmp_path / "talks.jsonl"
    lines = [{"messages": [*TALK[: 3 + 2 * (n % 2)]]} for n in range(10)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def make(name, *changes, resume=False):
        every = [*SMALL, f"data.text={path}", f"model.start={start}", f"folder={tmp_path / name}", *changes]
        return Run(read_run(None, every), resume=resume)

    return make


@pytest.mark.parametrize("order", ["documents", "packed"])
def test_trn_3_instruction_tuning_goes_on_as_if_it_had_not_stopped(run, tmp_path, order):
    whole, stopped = run("whole", f"data.order={order}"), run("stopped", f"data.order={order}")
    reports = list(whole)
    for _ in zip(range(3), stopped, strict=False):
        stopped.stop()
    list(run("stopped", f"data.order={order}", resume=True))
    one, other = (
        dict(open_safetensors(tmp_path / name / "checkpoints" / "00000006" / "weights.safetensors"))
        for name in ("whole", "stopped")
    )
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert reports[-1].validation is not None
    targets = [id for step in range(10) for id in whole.reader(step).targets.flatten().tolist() if id != NO_TARGET]
    assert set(whole.tokenizer.decode(targets).replace("<|end|>", "|").split("|")) == {"Good day!", "Farewell.", ""}
    model = pellucid.load(whole.export())
    assert model.tokenizer.chat_template is not None


def test_validation_keeps_whole_conversations_back(run):
    made = run("a")
    (batch,) = [batch() for batch in made.held_back]
    rows = int((batch.ids == made.tokenizer.id_of("<|start|>")).sum())
    assert rows > 0
    assert (made.reader.span.first, made.reader.span.last) == (0, int(made.reader.span.file.ends[7]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data.field=talk"], "line 1: expected a list of messages under 'talk', got messages"),
        (["data.order=windows"], "data.order must be documents or packed"),
        (["data.text=[]"], "name them under data.text"),
        (["data.validation=0.95"], "of 10 examples none is left to train on"),
    ],
)
def test_what_does_not_fit_is_refused(run, changes, said):
    with pytest.raises(ValueError, match=said):
        run("b", *changes)
