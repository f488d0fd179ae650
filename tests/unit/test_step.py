"""Drafting changes speed, never text."""

import pytest
import torch

from dart_core.drafter import Drafter, NgramDrafter, PlainDrafter
from dart_core.sampling import SamplingSettings
from dart_core.step import prefill
from kernels.learning_table import new_table
from models.decoder import forward, output_logits
from tests.random_target import OracleDrafter, RandomDrafter, random_target, write

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SETTINGS = {
    "greedy": SamplingSettings(),
    "sampled": SamplingSettings(temperature=0.9, seed=7),
    "filtered": SamplingSettings(temperature=1.3, top_k=12, top_p=0.9, min_p=0.02, seed=11),
    "penalised": SamplingSettings(temperature=0.7, repetition_penalty=1.3, seed=5),
    "penalised greedy": SamplingSettings(repetition_penalty=1.5),
}


def drafters() -> dict[str, Drafter]:
    return {
        "random": RandomDrafter(torch.Generator().manual_seed(1), 16),
        "ngram": NgramDrafter(new_table(1 << 12), floor=0.01),
    }


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("drafter", ["random", "ngram"])
@pytest.mark.parametrize("nodes", [4, 16, 64])
def test_drafted_text_is_plain_text(drafter: str, nodes: int, settings: str) -> None:
    target = random_target(vocab=16)
    plain = write(target, PROMPT, 60, PlainDrafter(), 1, SETTINGS[settings])
    drafted = write(target, PROMPT, 60, drafters()[drafter], nodes, SETTINGS[settings])
    assert drafted.tokens == plain.tokens
    assert plain.counts == [1] * 60
    if nodes == 64:
        assert len(drafted.counts) < 60, "nothing was ever accepted, so the test says nothing"


@pytest.mark.parametrize("depth", [1, 2, 7, 15, 31])
@pytest.mark.parametrize("settings", ["greedy", "filtered", "penalised"])
def test_oracle_drafts_are_accepted_to_every_depth(depth: int, settings: str) -> None:
    target = random_target()
    plain = write(target, PROMPT, 2 * (depth + 1), PlainDrafter(), 1, SETTINGS[settings])
    oracle = OracleDrafter(PROMPT + plain.tokens, depth, 64)
    drafted = write(target, PROMPT, 2 * (depth + 1), oracle, 64, SETTINGS[settings])
    assert drafted.tokens == plain.tokens
    assert drafted.counts == [depth + 1] * 2  # τ = depth + 1


def test_cache_after_drafting_is_the_cache_of_a_fresh_prefill() -> None:
    target = random_target()
    drafted = write(target, PROMPT, 40, RandomDrafter(torch.Generator().manual_seed(3), 64), 64)
    length = int(drafted.state.length)
    text = PROMPT + drafted.tokens
    fresh = write(target, text[: length + 1], 1, PlainDrafter(), 1)
    for mine, theirs in (
        (drafted.state.cache.keys, fresh.state.cache.keys),
        (drafted.state.cache.values, fresh.state.cache.values),
    ):
        torch.testing.assert_close(mine[:, :, :length], theirs[:, :, :length], atol=1e-5, rtol=1e-5)
    assert drafted.state.history[: length + 1].tolist() == text[: length + 1]
    assert set(drafted.state.seen.nonzero().flatten().tolist()) == set(text[:length])


def test_eos_inside_an_accepted_run_ends_it() -> None:
    target = random_target()
    plain = write(target, PROMPT, 20, PlainDrafter(), 1)
    eos = frozenset({plain.tokens[9]})
    first = plain.tokens.index(plain.tokens[9])
    oracle = OracleDrafter(PROMPT + plain.tokens, 15, 64)
    drafted = write(target, PROMPT, 20, oracle, 64, eos=eos)
    assert drafted.tokens == plain.tokens[: first + 1]
    assert int(drafted.state.length) == len(PROMPT) + first  # eos itself is the root: its keys are not cached


def test_limit_cuts_an_accepted_run() -> None:
    target = random_target()
    plain = write(target, PROMPT, 20, PlainDrafter(), 1)
    drafted = write(target, PROMPT, 5, OracleDrafter(PROMPT + plain.tokens, 15, 64), 64)
    assert drafted.tokens == plain.tokens[:5]
    assert drafted.counts == [5]


def test_tree_rows_are_bit_equal_to_plain_decoding() -> None:
    """A row may not depend on its siblings: same bits for a path in a bushy tree and decoded alone."""
    target = random_target()
    state = write(target, PROMPT, 1, PlainDrafter(), 1).state
    length = int(state.length)
    tokens = torch.tensor([7, 8, 9, 10, 11, 12])
    parent = [-1, 0, 0, 1, 2, 4]
    ancestor = torch.tensor([1, 3, 5, 11, 21, 53])
    depth = torch.tensor([0, 1, 1, 2, 2, 3])
    hidden, _ = forward(target, state.cache, tokens, depth, ancestor, state.length)
    in_tree = output_logits(target, hidden)[5]
    alone = None
    for node in (0, 2, 4, 5):
        rows = torch.tensor([0])
        alone, _ = forward(target, state.cache, tokens[node : node + 1], rows, rows + 1, state.length)
        state.length.add_(1)
    assert parent[5] == 4
    assert int(state.length) == length + 4
    assert alone is not None
    torch.testing.assert_close(output_logits(target, alone)[0], in_tree, atol=1e-5, rtol=1e-5)


def test_prefill_of_64_rows_is_prefill_row_by_row() -> None:
    target = random_target()
    text = torch.randint(64, (64,), generator=torch.Generator().manual_seed(2))
    at_once = write(target, [1], 1, PlainDrafter(), 1).state
    one_by_one = write(target, [1], 1, PlainDrafter(), 1).state
    start = int(at_once.length)
    prefill(target, at_once, text, PlainDrafter())
    for token in text:
        prefill(target, one_by_one, token.view(1), PlainDrafter())
    torch.testing.assert_close(
        at_once.cache.values[:, :, start : start + 64], one_by_one.cache.values[:, :, start : start + 64],
        atol=1e-4, rtol=1e-4,
    )  # fmt: skip
