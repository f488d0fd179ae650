"""The whole step, verify to prune, compiles into one graph, once for all lengths."""

from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from dart_core.drafter import Drafter, NgramDrafter
from dart_core.sampling import SamplingSettings, sampling_tensors
from dart_core.state import State, new_state, rewind
from dart_core.step import prefill, resume, step
from kernels import native
from kernels.accept import Accepted
from kernels.learning_table import new_table
from models.decoder import Target
from tests.random_target import random_target
from tests.unit.test_head_drafter import random_head

pytestmark = pytest.mark.skipif(not native.load(), reason=f"no C++: {native.status().reason}")

STEPS, NODES = 50, 8
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def drafter_of(kind: str, target: Target, path: Path) -> Drafter:
    return random_head(path, target) if kind == "head" else NgramDrafter(new_table(1 << 12), floor=0.0)


def prepared(target: Target, drafter: Drafter) -> State:
    state = new_state(target.config, 500, torch.device("cpu"))
    rewind(state, PROMPT, 0)
    prefill(target, state, torch.tensor(PROMPT[:-1]), drafter)
    return state


@pytest.mark.parametrize("kind", ["ngram", "head"])
@pytest.mark.parametrize("settings", [SamplingSettings(), SamplingSettings(temperature=0.9, top_k=8, seed=7)])
def test_one_graph_for_all_lengths(kind: str, settings: SamplingSettings, tmp_path: Path) -> None:
    """Fifty steps that write one to several tokens: nothing breaks the graph, nothing is compiled again, and what
    is written and kept is what the eager step writes and keeps."""
    target = random_target(vocab=64, four_bit=True, head_dim=32)
    assert target.stack is not None
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, backend=counter, fullgraph=True, dynamic=False)
    sampling = sampling_tensors(settings, frozenset())
    sampling.limit.fill_(NODES)
    drafters = [drafter_of(kind, target, tmp_path / "head") for _ in range(2)]
    states = [prepared(target, drafter) for drafter in drafters]
    trees = [resume(state, drafter, NODES) for state, drafter in zip(states, drafters, strict=True)]
    counts = []
    for _ in range(STEPS):
        results: list[Accepted] = []
        for i, run in enumerate((step, compiled)):
            accepted, trees[i] = run(target, states[i], trees[i], sampling, drafters[i], NODES)
            results.append(accepted)
        for name in ("path", "written", "count"):
            assert torch.equal(getattr(results[0], name), getattr(results[1], name)), name
        for name in ("tokens", "parent", "depth", "ancestor", "rank", "count"):
            assert torch.equal(getattr(trees[0], name), getattr(trees[1], name)), name
        counts.append(int(results[0].count))
    assert counter.frame_count == 1
    assert torch.equal(states[0].history, states[1].history)
    assert torch.equal(states[0].length, states[1].length)
    assert len(set(counts)) > 1, "every step wrote as many tokens, so no length ever differed"


def test_operators_tell_the_compiler_the_truth() -> None:
    table, history = new_table(64), torch.randint(9, (40,), generator=torch.Generator().manual_seed(0))
    arrays = (table.keys, table.tokens, table.counts)
    torch.library.opcheck(
        torch.ops.dart.learn.default, (*arrays, table.stamps, history, torch.tensor([39]), torch.tensor([30]))
    )
    torch.library.opcheck(torch.ops.dart.grow.default, (*arrays, history, torch.tensor([39]), 8, 0.0))
    sampling = sampling_tensors(SamplingSettings(temperature=1.0, seed=3), frozenset({2}))
    rows = torch.arange(4)
    tree = (
        torch.randint(9, (4,)),
        rows - 1,
        rows,
        (2 << rows) - 1,
        torch.tensor([5]),
        torch.zeros(9, dtype=torch.bool),
    )
    knobs = (sampling.knobs, sampling.seed, sampling.limit, sampling.eos)
    torch.library.opcheck(torch.ops.dart.accept.default, (torch.randn(4, 9), *tree, *knobs))
