"""From text to token files: documents, vocabularies, and the same file by one process or several."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from pellucid.text import TextError, Tokenizer
from pellucid.training import documents, tokenizing
from pellucid.training.documents import corpus_of, hub_dataset, standard_library, texts
from pellucid.training.tokenizing import tokenize
from pellucid.training.vocabulary import fingerprint, ids_needed, train_bpe, train_characters, write_files

TEXT = "The cat sat on the mat. Ångström, naïve 東京 🙂\r\n\tThe cat sat.\n"


def read(*arguments, **options):
    return list(texts(corpus_of(*arguments, **options).read()))


# --- Documents ---


def test_a_folder_is_read_in_order_and_at_any_depth(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.txt").write_text("second", encoding="utf-8")
    (tmp_path / "a.md").write_text("first", encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"text": "third"}\n\n{"text": "fourth", "n": 1}\n', encoding="utf-8")
    (tmp_path / "d.bin").write_bytes(b"\xff")
    assert read([tmp_path]) == ["first", "second", "third", "fourth"]
    assert read([tmp_path], suffixes=[".txt"]) == ["second"]
    corpus = corpus_of([tmp_path])
    assert sum(document.size for document in corpus.read()) == corpus.size - 1  # but for the empty line


def test_text_comes_as_it_is_written(tmp_path):
    (tmp_path / "a").write_bytes(TEXT.encode())
    assert read([tmp_path / "a"]) == [TEXT]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.txt", b"ab\xffc", r"a\.txt: not UTF-8 text \(byte 2 is 0xff\)"),
        ("a.jsonl", b'{"text": "a"}\n{"text": ', "line 2: not valid JSON"),
        ("a.jsonl", b'{"other": "a"}', "line 1: expected an object with a text under 'text', got the keys 'other'"),
        ("a.jsonl", b'{"text": 3}', "line 1: expected an object with a text"),
        ("a.jsonl", b"[1]", "got list"),
        ("a.jsonl", b"[" * 100_000, "line 1: not valid JSON"),
        ("a.jsonl", b'{"text": "\xff"}', "line 1: not UTF-8"),
    ],
)
def test_what_is_no_text_is_refused_in_one_line(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=said) as caught:
        read([tmp_path / name])
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="absent: no such file"):
        read([tmp_path / "absent"])
    with pytest.raises(ValueError, match="no files that end in"):
        read([tmp_path])


def test_the_standard_library_is_text_without_its_tests():
    corpus = standard_library()
    found = list(corpus.read())
    assert sum(document.size for document in found) == corpus.size > 1_000_000
    assert any('"""Read from and write to tar format archives.' in document.text for document in found)
    assert not any("class TestCase" in document.text and "test.support" in document.text for document in found)


def test_a_data_set_needs_its_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install datasets"):
        hub_dataset("a/b")


def test_a_data_sets_rows_are_documents(monkeypatch):
    class Rows(list):
        column_names = ("text", "id")

    class Package:
        @staticmethod
        def load_dataset(name, split):
            return Rows([{"text": f"{name} {split}", "id": 1}, {"text": "two", "id": 2}])

    monkeypatch.setitem(__import__("sys").modules, "datasets", Package)
    assert list(texts(hub_dataset("a/b", "test").read())) == ["a/b test", "two"]
    with pytest.raises(ValueError, match="no column 'body'; it has text, id"):
        hub_dataset("a/b", field="body")


