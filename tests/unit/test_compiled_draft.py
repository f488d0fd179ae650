"""The draft half of the step compiles into one graph, once."""

import json

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from dart_core.draft_head import draft_logits, new_head_cache
from dart_core.head_file import load_head
from dart_core.ngram.build import build_ngram
from dart_core.ngram.model import load_ngram
from dart_core.prune import PruneConfig, build_tree, build_tree_reference, mixed_frequency, top_candidates
from dart_core.tree import DraftTree
from kernels.learning_table import learn, new_table
from kernels.ngram_lookup import NgramTable
from tests.golden.test_draft_head import EMBED, HEAD, target

CONVERSATIONS = json.loads((HEAD.parent / "ngram/queries.json").read_text())["conversations"]


@pytest.fixture(scope="module")
def ngram(tmp_path_factory: pytest.TempPathFactory) -> NgramTable:
    path = tmp_path_factory.mktemp("ngram") / "order3.ngram"
    build_ngram(CONVERSATIONS, 3, path)
    return load_ngram(path)


@pytest.mark.parametrize("native", [True, False])
def test_one_graph_for_all_lengths(ngram: NgramTable, native: bool) -> None:
    """Fifty drafts at growing lengths, of one to nine new rows: one graph, and the eager function's trees."""
    head, config, learned = load_head(HEAD, target()), PruneConfig(), new_table(1024)
    cache = new_head_cache(head, 512)
    learn(learned, torch.tensor(CONVERSATIONS[0]), torch.tensor([99]), torch.tensor([100]))
    eos = torch.tensor([2])
    random = torch.Generator().manual_seed(0)

    def draft(tokens: Tensor, taps: Tensor, count: Tensor, length: Tensor, context: Tensor) -> DraftTree:
        logits = draft_logits(head, cache, EMBED, tokens, taps, count, length)
        candidates = top_candidates(logits, head.target_ids, config)
        if native:
            return build_tree(candidates, context, eos, config, 24, ngram, learned)
        q = mixed_frequency(ngram, learned, config.learned_weight)
        return build_tree_reference(candidates, context, eos, config, 24, q)

    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(draft, backend=counter, fullgraph=True, dynamic=False)
    length = 0
    for i in range(50):
        tokens = torch.randint(512, (9,), generator=random)
        taps = torch.randn(9, 192, generator=random)
        count = torch.tensor([1 + i % 9])
        arguments = (tokens, taps, count, torch.tensor([length]), torch.tensor(CONVERSATIONS[0][i : i + 8]))
        expected, drafted = draft(*arguments), compiled(*arguments)
        for name in ("tokens", "parent", "depth", "ancestor", "score", "rank", "count"):
            torch.testing.assert_close(getattr(drafted, name), getattr(expected, name))
        length += int(count)
    assert counter.frame_count == 1
