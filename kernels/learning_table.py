"""An n-gram table that learns while you chat, and the draft tree it grows.

Contexts of 1 to 8 tokens hash to slots of four successors with counts. Probabilities mix all matching contexts by
PPM's escape method C (Moffat 1990): with T observations of D distinct successors a context gives a successor seen
c times c / (T + D), and leaves D / (T + D) to the next shorter context. A long repeat is trusted more because all
its suffixes agree.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import native

CONTEXT_LENGTHS = (1, 2, 3, 4, 6, 8)
LONGEST = CONTEXT_LENGTHS[-1]
WAYS = 4  # successors a context keeps
PROBES = 4  # neighbouring slots a context may lie in
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class LearningTable:
    """Flat arrays, a power of two of slots: `keys` int64 [C] (0 is free), `tokens` int32 [C, 4], `counts` int32
    [C, 4] (0 is free), `stamps` int32 [C]: the position at which the slot was last written, oldest goes first."""

    keys: Tensor
    tokens: Tensor
    counts: Tensor
    stamps: Tensor


def new_table(slots: int = 1 << 16) -> LearningTable:
    """An empty table of 44 bytes a slot. `slots` must be a power of two."""
    if slots < PROBES or slots & (slots - 1):
        raise ValueError(f"slots must be a power of two, at least {PROBES}, not {slots}")
    ways = torch.zeros(slots, WAYS, dtype=torch.int32)
    return LearningTable(
        torch.zeros(slots, dtype=torch.int64), ways, ways.clone(), torch.zeros(slots, dtype=torch.int32)
    )


def learn(table: LearningTable, history: Tensor, length: Tensor, count: Tensor) -> None:
    """Counts the last `count` tokens of `history` up to the root `history[length]`, it included, as successors of
    what stands before each. `history` int64 [> length]; `length`, `count` int64 [1]."""
    if native.load():
        torch.ops.dart.learn(table.keys, table.tokens, table.counts, table.stamps, history, length, count)
    else:
        learn_reference(table, history, length, count)


def grow(table: LearningTable, history: Tensor, length: Tensor, nodes: int, floor: float) -> list[Tensor]:
    """The most probable tree of at most `nodes` nodes below the root `history[length]`, best first.

    Nodes less probable than `floor` (their path's probability) are left out: verifying one costs about a tenth
    of a token. Returns tokens, parent, depth, ancestor mask (int64 [nodes] each), path probability fp32 [nodes],
    rank among siblings int64 [nodes] and count int64 [1], padded as a draft tree is.
    """
    if native.load():
        return list(torch.ops.dart.grow(table.keys, table.tokens, table.counts, history, length, nodes, floor))
    return grow_reference(table, history, length, nodes, floor)


def _mix64(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def _context_keys(tokens: Sequence[int]) -> list[int]:
    """Keys of the contexts that end `tokens`, by length, as many as fit."""
    key, keys = 0, []
    for used, token in enumerate(reversed(tokens[-LONGEST:]), start=1):
        key = _mix64(key + token + 1)
        if used in CONTEXT_LENGTHS:
            keys.append(key | 1)
    return keys


def _signed(key: int) -> int:
    return key - (1 << 64) if key >> 63 else key


def _probe(table: LearningTable, key: int) -> list[int]:
    mask = len(table.keys) - 1
    return [(key >> 1) + i & mask for i in range(PROBES)]


def _find(table: LearningTable, key: int) -> int | None:
    return next((slot for slot in _probe(table, key) if table.keys[slot] == _signed(key)), None)


def learn_reference(table: LearningTable, history: Tensor, length: Tensor, count: Tensor) -> None:
    """`learn` in plain Python."""
    tokens = history[: int(length) + 1].tolist()
    for position in range(max(len(tokens) - int(count), 1), len(tokens)):
        for key in _context_keys(tokens[max(0, position - LONGEST) : position]):
            slot = _find(table, key)
            if slot is None:
                probed = _probe(table, key)
                free = [slot for slot in probed if table.keys[slot] == 0]
                slot = free[0] if free else min(probed, key=lambda slot: int(table.stamps[slot]))
                table.keys[slot] = _signed(key)
                table.counts[slot] = 0
            table.stamps[slot] = position
            _count(table.tokens[slot], table.counts[slot], tokens[position])


def _count(ways: Tensor, counts: Tensor, token: int) -> None:
    """Adds one to the token's count; where all ways are taken the rarest makes room."""
    taken = counts > 0
    same = ((ways == token) & taken).nonzero()
    way = int(same[0]) if len(same) else int(counts.argmin())
    counts[way] = counts[way] + 1 if len(same) else 1
    ways[way] = token


def successors(table: LearningTable, context: Sequence[int]) -> list[tuple[float, int]]:
    """The four most probable next tokens, best first: (probability, token)."""
    mixed: dict[int, float] = {}
    left = 1.0
    for key in reversed(_context_keys(context)):
        slot = _find(table, key)
        if slot is None:
            continue
        counts = table.counts[slot].tolist()
        total, distinct = sum(counts), sum(count > 0 for count in counts)
        for token, count in zip(table.tokens[slot].tolist(), counts, strict=True):
            if count:
                mixed[token] = mixed.get(token, 0.0) + left * count / (total + distinct)
        left *= distinct / (total + distinct)
    return sorted(((p, token) for token, p in mixed.items()), key=lambda item: (-item[0], item[1]))[:WAYS]


def grow_reference(table: LearningTable, history: Tensor, length: Tensor, nodes: int, floor: float) -> list[Tensor]:
    """`grow` in plain Python: a best-first search over path probabilities. Ties: the earlier candidate first."""
    root = int(length)
    paths = [history[max(0, root + 1 - LONGEST) : root + 1].tolist()]
    tokens, parents, depths, ancestors, scores, ranks = [paths[0][-1]], [-1], [0], [1], [1.0], [0]
    queue: list[tuple[float, int, int, int, int]] = []
    pushed = 0
    while True:
        node = len(tokens) - 1
        for rank, (p, token) in enumerate(successors(table, paths[node])):
            if scores[node] * p >= floor:
                heapq.heappush(queue, (-scores[node] * p, pushed, node, token, rank))
                pushed += 1
        if len(tokens) == nodes or not queue:
            break
        negative, _, parent, token, rank = heapq.heappop(queue)
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        ancestors.append(ancestors[parent] | 1 << node + 1)
        scores.append(-negative)
        ranks.append(rank)
        paths.append([*paths[parent][-LONGEST + 1 :], token])
    count = len(tokens)
    padding = range(count, nodes)
    return [
        torch.tensor(tokens + [0 for _ in padding]),
        torch.tensor(parents + [-1 for _ in padding]),
        torch.tensor(depths + [0 for _ in padding]),
        torch.tensor([_signed(mask) for mask in ancestors] + [_signed(1 << row) for row in padding]),
        torch.tensor(scores + [0.0 for _ in padding]),
        torch.tensor(ranks + [0 for _ in padding]),
        torch.tensor([count]),
    ]
