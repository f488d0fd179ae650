"""Import of `.trie` files that the paper's code would not write in that order, and of damaged ones."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dart_core.ngram import trie
from dart_core.ngram.build import build_ngram
from dart_core.ngram.model import load_ngram
from dart_core.ngram.trie import import_trie
from kernels import native
from models.errors import ModelError
from tests.unit.test_ngram_build import counted, documents

Node = tuple[int, int, int]  # token, parent, frequency


def nodes_of(texts: list[list[int]], order: int) -> list[Node]:
    """A trie's nodes, parents first."""
    grams = counted(texts, order)
    index: dict[tuple[int, ...], int] = {(): 0}
    nodes = [(0, 0, sum(count for gram, count in grams.items() if len(gram) == 1))]
    for gram in sorted(grams, key=lambda gram: (len(gram), gram)):
        index[gram] = len(nodes)
        nodes.append((gram[-1], index[gram[:-1]], grams[gram]))
    return nodes


def write_trie(path: Path, order: int, nodes: list[Node]) -> None:
    children: list[list[int]] = [[] for _ in nodes]
    for i, (_, parent, _) in enumerate(nodes[1:], start=1):
        children[parent].append(i)
    with path.open("wb") as file:
        file.write(struct.pack("<QQ", order, len(nodes)))
        for (token, parent, frequency), own in zip(nodes, children, strict=True):
            file.write(struct.pack("<iQiQ", token, parent, frequency, len(own)))
            for child in own:
                file.write(struct.pack("<iQ", nodes[child][0], child))


def shuffled(nodes: list[Node]) -> list[Node]:
    """The same trie with the nodes after the root in any order."""
    order = [0, *(torch.randperm(len(nodes) - 1, generator=torch.Generator().manual_seed(0)) + 1).tolist()]
    place = {old: new for new, old in enumerate(order)}
    return [(nodes[old][0], place[nodes[old][1]], nodes[old][2]) for old in order]


@pytest.mark.parametrize("order", [2, 3, 4, 5])
@pytest.mark.parametrize("arranged", [list, shuffled])
@pytest.mark.parametrize("with_native", [True, False])
def test_any_order_of_nodes(
    order: int,
    arranged: Callable[[list[Node]], list[Node]],
    with_native: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In blocks of 40 words, so that lists of children reach over several of them."""
    monkeypatch.setattr(trie, "_BLOCK", 160)
    if not with_native:
        monkeypatch.setattr(native, "load", lambda: False)
    texts = documents(20)
    write_trie(tmp_path / "a.trie", order, arranged(nodes_of(texts, order)))
    fractions: list[float] = []
    import_trie(tmp_path / "a.trie", tmp_path / "imported", progress=fractions.append)
    build_ngram(texts, order, tmp_path / "built")
    imported, built = load_ngram(tmp_path / "imported"), load_ngram(tmp_path / "built")
    for one, other in zip(imported.arrays, built.arrays, strict=True):
        assert torch.equal(one, other)
    assert fractions[-1] == 1


GOOD = [(0, 0, 3), (5, 0, 2), (6, 1, 1), (7, 2, 1), (8, 0, 1)]


@pytest.mark.parametrize(
    ("node", "what", "message"),
    [
        (1, (-4, 0, 2), "node 1 has the token -4"),
        (1, (1 << 20, 0, 2), "node 1 has the token 1048576"),
        (3, (7, 99, 1), "node 3 has the parent 99, not 0 to 4"),
        (2, (6, 3, 1), "2 of its nodes cannot be reached"),
        (4, (8, 4, 1), "1 of its nodes cannot be reached"),
        (4, (8, 3, 1), "a path is longer than its order, 3"),
    ],
)
def test_damaged_nodes(node: int, what: Node, message: str, tmp_path: Path) -> None:
    """Numbers out of range, a cycle of two, one of one, a path too long."""
    path = tmp_path / "a.trie"
    write_trie(path, 3, GOOD)
    at, data = 16 + 24 * node + 12 * [0, 2, 3, 4, 4][node], bytearray(path.read_bytes())
    data[at : at + 16] = struct.pack("<iQi", *what)
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        import_trie(path, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["a.trie"]


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 9, "its order is 9, not 2 to 5"),
        (8, 4, "4 nodes take 148 bytes, the file has 184"),
        (8, 1 << 60, "the file has 184"),
        (32, 1, "its nodes have|node|child"),
        (32, 1 << 62, "node 0 has the child count"),
        (44, 77, "a child is node 77, there are 5"),
    ],
)
def test_damaged_counts(at: int, value: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.trie"
    write_trie(path, 3, GOOD)
    data = bytearray(path.read_bytes())
    data[at : at + 8] = struct.pack("<Q", value)
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        import_trie(path, tmp_path / "out")


@pytest.mark.parametrize("size", [0, 15, 16, 40, 183])
def test_truncated(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.trie"
    write_trie(path, 3, GOOD)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"truncated|take 184 bytes"):
        import_trie(path, tmp_path / "out")
