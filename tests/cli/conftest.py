import json
import os
import signal
import subprocess
import sys

import pytest

from pellucid.cli.main import run

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
WORDS = ["The capital of France is Paris.", "the cat sat on the mat and the dog", "1 2 3 user assistant system", " é ü"]


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    """A tiny random Llama, as Hugging Face makes it, and the folder that it was saved in."""
    import torch
    import transformers

    tokenizer = _tokenizer(transformers)
    torch.manual_seed(7)
    shape = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|end|>"),
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(shape).eval()
    folder = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer, str(folder)


def _tokenizer(transformers):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|start|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(WORDS * 4, trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


@pytest.fixture(scope="session")
def masked(tmp_path_factory):
    """A tiny random BERT, as Hugging Face makes it, its words, and the folder that it was saved in."""
    import torch
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "is", "the", "of", "france", "capital"]
    torch.manual_seed(3)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    shape = transformers.BertConfig(vocab_size=len(words), **sizes, max_position_embeddings=32, initializer_range=0.3)
    model = transformers.BertForMaskedLM(shape).eval()
    folder = tmp_path_factory.mktemp("masked")
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return model, words, str(folder)


@pytest.fixture(scope="session")
def translating(tmp_path_factory):
    """The folder of a tiny random Marian, as Hugging Face makes it."""
    import transformers

    import spm

    folder, words = tmp_path_factory.mktemp("translating"), spm.trained("unigram", vocab_size=120, byte_fallback=False)
    pieces = spm.processor(words)
    tokens = ["</s>", *(pieces.id_to_piece(id) for id in range(pieces.vocab_size())), "<pad>"]
    numbers = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(words)
    (folder / "vocab.json").write_text(json.dumps(numbers))
    ends = {"pad_token_id": numbers["<pad>"], "decoder_start_token_id": numbers["<pad>"], "eos_token_id": 0}
    sides = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes = {"d_model": 24, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 32, **sides}
    shape = transformers.MarianConfig(vocab_size=len(numbers), forced_eos_token_id=0, **ends, **sizes)
    transformers.MarianMTModel(shape).eval().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def tiny(oracle):
    return oracle[2]


@pytest.fixture
def call(capsys):
    """Run a command in this process; its exit code, stdout and stderr."""

    def run_here(*arguments):
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run_here


@pytest.fixture
def ask(call):
    """Run a command with --json and return its object; nothing else may be said."""

    def run_here(*arguments):
        code, out, err = call(*arguments, "--json")
        assert (code, err) == (0, "")
        assert out.count("\n") == 1
        return json.loads(out)

    return run_here


@pytest.fixture
def start():
    """Start `python -m pellucid` as a process of its own, killed when the test ends."""
    started = []

    def popen(*arguments, **options):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(
            [sys.executable, "-m", "pellucid", *map(str, arguments)],
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            **{**pipes, "env": {**os.environ, "PYTHONIOENCODING": "utf-8", "TERM": "xterm"}, **options},
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()
