"""Acceptance: the C++ against the reference, and the distribution against exact probabilities."""

import math

import pytest
import torch
from torch import Tensor

from dart_core.sampling import SamplingSettings, sampling_tensors
from kernels import native
from kernels.accept import Sampling, accept, accept_reference, choose, filtered
from kernels.noise import mix64, uniform

CHI_SQUARE_LIMIT = 1e-6  # a right sampler fails one run in a million; seeds are fixed, so it never does


def settings_of(
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    penalty: float = 1.0,
    seed: int = 0,
    limit: int = 64,
    eos: frozenset[int] = frozenset(),
) -> Sampling:
    sampling = sampling_tensors(SamplingSettings(temperature, top_k, top_p, min_p, penalty, seed), eos)
    sampling.limit.fill_(limit)
    return sampling


def random_tree(nodes: int, vocab: int, noise: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    parent = torch.tensor([-1] + [int(torch.randint(i, (1,), generator=noise)) for i in range(1, nodes)])
    depth, ancestor = torch.zeros(nodes, dtype=torch.int64), torch.ones(nodes, dtype=torch.int64)
    for i in range(1, nodes):
        depth[i] = depth[parent[i]] + 1
        ancestor[i] = ancestor[parent[i]] | (1 << i)
    return torch.randint(vocab, (nodes,), generator=noise), parent, depth, ancestor


@pytest.mark.skipif(not native.load(), reason=f"no native kernels: {native.status().reason}")
@pytest.mark.parametrize("vocab", [2, 7, 333, 5000])
@pytest.mark.parametrize("knobs", [
    {"temperature": 0.0}, {"temperature": 0.0, "penalty": 1.4}, {}, {"temperature": 0.3, "top_k": 5},
    {"temperature": 2.0, "top_p": 0.7}, {"top_k": 50, "top_p": 0.95, "min_p": 0.05}, {"min_p": 0.2, "penalty": 1.2},
    {"temperature": 1.5, "top_p": 0.999}, {"top_k": 100000}, {"top_p": 1e-6},
])  # fmt: skip
def test_native_equals_reference(vocab: int, knobs: dict[str, float]) -> None:
    noise = torch.Generator().manual_seed(vocab)
    for trial in range(12):
        nodes = [1, 4, 16, 64][trial % 4]
        tree = random_tree(nodes, min(vocab, 4), noise)
        logits = torch.randn(nodes, vocab, generator=noise) * 3
        seen = torch.rand(vocab, generator=noise) < 0.3
        length = torch.tensor([trial * 1000])
        sampling = settings_of(**knobs, seed=trial, limit=1 + trial, eos=frozenset({1}))  # type: ignore[arg-type]
        mine = accept(logits, *tree, length, seen, sampling)
        reference = accept_reference(logits, *tree, length, seen, sampling)
        assert int(mine.count) == int(reference.count)
        count = int(mine.count)
        assert mine.path[:count].tolist() == reference.path[:count].tolist()
        assert mine.written[:count].tolist() == reference.written[:count].tolist()


def probabilities(logits: Tensor, **knobs: float) -> Tensor:
    """Exact probabilities of one row of logits, by the definition of each filter, in plain Python."""
    z = [x / knobs.get("temperature", 1.0) for x in logits.tolist()]
    kept = sorted(range(len(z)), key=lambda i: -z[i])
    if knobs.get("top_k"):
        kept = kept[: int(knobs["top_k"])]

    def share(tokens: list[int]) -> list[float]:
        weights = [math.exp(z[i]) for i in tokens]
        return [w / sum(weights) for w in weights]

    total, most = 0.0, []
    for token, p in zip(kept, share(kept), strict=True):
        if total >= knobs.get("top_p", 1.0):
            break
        most.append(token)
        total += p
    best = share(most)[0]
    most = [token for token, p in zip(most, share(most), strict=True) if p >= knobs.get("min_p", 0.0) * best]
    exact = torch.zeros(len(z), dtype=torch.float64)
    exact[most] = torch.tensor(share(most), dtype=torch.float64)
    return exact


def chi_square_p(observed: Tensor, expected: Tensor) -> float:
    """Upper tail of Pearson's statistic (Wilson-Hilferty), impossible cells counting as certain failure."""
    if (observed[expected == 0] > 0).any():
        return 0.0
    possible = expected > 0
    statistic = float(((observed - expected)[possible] ** 2 / expected[possible]).sum())
    freedom = int(possible.sum()) - 1
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def draw_pairs(first: Tensor, second: Tensor, knobs: dict[str, float], rounds: int) -> Tensor:
    """Counts [V, V] of (token, next token) drawn through a tree that drafts some of the first tokens.

    `first` [V] are the logits after the root, `second` [V, V] those after each first token. Where the first
    token was drafted, the second comes out of the same step; else a second step follows at the next position.
    """
    vocab = len(first)
    tokens, parent = torch.tensor([0, 2, 0, 4]), torch.tensor([-1, 0, 0, 0])
    depth, ancestor = torch.tensor([0, 1, 1, 1]), torch.tensor([1, 3, 5, 9])
    logits = torch.cat((first[None], second[tokens[1:]]))
    seen, counts = torch.zeros(vocab, dtype=torch.bool), torch.zeros(vocab, vocab)
    one = torch.tensor([0])
    for seed in range(rounds):
        sampling = settings_of(**knobs, seed=seed, limit=2)  # type: ignore[arg-type]
        step = accept(logits, tokens, parent, depth, ancestor, one, seen, sampling)
        pair = step.written[: int(step.count)].tolist()
        if len(pair) == 1:
            rest = accept(second[pair].contiguous(), one, one - 1, one, one + 1, one + 1, seen, sampling)
            pair += rest.written[:1].tolist()
        counts[pair[0], pair[1]] += 1
    return counts


@pytest.mark.parametrize("knobs", [
    {"temperature": 1.0}, {"temperature": 0.6, "top_k": 5}, {"temperature": 1.4, "top_p": 0.8},
    {"temperature": 1.2, "top_k": 6, "top_p": 0.9, "min_p": 0.15},
])  # fmt: skip
def test_two_drawn_tokens_follow_the_exact_distribution(knobs: dict[str, float]) -> None:
    noise = torch.Generator().manual_seed(4)
    first, second = torch.randn(8, generator=noise), torch.randn(8, 8, generator=noise)
    rounds = 20_000
    counts = draw_pairs(first, second, knobs, rounds)
    exact = probabilities(first, **knobs)[:, None] * torch.stack([probabilities(row, **knobs) for row in second])
    assert chi_square_p(counts, exact * rounds) > CHI_SQUARE_LIMIT
    wrong = probabilities(first, **{**knobs, "temperature": knobs["temperature"] * 1.15})
    biased = wrong[:, None] * torch.stack([probabilities(row, **knobs) for row in second])
    assert chi_square_p(counts, biased * rounds) < CHI_SQUARE_LIMIT  # negative control: 15 % off is found


def test_noise_is_a_function_of_seed_position_and_token() -> None:
    seed, positions = torch.tensor([5]), torch.tensor([3, 4, 3])
    noise = uniform(seed, positions, 100)
    assert torch.equal(noise[0], noise[2])
    assert not torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[0], uniform(seed + 1, positions, 100)[0])
    assert ((noise > 0) & (noise < 1)).all()
    assert int(mix64(torch.tensor(1))) == 0x5692161D100B05E5  # SplitMix64's finaliser of 1


