"""The draft trees of 40 searches made by the paper's code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dart_core.ngram.model import load_ngram
from dart_core.ngram.trie import import_trie
from dart_core.prune import Candidates, PruneConfig, build_tree, build_tree_reference, mixed_frequency
from dart_core.tree import DraftTree
from kernels.ngram_lookup import NgramTable

NGRAM = Path(__file__).parents[1] / "data/golden/ngram"
CASES: list[dict[str, Any]] = json.loads((NGRAM / "tree_search.json").read_text())["cases"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> NgramTable:
    path = tmp_path_factory.mktemp("ngram") / "order3.ngram"
    import_trie(NGRAM / "order3.trie", path)
    return load_ngram(path)


def reference(candidates: Any, context: Any, eos: Any, config: Any, nodes: int, table: NgramTable) -> DraftTree:
    return build_tree_reference(candidates, context, eos, config, nodes, mixed_frequency(table, None, 0.5))


def paths_of(tokens: list[int], above: list[list[int]]) -> set[tuple[int, ...]]:
    """Every node but the root as the tokens that lead to it; `above[i]`: a node's rows from the root down."""
    return {tuple(tokens[j] for j in rows[1:]) for rows in above[1:]}


def check_consistent(tree: DraftTree) -> list[list[int]]:
    """Parents first, siblings distinct, masks and depths as the parents say; the rows above each."""
    count = int(tree.count)
    above = [[0]]
    assert int(tree.parent[0]) == -1
    for row in range(1, count):
        parent = int(tree.parent[row])
        assert 0 <= parent < row
        above.append([*above[parent], row])
        assert int(tree.depth[row]) == len(above[row]) - 1
        assert int(tree.ancestor[row]) % (1 << 64) == sum(1 << i for i in above[row])
    edges = list(zip(tree.parent[:count].tolist(), tree.tokens[:count].tolist(), strict=True))
    assert len(set(edges)) == count
    assert (tree.parent[count:] == -1).all()
    assert [mask % (1 << 64) for mask in tree.ancestor[count:].tolist()] == [
        1 << i for i in range(count, len(tree.tokens))
    ]
    return above


@pytest.mark.parametrize("search", [build_tree, reference])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_search(case: dict[str, Any], table: NgramTable, search: Callable[..., DraftTree]) -> None:
    config = PruneConfig(depth=case["draft_length"], top_k=case["top_k"], beam=case["beam_width"])
    candidates = Candidates(torch.tensor(case["topk_tokens"]), torch.tensor(case["topk_probs"]))
    context, eos = torch.tensor(case["context"]), torch.tensor([case["eos"]])
    tree = search(candidates, context, eos, config, case["tree_nodes"] + 1, table)
    above = check_consistent(tree)
    golden = [torch.tensor(row).nonzero()[:, 0].tolist() for row in case["tree_mask"]]
    depth = case["tree_positions"]
    golden = [sorted(rows, key=lambda row: depth[row]) for rows in golden]
    assert int(tree.tokens[0]) == case["draft_tokens"][0]
    assert paths_of(tree.tokens.tolist(), above) == paths_of(case["draft_tokens"], golden)
