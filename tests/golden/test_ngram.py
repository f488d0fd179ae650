"""Look-ups in the published `.trie` format, and in the same counts made by us, against the paper's code."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dart_core.ngram.build import build_ngram, merge_ngrams
from dart_core.ngram.model import load_ngram
from dart_core.ngram.trie import import_trie
from kernels.ngram_lookup import NgramTable, ngram_lookup, ngram_lookup_reference

NGRAM = Path(__file__).parents[1] / "data/golden/ngram"
GOLDEN: dict[str, Any] = json.loads((NGRAM / "queries.json").read_text())
CONVERSATIONS: list[list[int]] = GOLDEN["conversations"]


def made(source: str, name: str, directory: Path) -> NgramTable:
    """The table `name` of queries.json, imported from its trie or counted from the conversations."""
    path, order = directory / "out.ngram", int(name[-1])
    if name.startswith("merged"):
        halves = [directory / "a.ngram", directory / "b.ngram"]
        build_ngram(CONVERSATIONS[::2], order, halves[0])
        build_ngram(CONVERSATIONS[1::2], order, halves[1])
        merge_ngrams(halves, path)
    elif source == "trie":
        import_trie(NGRAM / f"{name}.trie", path)
    else:
        build_ngram(CONVERSATIONS, order, path)
    return load_ngram(path)


@pytest.mark.parametrize("lookup", [ngram_lookup, ngram_lookup_reference])
@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("trie", "order3"),
        ("trie", "order4"),
        ("text", "order3"),
        ("text", "order4"),
        ("text", "merged_order3"),
    ],
)
def test_queries(source: str, name: str, lookup: Any, tmp_path: Path) -> None:
    table = made(source, name, tmp_path)
    for query in GOLDEN["queries"]:
        probability, length = lookup(table, torch.tensor([query["context"]]), torch.tensor([query["tokens"]]))
        expected = query[name]
        torch.testing.assert_close(probability[0], torch.tensor(expected["probability"]), atol=0, rtol=1e-6)
        assert length[0].tolist() == expected["matched_length"]


@pytest.mark.parametrize("name", ["order3", "order4"])
def test_trie_and_text_give_one_model(name: str, tmp_path: Path) -> None:
    """Counting the conversations gives the very arrays that the published trie holds."""
    imported, built = (made(source, name, tmp_path) for source in ("trie", "text"))
    for field in ("bucket", "context", "first", "total", "token", "count"):
        assert torch.equal(getattr(imported, field), getattr(built, field)), field


def test_reduced_trie(tmp_path: Path) -> None:
    """The paper's `reduce` leaves contexts counted less often than what follows them: q stays at most 1."""
    import_trie(NGRAM / "order3_reduced3.trie", tmp_path / "out.ngram")
    table = load_ngram(tmp_path / "out.ngram")
    assert len(table.token) == 191 + 141 - 99  # pairs and triples, less the pairs whose count it took down to 0
    for row in range(len(table.context)):
        counts = table.count[table.first[row] : table.first[row + 1]]
        assert (counts > 0).all()
        assert counts.sum() <= table.total[row]
