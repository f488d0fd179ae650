"""The draft tree: a root and what may follow it, in fixed-size tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dart_core.options import TREE_SIZES

MAX_NODES = 64  # a node's ancestors are the bits of one int64


@dataclass(frozen=True, slots=True)
class DraftTree:
    """N ≤ 64 rows: `count` nodes, then padding. Row 0 is the root, the last emitted token.

    Parents stand before their children; siblings hold distinct tokens. Rows may stand in any order else.
    `tokens`   int64 [N], 0 in padding.
    `parent`   int64 [N], −1 for the root and for padding.
    `depth`    int64 [N], edges to the root; 0 in padding.
    `ancestor` int64 [N], bit i set where row i is the node itself or above it; padding sees itself only.
    `score`    fp32 [N], the draft head's probability of the token at its depth (the n-gram's where there is
               no head); 1 for the root, 0 in padding.
    `rank`     int64 [N], the token's place among its depth's candidates, 0 best; 0 for root and padding.
    `count`    int64 [1], nodes, root included.
    """

    tokens: Tensor
    parent: Tensor
    depth: Tensor
    ancestor: Tensor
    score: Tensor
    rank: Tensor
    count: Tensor


def root_tree(root: Tensor, nodes: int = 1) -> DraftTree:
    """The tree of a root and nothing else: plain decoding. `root` int64 [1]; `nodes` rows, 1 ≤ nodes ≤ 64."""
    device = root.device
    zeros = torch.zeros(nodes, dtype=torch.int64, device=device)
    first = torch.arange(nodes, device=device) == 0
    return DraftTree(
        tokens=torch.where(first, root, zeros),
        parent=zeros - 1,
        depth=zeros,
        ancestor=torch.ones_like(zeros) << torch.arange(nodes, device=device),
        score=first.float(),
        rank=zeros,
        count=torch.ones(1, dtype=torch.int64, device=device),
    )


def chain_ancestors(rows: Tensor) -> Tensor:
    """`ancestor` of a tree without branches: row i sees rows 0…i. `rows` int64 [N], 0 to N − 1."""
    return (torch.full_like(rows, 2) << rows) - 1  # 2 << 63 wraps to 0, and −1 is all ones


def valid_nodes(tree: DraftTree) -> Tensor:
    """bool [N]: which rows are nodes and not padding."""
    return torch.arange(tree.tokens.shape[0], device=tree.tokens.device) < tree.count


def first_nodes(tree: DraftTree) -> DraftTree:
    """The tree in the fewest rows the step exists for: padding beyond the last node is cut off."""
    count = int(tree.count)
    size = next(size for size in TREE_SIZES if size >= count)
    if size >= len(tree.tokens):
        return tree
    rows = slice(0, size)
    return DraftTree(
        tree.tokens[rows], tree.parent[rows], tree.depth[rows], tree.ancestor[rows],
        tree.score[rows], tree.rank[rows], tree.count,
    )  # fmt: skip
