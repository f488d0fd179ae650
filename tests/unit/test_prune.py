"""The search for a draft tree: the C++ against the tensor form, ties, eos, few candidates, no model."""

from pathlib import Path

import pytest
import torch

from dart_core.ngram.build import build_ngram
from dart_core.ngram.model import load_ngram
from dart_core.prune import (
    Candidates,
    PruneConfig,
    build_tree,
    build_tree_reference,
    mixed_frequency,
    top_candidates,
)
from dart_core.tree import DraftTree
from kernels import native
from kernels.learning_frequency import learned_frequency
from kernels.learning_table import LearningTable, learn, new_table, successors
from kernels.ngram_lookup import NgramTable
from tests.golden.test_tree_search import check_consistent
from tests.unit.test_ngram_build import documents

EOS = torch.tensor([3, 7])
FIELDS = ("tokens", "parent", "depth", "ancestor", "score", "rank", "count")


@pytest.fixture(scope="module")
def ngram(tmp_path_factory: pytest.TempPathFactory) -> NgramTable:
    path = tmp_path_factory.mktemp("ngram") / "a.ngram"
    build_ngram(documents(40), 4, path)
    return load_ngram(path)


@pytest.fixture(scope="module")
def learned() -> LearningTable:
    table = new_table(4096)
    history = torch.tensor([token for text in documents(20, seed=5) for token in text])
    learn(table, history, torch.tensor([len(history) - 1]), torch.tensor([len(history)]))
    return table


def candidates(seed: int, depth: int, k: int) -> Candidates:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(depth, 40, generator=random) * 3
    return top_candidates(logits, torch.arange(40), PruneConfig(depth=depth, top_k=k))


@pytest.mark.parametrize("models", ["none", "ngram", "learned", "both"])
@pytest.mark.parametrize("seed", range(12))
def test_native_is_the_reference(seed: int, models: str, ngram: NgramTable, learned: LearningTable) -> None:
    if not native.load():
        pytest.skip(native.status().reason)
    built = ngram if models in ("ngram", "both") else None
    recent = learned if models in ("learned", "both") else None
    depth, k, beam, nodes = [(8, 25, 20, 64), (4, 5, 20, 60), (8, 25, 4, 16), (1, 5, 3, 8)][seed % 4]
    config = PruneConfig(depth=depth, top_k=k, beam=beam, learned_weight=0.3)
    given = candidates(seed, depth, k)
    context = torch.tensor([-1, -1, 4, 6, 9, 0, 1, 2])
    q = mixed_frequency(built, recent, config.learned_weight)
    expected = build_tree_reference(given, context, EOS, config, nodes, q)
    found = build_tree(given, context, EOS, config, nodes, built, recent)
    for field in FIELDS:
        assert torch.equal(getattr(found, field), getattr(expected, field)), field
    check_consistent(found)


def both_forms(given: Candidates, config: PruneConfig, nodes: int) -> list[DraftTree]:
    context = torch.tensor([5])
    trees = [build_tree_reference(given, context, EOS, config, nodes, None)]
    return [*trees, build_tree(given, context, EOS, config, nodes)]


def test_ties_go_to_the_lower_index() -> None:
    """Four equally likely tokens at every depth: the first stay in the beam and in the tree."""
    given = Candidates(torch.tensor([[10, 11, 12, 13], [20, 21, 22, 23]]), torch.full((2, 4), 0.25))
    for tree in both_forms(given, PruneConfig(depth=2, top_k=4, beam=2), 8):
        check_consistent(tree)
        assert tree.tokens.tolist() == [5, 10, 11, 12, 13, 20, 21, 22]
        assert tree.parent.tolist() == [-1, 0, 0, 0, 0, 1, 1, 1]
        assert tree.rank.tolist() == [0, 0, 1, 2, 3, 0, 1, 2]


def test_a_path_that_ends_is_extended_last() -> None:
    """The eos 3 is the likeliest first token, yet what follows hangs below the others."""
    given = Candidates(torch.tensor([[3, 10, 11], [20, 21, 22]]), torch.tensor([[0.9, 0.06, 0.04]] * 2))
    for tree in both_forms(given, PruneConfig(depth=2, top_k=3, beam=2), 10):
        check_consistent(tree)
        assert tree.tokens.tolist()[:4] == [5, 3, 10, 11]
        assert set(tree.parent[4:].tolist()) == {2, 3}


def test_fewer_candidates_than_nodes() -> None:
    given = Candidates(torch.tensor([[10, 11]]), torch.tensor([[0.7, 0.3]]))
    for tree in both_forms(given, PruneConfig(depth=1, top_k=2), 6):
        check_consistent(tree)
        assert tree.count.tolist() == [3]
        assert tree.tokens.tolist() == [5, 10, 11, 0, 0, 0]
        assert tree.score.tolist() == pytest.approx([1, 0.7, 0.3, 0, 0, 0])


def test_a_root_alone() -> None:
    for tree in both_forms(candidates(0, 2, 5), PruneConfig(depth=2, top_k=5), 1):
        assert tree.tokens.tolist() == [5]
        assert tree.count.tolist() == [1]


def test_certain_tokens_keep_parents_first() -> None:
    """Probability one costs nothing: a child scores as its parent and must still come after it."""
    given = Candidates(torch.tensor([[10, 11]] * 8), torch.tensor([[1.0000001, 0.0]] * 8))
    for tree in both_forms(given, PruneConfig(depth=8, top_k=2, beam=4), 9):
        check_consistent(tree)
        assert tree.tokens.tolist() == [5] + [10] * 8


def test_candidates() -> None:
    """The best k of each depth with their softmax among themselves, by target id; NaN comes last."""
    logits = torch.tensor([[0.0, 2.0, torch.nan, 1.0], [5.0, -torch.inf, 4.0, 3.0], [9.0, 9.0, 9.0, 9.0]])
    ids = torch.tensor([100, 101, 102, 103])
    top = top_candidates(logits, ids, PruneConfig(depth=2, top_k=3))
    assert top.tokens.tolist() == [[101, 103, 100], [100, 102, 103]]
    torch.testing.assert_close(top.probability[0], torch.tensor([2.0, 1.0, 0.0]).softmax(0))
    assert top_candidates(logits, ids, PruneConfig(depth=2, top_k=25)).tokens.shape == (2, 4)


def test_learned_frequency_is_the_tables_own(learned: LearningTable) -> None:
    for text in documents(20, seed=5)[:8]:
        context = text[-9:]
        if not context:
            continue
        expected = successors(learned, context)
        row = torch.tensor([[-1] * (9 - len(context)) + context])
        found = learned_frequency(learned, row, torch.tensor([[token for _, token in expected]]))
        torch.testing.assert_close(found[0], torch.tensor([p for p, _ in expected], dtype=torch.float32))
        assert expected


def test_wrong_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 to 64 nodes, not 65"):
        build_tree(candidates(0, 2, 5), torch.tensor([5]), EOS, PruneConfig(), 65)
