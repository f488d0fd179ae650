"""Import of published `.trie` files: read in blocks, never as objects.

Little-endian: uint64 order, uint64 node count, then a record a node: int32 token, uint64 parent, int32
frequency, uint64 child count, and (int32 token, uint64 node) for every child. Node 0 is the root.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dart_core.ngram.pairs import TOTAL, Ints, Spill, as_pairs
from dart_core.ngram.write import write_ngram
from kernels import native
from kernels.ngram_lookup import MAX_ORDER, TOKEN_BITS, context_key
from models.errors import ModelError

_HEADER, _RECORD, _CHILD = 16, 24, 12  # bytes, all multiples of a 4-byte word
_BLOCK = 1 << 23  # bytes read at a time
_LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Nodes:
    """A run of records from node `start` on: int64 [n] each."""

    start: int
    token: Ints
    parent: Ints
    frequency: Ints
    children: Ints


def import_trie(
    source: Path,
    path: Path,
    max_entries: int | None = None,
    progress: Callable[[float], None] = lambda fraction: None,
) -> None:
    """Turns the `.trie` file `source` into the model file `path`.

    Holds some ten blocks of 8 MB and one part of the sort; 8 bytes a node and 20 a pair lie in temporary
    files beside `path`. `progress` is told the fraction read. Raises ModelError where the file is damaged:
    truncated, counts that do not fit its size, tokens or nodes out of range or out of reach of the root.
    """
    order, count = _read_header(source)
    with Spill(path.parent) as spill:
        paths = np.memmap(spill.work / "paths", np.int64, "w+", shape=(count,))
        paths[0] = 1  # the root's is empty
        left = count - 1
        while left:
            reached = 0
            for nodes in _read_nodes(source, count):
                reached += _place(nodes, paths, spill, order, source)  # most parents stand before their children
                progress((nodes.start + len(nodes.token)) / count)
            if not reached:
                raise _damaged(source, f"{left} of its nodes cannot be reached from the root")
            left -= reached
        del paths
        write_ngram(path, order, spill, max_entries)


def _damaged(source: Path, cause: str) -> ModelError:
    return ModelError(f"The trie {source} cannot be read: {cause}", "Download it again, or choose another")


def _read_header(source: Path) -> tuple[int, int]:
    """Order and node count; every node but the root is one child, so the count gives the size of the file."""
    try:
        size = source.stat().st_size
        with open(source, "rb") as file:
            header = file.read(_HEADER)
    except OSError as error:
        raise _damaged(source, str(error)) from error
    if len(header) < _HEADER:
        raise _damaged(source, f"it is truncated: {size} bytes")
    order, count = (int.from_bytes(header[i : i + 8], "little") for i in (0, 8))
    if not 2 <= order <= MAX_ORDER:
        raise _damaged(source, f"its order is {order}, not 2 to {MAX_ORDER}")
    right = _HEADER + _RECORD * count + _CHILD * (count - 1)
    if count < 2 or size != right:
        raise _damaged(source, f"{count} nodes take {right} bytes, the file has {size}")
    return order, count


def _read_nodes(source: Path, count: int) -> Iterator[_Nodes]:
    """All records in blocks, checked but for where parents lead."""
    done = children = 0
    with open(source, "rb") as file:
        file.seek(_HEADER)
        while done < count:
            words = _read_words(file)
            starts, end = _record_starts(words, count - done)
            if not len(starts):
                raise _damaged(source, f"it ends after {done} of {count} nodes")
            columns = [words[starts + place].astype(np.int64) for place in range(6)]
            token, parent_low, parent_high, frequency, children_low, children_high = columns
            nodes = _Nodes(
                done,
                token,
                (parent_low & _LOW) | parent_high << 32,
                frequency,
                (children_low & _LOW) | children_high << 32,
            )
            _check_nodes(nodes, count, source)
            _check_children(nodes, words, starts, count, source)
            children += int(nodes.children.sum())
            done += len(starts)
            file.seek((end - len(words)) * 4, 1)  # past the last child list, or back to the next record
            yield nodes
        if children != count - 1:
            raise _damaged(source, f"its nodes have {children} children, {count} nodes need {count - 1}")


def _read_words(file: BufferedReader) -> NDArray[np.int32]:
    return np.fromfile(file, "<i4", _BLOCK // 4)


def _record_starts(words: NDArray[np.int32], most: int) -> tuple[Ints, int]:
    """Where records start, in words, at most `most`, and where the next one would (past the block, maybe)."""
    if native.load():
        starts, end = torch.ops.dart.trie_records(torch.from_numpy(words), most)
        return starts.numpy(), int(end)
    low, high = words[4:].view("<u4"), words[5:].view("<u4")
    starts, at, words_left = [], 0, len(words) - 5
    while at < words_left and len(starts) < most:
        starts.append(at)
        at += 6 + 3 * (int(low[at]) | int(high[at]) << 32)
    return np.array(starts, np.int64), at


def _check_nodes(nodes: _Nodes, count: int, source: Path) -> None:
    for what, values, low, high in (
        ("token", nodes.token, 0, 1 << TOKEN_BITS),
        ("parent", nodes.parent, 0, count),
        ("child count", nodes.children, 0, count),
    ):
        wrong = np.flatnonzero((values < low) | (values >= high))
        if len(wrong):
            node, value = nodes.start + int(wrong[0]), int(values[wrong[0]])
            raise _damaged(source, f"node {node} has the {what} {value}, not {low} to {high - 1}")


def _check_children(nodes: _Nodes, words: NDArray[np.int32], starts: Ints, count: int, source: Path) -> None:
    """That the lists of children inside the block name nodes there are."""
    before = np.cumsum(nodes.children) - nodes.children
    entry = np.repeat(starts + 6 - 3 * before, nodes.children) + 3 * np.arange(int(nodes.children.sum()))
    entry = entry[entry + 2 < len(words)]
    child = (words[entry + 1].astype(np.int64) & _LOW) | words[entry + 2].astype(np.int64) << 32
    wrong = child[(child < 1) | (child >= count)]
    if len(wrong):
        raise _damaged(source, f"a child is node {int(wrong[0])}, there are {count}")


def _place(nodes: _Nodes, paths: Ints, spill: Spill, order: int, source: Path) -> int:
    """Gives the block's nodes their paths, as far as their parents have one, and spills their pairs.

    Returns how many. Paths: 0 is none yet, else length + 1 in the low 3 bits and the packed tokens above.
    """
    own = paths[nodes.start : nodes.start + len(nodes.token)]
    waiting = np.flatnonzero(own == 0)
    placed = 0
    while len(waiting):
        above = paths[nodes.parent[waiting]]
        ready, above = waiting[above != 0], above[above != 0]
        if not len(ready):
            break
        length = above & 7
        if int(length.max()) > order:
            raise _damaged(source, f"a path is longer than its order, {order}")
        for depth in np.unique(length).tolist():
            here = length == depth
            rows, tokens = ready[here], nodes.token[ready[here]]
            parents, frequency = above[here] >> 3, nodes.frequency[rows]
            if depth > 1:
                spill.add(as_pairs(_repeated_keys(parents, depth - 1), tokens, frequency))
            packed = np.zeros_like(tokens) if depth == order else _longer(parents, depth, tokens)
            own[rows] = packed << 3 | (depth + 1)
            inner = nodes.children[rows] > 0
            if depth < order and inner.any():
                spill.add(as_pairs(_keys(packed[inner], depth), np.full(inner.sum(), TOTAL), frequency[inner]))
        placed += len(ready)
        waiting = waiting[own[waiting] == 0]
    return placed


def _longer(packed: Ints, length: int, tokens: Ints) -> Ints:
    """Packed paths of `length` tokens from those one shorter. 60 bits hold three tokens, or a key of four."""
    if length <= 3:
        return packed << TOKEN_BITS | tokens
    contexts = np.column_stack((_tokens(packed, length - 1), tokens))
    return context_key(torch.from_numpy(contexts)).numpy() >> 2


def _keys(packed: Ints, length: int) -> Ints:
    """The context keys of packed paths."""
    if length > 3:
        return packed << 2 | (length - 1)
    return context_key(torch.from_numpy(_tokens(packed, length))).numpy()


def _repeated_keys(packed: Ints, length: int) -> Ints:
    """`_keys`, worked out once for a run of siblings."""
    heads = np.flatnonzero(np.diff(packed, prepend=-1))
    return np.repeat(_keys(packed[heads], length), np.diff(heads, append=len(packed)))


def _tokens(packed: Ints, length: int) -> Ints:
    """int64 [n, length] from packed paths [n] of at most three tokens."""
    shifts = TOKEN_BITS * np.arange(length - 1, -1, -1)
    return packed[:, None] >> shifts & ((1 << TOKEN_BITS) - 1)
