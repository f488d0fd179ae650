"""Acceptance, greedy and sampled, by one rule: at every node draw the target's next token y and follow the child
that equals y; where there is none, write y and stop.

A draft tree is a function of the past, so this is exact: y is what plain decoding would have drawn there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import native
from kernels.noise import gumbel


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters as device tensors, so that changing one never recompiles or recaptures.

    `knobs` fp32 [5]: temperature (0 is greedy), top_k (0 is off), top_p, min_p, repetition penalty.
    `seed` int64 [1]. `limit` int64 [1]: the most tokens this step may write. `eos` int64 [E].
    """

    knobs: Tensor
    seed: Tensor
    limit: Tensor
    eos: Tensor


@dataclass(frozen=True, slots=True)
class Accepted:
    """`path` int64 [N]: the accepted nodes, root first; `written` int64 [N]: the target's token at each of them.

    The first `count` int64 [1] entries of both hold; `count` ≥ 1 is how many tokens the step writes.
    """

    path: Tensor
    written: Tensor
    count: Tensor


def penalise(logits: Tensor, seen: Tensor, tokens: Tensor, ancestor: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty (CTRL, arXiv 1909.05858): seen tokens' logits are divided (positive) or multiplied by it.

    fp32 [M, V]. `seen` bool [V] is the context without the tree; a row adds its own ancestors, never its siblings.
    """
    rows = torch.arange(len(tokens), device=tokens.device)
    is_ancestor = (ancestor[:, None] >> rows) & 1
    own = torch.zeros_like(logits).index_add(1, tokens, is_ancestor.to(logits.dtype)) > 0
    penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen | own, penalised, logits)


def filtered(scaled: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Logits after temperature, fp32 [M, V], with what top-k, top-p, min-p (in that order) drop set to -inf."""
    vocab_size = scaled.shape[-1]
    ordered, index = scaled.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=scaled.device)
    k = torch.where(top_k > 0, top_k.clamp(max=vocab_size), vocab_size).long()
    ordered = ordered.masked_fill(ordered < ordered.gather(-1, (k - 1).expand(len(scaled), 1)), -torch.inf)
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
    ordered = ordered.masked_fill((before >= top_p) & (rank > 0), -torch.inf)
    probability = ordered.softmax(-1)
    ordered = ordered.masked_fill(probability < min_p * probability[:, :1], -torch.inf)
    return torch.empty_like(scaled).scatter_(-1, index, ordered)


def choose(
    logits: Tensor, position: Tensor, seen: Tensor, tokens: Tensor, ancestor: Tensor, sampling: Sampling
) -> Tensor:
    """The target's next token after each tree row, int64 [M].

    `logits` fp32 [M, V]; `position` int64 [M] of the token to be written. The same for a row whatever the tree.
    """
    temperature, top_k, top_p, min_p, penalty = sampling.knobs.unbind()
    logits = penalise(logits, seen, tokens, ancestor, penalty)
    scaled = logits / torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    drawn = filtered(scaled, top_k, top_p, min_p).double() + gumbel(sampling.seed, position, logits.shape[-1])
    return torch.where(temperature > 0, drawn.argmax(-1), logits.argmax(-1))


def walk(tokens: Tensor, parent: Tensor, choice: Tensor, sampling: Sampling) -> Accepted:
    """Follows the target's choices from the root: int64 [N] each. Stops at eos and at the limit."""
    size = len(tokens)
    rows = torch.arange(size, device=tokens.device)
    node = torch.zeros(1, dtype=torch.int64, device=tokens.device)
    alive = torch.ones_like(node, dtype=torch.bool)
    path, count = [], torch.zeros_like(node)
    for _ in range(size):
        path.append(node)
        count = count + alive
        is_next = (parent == node) & (tokens == choice[node]) & (rows > 0)
        alive = alive & is_next.any() & ~torch.isin(choice[node], sampling.eos) & (count < sampling.limit)
        node = torch.where(alive, is_next.int().argmax(), node)
    path_nodes = torch.cat(path)
    return Accepted(path_nodes, choice[path_nodes], count)


def accept(
    logits: Tensor,
    tokens: Tensor,
    parent: Tensor,
    depth: Tensor,
    ancestor: Tensor,
    length: Tensor,
    seen: Tensor,
    sampling: Sampling,
) -> Accepted:
    """Which nodes of the tree the target agrees with, and what it writes.

    `logits` fp32 [N, V] are the target's after each node; `tokens`, `parent`, `depth`, `ancestor` int64 [N];
    `length` int64 [1] tokens lie before the root; `seen` bool [V] are those tokens.
    """
    if logits.device.type == "cpu" and native.load():
        # Draws only where the walk goes: one or two rows of the tree, where the reference draws all.
        return Accepted(
            *torch.ops.dart.accept(
                logits, tokens, parent, depth, ancestor, length, seen,
                sampling.knobs, sampling.seed, sampling.limit, sampling.eos,
            )
        )  # fmt: skip
    return accept_reference(logits, tokens, parent, depth, ancestor, length, seen, sampling)


def accept_reference(
    logits: Tensor,
    tokens: Tensor,
    parent: Tensor,
    depth: Tensor,
    ancestor: Tensor,
    length: Tensor,
    seen: Tensor,
    sampling: Sampling,
) -> Accepted:
    """`accept` in plain torch, on any device."""
    choice = choose(logits, length + depth + 1, seen, tokens, ancestor, sampling)
    return walk(tokens, parent, choice, sampling)