# --- Vocabularies ---


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_characters_are_tokens(tmp_path_factory, text):
    tokenizer = write_files(tmp_path_factory.mktemp("words"), train_characters([text]))
    ids = tokenizer.encode(text, bos=False)
    assert [tokenizer.bytes_of(id).decode() for id in ids] == list(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.vocab_size == len(set(text)) + 1
    assert tokenizer.eos_ids == (0,)


def test_a_character_that_is_not_in_the_vocabulary_is_refused(tmp_path):
    tokenizer = write_files(tmp_path, train_characters(["abc"]))
    (tmp_path / "a.txt").write_text("abcdab", encoding="utf-8")
    with pytest.raises(TextError, match=r"no token for 'd' \(at character 3"):
        tokenize(tmp_path / "a", tokenizer, corpus_of([tmp_path / "a.txt"]))
    with pytest.raises(ValueError, match="no characters"):
        train_characters([""])


def test_bpe_is_what_the_tokenizers_library_makes(tmp_path):
    ours = write_files(tmp_path, train_bpe([TEXT] * 3, 300))
    raw = tokenizers.ByteLevelBPETokenizer()
    raw.train_from_iterator([TEXT] * 3, 300, special_tokens=["<|endoftext|>"], show_progress=False, min_frequency=0)
    assert ours.encode(TEXT) == raw.encode(TEXT).ids
    assert ours.vocab_size == raw.get_vocab_size() <= 300
    assert ours.decode(ours.encode("never seen: ß")) == "never seen: ß"
    with pytest.raises(ValueError, match="needs 258 tokens"):
        train_bpe([TEXT], 257, ["[MASK]"])


def test_control_tokens_are_never_made_of_text(tmp_path):
    tokenizer = write_files(tmp_path, train_bpe([TEXT], 270, ["[MASK]"]))
    assert tokenizer.control_ids == {0, 1}
    assert tokenizer.mask_id is None or tokenizer.mask_id == 1
    assert {0, 1}.isdisjoint(tokenizer.encode("<|endoftext|>[MASK]"))
    assert tokenizer.encode("[MASK]<|endoftext|>", special=True) == [1, 0]


def test_fingerprints_tell_vocabularies_apart(tmp_path):
    def made(name, text):
        (tmp_path / name).mkdir()
        return write_files(tmp_path / name, train_characters([text]))

    assert fingerprint(made("a", "abc")) == fingerprint(made("b", "cba"))
    assert fingerprint(made("c", "abd")) != fingerprint(made("d", "abc"))


def test_ids_with_gaps_need_logits_up_to_the_last():
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 7}, unk_token=""))
    assert ids_needed(Tokenizer.from_json(library.to_str())) == 8


# --- Token files ---


@pytest.fixture
def words(tmp_path):
    (tmp_path / "words").mkdir()
    return write_files(tmp_path / "words", train_bpe([TEXT] * 2, 290))


def test_documents_end_with_the_end_of_a_text(tmp_path, words):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in ("one", "", TEXT)))
    seen = []
    file = tokenize(tmp_path / "a", words, corpus_of([tmp_path / "a.jsonl"], "body"), progress=seen.append)
    one, other = words.encode("one"), words.encode(TEXT)
    assert file.tokens.tolist() == [*one, 0, *other, 0]
    assert file.ends.tolist() == [len(one) + 1, len(one) + len(other) + 2]
    assert (file.vocab_size, file.fingerprint) == (290, fingerprint(words))
    assert sum(seen) == (tmp_path / "a.jsonl").stat().st_size


def test_several_processes_write_the_same_file(tmp_path, words, monkeypatch):
    monkeypatch.setattr(tokenizing, "TASK_BYTES", 100)
    for number in range(12):
        (tmp_path / f"{number:02}.txt").write_text(f"{number} " * number + TEXT, encoding="utf-8")
    corpus, seen = corpus_of([tmp_path], suffixes=[".txt"]), []
    tokenize(tmp_path / "alone", words, corpus, jobs=1)
    tokenize(tmp_path / "together", words, corpus, jobs=2, progress=seen.append)
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "together").read_bytes()
    assert sum(seen) == corpus.size
    (tmp_path / "99.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"99\.txt: not UTF-8"):
        tokenize(tmp_path / "bad", words, corpus_of([tmp_path], suffixes=[".txt"]), jobs=2)
    assert not (tmp_path / "bad").exists()


def test_wrong_numbers_of_jobs_are_refused(tmp_path, words):
    with pytest.raises(ValueError, match="jobs must be 0"):
        tokenize(tmp_path / "a", words, documents.standard_library(), jobs=-1)