def test_a_token_seen_on_a_sibling_is_not_penalised() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.9]] * 3)
    tokens = torch.tensor([0, 1, 2])
    depth, ancestor = torch.tensor([0, 1, 1]), torch.tensor([1, 3, 5])
    sampling = settings_of(temperature=0.0, penalty=2.0)
    seen = torch.zeros(3, dtype=torch.bool)
    choice = choose(logits, depth, seen, tokens, ancestor, sampling)
    assert choice.tolist() == [1, 2, 1]  # under token 1 it is halved, under its sibling it is not


def test_filters_keep_ties_and_at_least_one_token() -> None:
    row = torch.tensor([[1.0, 2.0, 2.0, 0.0]])
    off, one = torch.tensor(0.0), torch.tensor(1.0)
    assert filtered(row, torch.tensor(1.0), one, off).isfinite().tolist() == [[False, True, True, False]]
    assert filtered(row, off, torch.tensor(0.0), off).isfinite().sum() == 1


def test_wrong_inputs_are_refused() -> None:
    if not native.load():
        pytest.skip("the reference has no such checks")
    one, seen = torch.tensor([0]), torch.zeros(4, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="fp32"):
        accept(torch.zeros(1, 4).double(), one, one - 1, one, one + 1, one, seen, settings_of())
    with pytest.raises(RuntimeError, match="not numbers"):
        accept(torch.full((1, 4), torch.nan), one, one - 1, one, one + 1, one, seen, settings_of())
    with pytest.raises(RuntimeError, match="seen"):
        accept(torch.zeros(1, 5), one, one - 1, one, one + 1, one, seen, settings_of())
