"""Counting out of core against counting in a dictionary."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from dart_core.ngram import build, write
from dart_core.ngram.__main__ import main
from dart_core.ngram.build import build_ngram, merge_ngrams
from dart_core.ngram.model import load_ngram
from kernels.ngram_lookup import NgramTable, context_key, find_contexts, key_context, ngram_lookup
from models.errors import ModelError, UsageError


def documents(count: int, seed: int = 0, vocab_size: int = 12) -> list[list[int]]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 60, (count,), generator=random).tolist()
    return [torch.randint(vocab_size, (n,), generator=random).square().div(4).int().tolist() for n in lengths]


def counted(texts: list[list[int]], longest: int) -> Counter[tuple[int, ...]]:
    """Every n-gram of 1 to `longest` tokens."""
    return Counter(
        tuple(text[i : i + n]) for text in texts for n in range(1, longest + 1) for i in range(len(text) - n + 1)
    )


def pairs_of(table: NgramTable, grams: Counter[tuple[int, ...]], order: int) -> dict[tuple[int, ...], int]:
    """The table's count of each n-gram of 2 to `order` tokens that it holds, checking its context's total."""
    found = {}
    for gram in grams:
        if not 2 <= len(gram) <= order:
            continue
        row, known = find_contexts(table, context_key(torch.tensor([gram[:-1]])))
        if not bool(known):
            continue
        assert int(table.total[row]) == grams[gram[:-1]]
        start, end = int(table.first[int(row)]), int(table.first[int(row) + 1])
        tokens = table.token[start:end].tolist()
        assert tokens == sorted(set(tokens))
        if gram[-1] in tokens:
            found[gram] = int(table.count[start + tokens.index(gram[-1])])
    return found


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_counts(order: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing missing, nothing added, in chunks that cut documents apart from one another."""
    monkeypatch.setattr(build, "_CHUNK", 100)
    monkeypatch.setattr(write, "_BLOCK", 7)
    texts = documents(60)
    build_ngram(texts, order, tmp_path / "a.ngram")
    table = load_ngram(tmp_path / "a.ngram")
    grams = counted(texts, order)
    expected = {gram: count for gram, count in grams.items() if len(gram) >= 2}
    assert pairs_of(table, grams, order) == expected
    assert len(table.token) == len(expected)


def test_merge_is_counting_together(tmp_path: Path) -> None:
    end = [0, 0, 0]  # what a document ends with, and is followed by something in both parts
    texts = [[*text, *end] for text in documents(40)]
    texts[0] = texts[39] = 2 * end
    for name, part in (("a", texts[:13]), ("b", texts[13:]), ("whole", texts)):
        build_ngram(part, 4, tmp_path / name)
    merge_ngrams([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    merged, whole = load_ngram(tmp_path / "merged"), load_ngram(tmp_path / "whole")
    for one, other in zip(merged.arrays, whole.arrays, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("most", [1, 5, 37, 150])
def test_max_entries_keeps_the_most_frequent(most: int, tmp_path: Path) -> None:
    texts = documents(40)
    build_ngram(texts, 3, tmp_path / "a.ngram", max_entries=most)
    table = load_ngram(tmp_path / "a.ngram")
    grams = counted(texts, 3)
    kept = pairs_of(table, grams, 3)
    assert len(table.token) == len(kept) == most
    dropped = [gram for gram in grams if len(gram) > 1 and gram not in kept]
    worst_kept = min((count, -len(gram)) for gram, count in kept.items())
    assert worst_kept >= max((grams[gram], -len(gram)) for gram in dropped)


def test_keys() -> None:
    """Exact for one to three tokens, and none for what is no token."""
    for tokens in ([0], [(1 << 20) - 1], [5, 0], [0, 5], [7, 8, 9], [0, 0, 0]):
        assert key_context(int(context_key(torch.tensor(tokens)))) == tokens
    assert key_context(int(context_key(torch.tensor([1, 2, 3, 4])))) is None
    assert int(context_key(torch.tensor([-1, 2]))) == int(context_key(torch.tensor([1 << 20, 2]))) == -1
    contexts = torch.cartesian_prod(*[torch.arange(9)] * 4)
    assert len(torch.unique(context_key(contexts))) == 9**4


def test_start_of_a_conversation(tmp_path: Path) -> None:
    """−1 stands where there is no token: shorter contexts still match."""
    build_ngram([[1, 2, 3], [2, 4]], 3, tmp_path / "a.ngram")
    q, matched = ngram_lookup(load_ngram(tmp_path / "a.ngram"), torch.tensor([[-1, 2]]), torch.tensor([[3, 4, 1]]))
    assert q.tolist() == [[0.5, 0.5, 0.0]]
    assert matched.tolist() == [[1, 1, 0]]


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="2 to 5, not 6"):
        build_ngram([[1, 2]], 6, tmp_path / "a")
    with pytest.raises(ModelError, match="nothing to put"):
        build_ngram([[1], []], 3, tmp_path / "a")
    with pytest.raises(ModelError, match="Token -1"):
        build_ngram([[1, -1]], 3, tmp_path / "a")
    build_ngram([[1, 2, 3]], 2, tmp_path / "two")
    build_ngram([[1, 2, 3]], 3, tmp_path / "three")
    with pytest.raises(ModelError, match="order"):
        merge_ngrams([tmp_path / "two", tmp_path / "three"], tmp_path / "a")
    with pytest.raises(ModelError, match="4 tokens, the target's 3"):
        load_ngram(tmp_path / "three", vocab_size=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["three", "two"]


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[1, 2, 3], {"tokens": [1, 2, 4]}, {"tokens": [1, 2, 3]}]
    source, model = tmp_path / "rows.jsonl", str(tmp_path / "a.ngram")
    source.write_text("\n".join(json.dumps(row) for row in rows))
    assert main(["build", str(source), "--out", model]) == 0
    assert main(["inspect", model]) == 0
    assert "order 3: 5 pairs of 3 contexts" in capsys.readouterr().out
    assert main(["lookup", model, "1 2"]) == 0
    assert capsys.readouterr().out.split("\n")[0] == "  0.6667  after 2 tokens: 3"
    assert main(["lookup", model, "one"]) == 2
    assert main(["inspect", str(source)]) == 3
    assert main(["build", str(source), "--out", str(tmp_path / "missing/a")]) == 1
    source.write_text('{"text": "words"}')
    assert main(["build", str(source), "--out", model]) == 2
    assert "--tokenizer" in capsys.readouterr().err
