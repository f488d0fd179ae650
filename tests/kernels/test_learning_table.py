"""The learning table: the C++ against plain Python, and what it drafts."""

import pytest
import torch

from kernels import native
from kernels.learning_table import LearningTable, grow, grow_reference, learn, learn_reference, new_table, successors

needs_native = pytest.mark.skipif(not native.load(), reason=f"no native kernels: {native.status().reason}")


def text(tokens: int, vocab: int, seed: int = 0) -> torch.Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (tokens,), generator=noise)


def learn_all(table: LearningTable, history: torch.Tensor) -> None:
    learn(table, history, torch.tensor([len(history) - 1]), torch.tensor([len(history)]))


@needs_native
@pytest.mark.parametrize(("slots", "vocab"), [(1 << 12, 5), (1 << 5, 50), (4, 3), (1 << 10, 100_000)])
def test_native_learns_and_grows_as_the_reference_does(slots: int, vocab: int) -> None:
    history = text(300, vocab)
    mine, reference = new_table(slots), new_table(slots)
    for start, end in ((0, 1), (1, 200), (200, 203), (203, 300)):
        places = torch.tensor([end - 1]), torch.tensor([end - start])
        learn(mine, history, *places)
        learn_reference(reference, history, *places)
    for name in ("keys", "tokens", "counts", "stamps"):
        assert torch.equal(getattr(mine, name), getattr(reference, name)), name
    for root in (0, 3, 150, 299):
        for nodes in (1, 4, 17, 64):
            for floor in (0.0, 0.05, 0.5):
                arguments = history, torch.tensor([root]), nodes, floor
                for a, b in zip(grow(mine, *arguments), grow_reference(reference, *arguments), strict=True):
                    assert torch.equal(a, b)


def test_a_repeat_is_drafted_as_a_chain() -> None:
    history = torch.tensor([*range(10, 30), 99, *range(10, 18)])
    table = new_table(1 << 12)
    learn_all(table, history)
    tokens, parent, depth, ancestor, score, rank, count = grow(table, history, torch.tensor([len(history) - 1]), 8, 0.1)
    assert tokens.tolist() == [17, 18, 19, 20, 21, 22, 23, 24]
    assert parent.tolist() == [-1, 0, 1, 2, 3, 4, 5, 6]
    assert depth.tolist() == list(range(8))
    assert ancestor.tolist() == [(1 << i + 1) - 1 for i in range(8)]
    assert (score[1:] <= score[:-1]).all()
    assert int(count) == 8
    assert not rank.any()


def test_probabilities_follow_ppm_method_c() -> None:
    table = new_table(1 << 12)
    learn_all(table, torch.tensor([1, 2, 1, 2, 1, 3]))  # after 1: 2, 2, 3; no longer context ends in … 9 1
    assert successors(table, [9, 1]) == [(pytest.approx(2 / 5), 2), (pytest.approx(1 / 5), 3)]


def test_trees_are_well_formed() -> None:
    history = text(2000, 12, seed=3)
    table = new_table(1 << 12)
    learn_all(table, history)
    tokens, parent, depth, ancestor, _, _, count = grow(table, history, torch.tensor([1999]), 64, 0.0)
    assert int(count) == 64
    edges = list(zip(parent[1:].tolist(), tokens[1:].tolist(), strict=True))
    assert len(set(edges)) == len(edges), "siblings must be distinct"
    for node in range(1, 64):
        above = int(parent[node])
        assert 0 <= above < node
        assert depth[node] == depth[above] + 1
        assert int(ancestor[node]) & (2**64 - 1) == int(ancestor[above]) & (2**64 - 1) | 1 << node


def test_the_oldest_context_makes_room() -> None:
    table = new_table(4)
    history = text(500, 1000, seed=5)
    learn_all(table, history)
    assert (table.keys != 0).all()
    assert int(table.stamps.min()) > 400


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="power of two"):
        new_table(100)
