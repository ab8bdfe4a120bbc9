"""Prompts in, text out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.generation import Piece, Sampling, Watch, generate, stream
from pellucid.model.config import Config, Init
from pellucid.model.rotary import DynamicNTK, Rotary
from tiny import build, tiny_gpt2

EOS = 49


def pieces_of(texts: list[str]) -> list[bytes]:
    """A vocabulary of 50 that begins with these, and ends with an end token."""
    pieces = [text.encode() for text in texts]
    return [*pieces, *(b"<%d>" % i for i in range(len(pieces), EOS)), b"<end>"]


@pytest.mark.parametrize(
    ("said", "stop", "text", "reason"),
    [
        ("DEF|G|HI|J", "DEFGHIJ", "", "stop"),
        ("DEF|GH|IK", "DEFGHIJ", "DEFGHIK", "length"),
        ("The| quick| brown| fox| jumps", "own fox", "The quick br", "stop"),
        ("ple|as|<end>", "assistant", "pleas", "stop"),
        ("one|,| two|,| three|,| four|,| five|,| six", "five", "one, two, three, four, ", "stop"),
        ("aa|ab", "aab", "a", "stop"),
        ("abab|ac", "abac", "ab", "stop"),
    ],
)
def test_srv_2_stop_strings(words, saying, said, stop, text, reason):
    tokens = said.split("|")
    pieces = pieces_of([token for token in dict.fromkeys(tokens) if token != "<end>"])
    tokenizer = words(pieces, eos_ids=(EOS,))
    ids = [pieces.index(token.encode()) for token in tokens]
    sampling = Sampling(max_new_tokens=len(ids), stop=(stop,))
    looks = saying(ids, start=2)
    found = generate(tiny_gpt2(), tokenizer, [[1, 2]], sampling, Watch(looks))[0]
    assert (found.text, found.finish_reason) == (text, reason)
    assert list(found.ids) == ids[: len(found.ids)]
    streamed = list(stream(tiny_gpt2(), tokenizer, [1, 2], sampling, Watch(looks)))
    assert "".join(piece.text for piece in streamed) == text
    assert [piece.finish_reason for piece in streamed] == [None] * (len(found.ids) - 1) + [reason]


def test_a_stop_string_ends_the_row_at_once(words, saying):
    pieces = pieces_of(["a", "b", "c"])
    found = generate(tiny_gpt2(), words(pieces), [[1]], Sampling(stop=("b",)), Watch(saying([0, 1, 2], start=1)))[0]
    assert (found.text, found.ids, found.finish_reason) == ("a", (0, 1), "stop")


def test_a_stop_id_is_in_the_ids_and_not_in_the_text(words, saying):
    tokenizer = words(pieces_of(["a", "b"]), eos_ids=(EOS, 60))
    looks = saying([0, 1, EOS, 0], start=1)
    found = generate(tiny_gpt2(), tokenizer, [[1]], None, Watch(looks))[0]
    assert (found.text, found.ids, found.finish_reason) == ("ab", (0, 1, EOS), "stop")
    assert len(found.logprobs) == 3
    found = generate(tiny_gpt2(), tokenizer, [[1]], Sampling(stop_ids=(1,)), Watch(looks))[0]
    assert (found.text, found.ids) == ("a", (0, 1))


@pytest.mark.parametrize(
    ("ids", "deltas", "text"),
    [
        ([8582, 240, 102], ["", "", "\N{PILE OF POO}"], "\N{PILE OF POO}"),
        ([8582, 240], ["", "\ufffd"], "\ufffd"),
        ([4210], ["\ufffd"], "\ufffd"),
        ([166, 116, 108], ["", "", "\uae30"], "\uae30"),
    ],
)
def test_srv_1_streams_hold_half_characters(gpt2_words, saying, ids, deltas, text):
    model = tiny_gpt2(vocab_size=50257, d_model=8, n_heads=2, n_layers=1)
    sampling, looks = Sampling(max_new_tokens=len(ids)), saying(ids, start=1)
    assert [piece.text for piece in stream(model, gpt2_words, [11], sampling, Watch(looks))] == deltas
    assert generate(model, gpt2_words, [[11]], sampling, Watch(looks))[0].text == text


def test_srv_1_joined_deltas_are_the_full_decode(gpt2_words):
    model = tiny_gpt2(vocab_size=50304, d_model=8, n_heads=2, n_layers=1)
    # The single bytes of the vocabulary, many of them halves of characters, and some whole words.
    some = dict.fromkeys([*range(94, 256), *range(1000, 1100)], 60.0)
    sampling = Sampling(max_new_tokens=15, temperature=3.0, seed=0, logit_bias=some)
    for row, found in enumerate(generate(model, gpt2_words, ["Hello", " there you"] * 10, sampling)):
        assert found.text == gpt2_words.decode(found.ids)
        assert "\ufffd" in found.text or row > 0
        assert found.prompt_ids == tuple(gpt2_words.encode(["Hello", " there you"][row % 2]))


def test_gen_4_a_padded_vocabulary_gives_only_ids_with_text(gpt2_words):
    model = tiny_gpt2(vocab_size=50304, d_model=8, n_heads=2, n_layers=1)

    def favour_padding(value, _place, _keys):
        value = torch.zeros_like(value)
        value[..., 50300], value[..., 11] = 100.0, 1.0
        return value

    looks = {"logits": favour_padding}
    assert generate(model, gpt2_words, [[11]], Sampling(max_new_tokens=3), Watch(looks))[0].ids == (11, 11, 11)
    sampling = Sampling(max_new_tokens=15, temperature=2.0, seed=0)
    drawn = [id for found in generate(model, gpt2_words, [[11]] * 20, sampling, Watch(looks)) for id in found.ids]
    assert max(drawn) < 50257


def test_gen_5_an_empty_prompt_starts_from_bos(words, gpt2_words):
    model = tiny_gpt2(vocab_size=50257, d_model=8, n_heads=2, n_layers=1)
    sampling = Sampling(max_new_tokens=3)
    empty, ids, explicit = generate(model, gpt2_words, ["", [], [50256]], sampling)
    assert empty.prompt_ids == (50256,)
    assert empty == ids == explicit
    assert len(empty.ids) == len(empty.logprobs)


def test_gen_5_an_empty_prompt_without_bos_is_refused(words):
    for prompt in ("", []):
        with pytest.raises(ValueError, match="prompt 0 is empty"):
            generate(tiny_gpt2(), words(pieces_of([])), [prompt])
        with pytest.raises(ValueError, match="prompt 0 is empty"):
            stream(tiny_gpt2(), words(pieces_of([])), prompt)
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        generate(tiny_gpt2(), None, [[]])


def test_pos_3_the_context_ends_generation(words):
    found = generate(tiny_gpt2(), words(pieces_of([])), [list(range(10))], Sampling(max_new_tokens=20))[0]
    assert (len(found.ids), found.finish_reason) == (6, "length")


@pytest.mark.parametrize("prompt", [[1, 2], list(range(16))])
def test_srv_3_no_new_tokens(words, prompt):
    sampling = Sampling(max_new_tokens=0 if len(prompt) == 2 else 5)
    found = generate(tiny_gpt2(), words(pieces_of([])), [prompt], sampling)[0]
    assert (found.text, found.ids, found.logprobs, found.finish_reason) == ("", (), (), "length")
    assert list(stream(tiny_gpt2(), words(pieces_of([])), prompt, sampling)) == []


@pytest.mark.slow
@settings(max_examples=20)
@given(
    st.lists(st.lists(st.integers(0, 49), min_size=1, max_size=14), min_size=1, max_size=4),
    st.lists(st.text("abc", min_size=1, max_size=3), max_size=2),
    st.integers(0, 1000),
)
def test_a_stream_is_the_batch_of_its_prompt(words, prompts, stops, seed):
    # Every token is a letter, two letters or half a character, so that stop strings and characters cross tokens.
    units = [b"a", b"b", b"c", b"ab", b"bc", "é".encode()[:1], "é".encode()[1:]]
    tokenizer = words([units[i % len(units)] for i in range(EOS)] + [b"<end>"], eos_ids=(EOS,))
    model, sampling = tiny_gpt2(), {"temperature": 2.0, "stop": tuple(stops), "max_new_tokens": 12}
    batch = generate(model, tokenizer, prompts, Sampling(**sampling, seed=seed))
    for row, (prompt, found) in enumerate(zip(prompts, batch, strict=True)):
        streamed = list(stream(model, tokenizer, prompt, Sampling(**sampling, seed=seed + row)))
        assert "".join(piece.text for piece in streamed) == found.text
        assert tuple(piece.id for piece in streamed) == found.ids
        assert [piece.logprob for piece in streamed] == pytest.approx(found.logprobs, abs=1e-10)
        assert streamed[-1].finish_reason == found.finish_reason
        assert not any(stop in found.text for stop in stops)


def test_lengths_that_rotate_apart_are_decoded_apart(words):
    positions = Rotary(100.0, scaling=DynamicNTK(2.0, 8))
    model = build(Config(50, 64, 2, 32, 4, positions=positions, init=Init(0.5)))
    prompts = [[1, 2], [3] * 20, [4, 5], [6, 7, 8]]
    sampling = {"max_new_tokens": 10, "temperature": 1.0}
    batch = generate(model, None, prompts, Sampling(**sampling, seed=5))
    alone = [generate(model, None, [prompt], Sampling(**sampling, seed=5 + i))[0] for i, prompt in enumerate(prompts)]
    assert [found.ids for found in batch] == [found.ids for found in alone]
    assert [found.prompt_ids for found in batch] == [tuple(prompt) for prompt in prompts]


def test_without_a_tokenizer_ids_go_in_and_out():
    found = generate(tiny_gpt2(), None, [[1, 2], [3]], Sampling(max_new_tokens=3))
    assert [(one.text, len(one.ids), one.prompt_ids) for one in found] == [("", 3, (1, 2)), ("", 3, (3,))]
    assert generate(tiny_gpt2(), None, []) == []
    with pytest.raises(ValueError, match="no tokenizer"):
        generate(tiny_gpt2(), None, ["a"])
    with pytest.raises(ValueError, match="need a tokenizer"):
        generate(tiny_gpt2(), None, [[1]], Sampling(stop=("a",)))


def test_one_text_in_place_of_a_list_is_refused(words):
    with pytest.raises(ValueError, match="put it in a list"):
        generate(tiny_gpt2(), words(pieces_of(["a"])), "aaa")


def test_a_stream_runs_only_as_far_as_it_is_read(words):
    calls = []

    def see(value, _place, _keys):
        calls.append(value.shape[1])
        return value

    pieces = stream(tiny_gpt2(), words(pieces_of([])), [1, 2], Sampling(max_new_tokens=9), Watch({"0.stream": see}))
    assert calls == []
    assert isinstance(next(pieces), Piece)
    next(pieces)
    pieces.close()
    assert calls == [2, 1]
