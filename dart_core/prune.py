"""From the draft head's logits to a draft tree: a beam search scored by the head and by n-grams.

Extending a path with token t at depth l (0-based) scores (DART, appendix C)
`(l + 1)^−0.7 · (0.9^l · log p_l(t) + 0.5 · log q(t | path))`, logs of (x + 1e−10); q is absent at l = 0, and
where there is no n-gram model at all. The best paths of a depth are extended further, those that end in eos
last; all extensions made at any depth compete for the places of the tree by the sum of their scores.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dart_core.tree import MAX_NODES, DraftTree
from kernels import native
from kernels.learning_frequency import learned_frequency
from kernels.learning_table import LearningTable
from kernels.ngram_lookup import NgramTable, ngram_lookup

EPSILON = 1e-10
CONTEXT = 8  # tokens before a candidate that any n-gram model looks at
_INDEX_BITS = 16

Lookup = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class PruneConfig:
    """The paper's values. `learned_weight`: the share in q of the table that learns, beside a built model."""

    depth: int = 8
    top_k: int = 25
    beam: int = 20
    level_power: float = 0.7
    logit_decay: float = 0.9
    ngram_weight: float = 0.5
    learned_weight: float = 0.5


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may stand at each depth, best first: `tokens` int64 [depth, k], `probability` fp32 [depth, k]."""

    tokens: Tensor
    probability: Tensor


def top_candidates(logits: Tensor, target_ids: Tensor, config: PruneConfig) -> Candidates:
    """The top k of each depth and their softmax among themselves, as the paper takes it.

    `logits` fp32 [≥ depth, Vd] of the draft vocabulary, whose target ids are `target_ids` int64 [Vd].
    """
    logits = torch.nan_to_num(logits[: config.depth].float(), nan=-torch.inf).clamp(min=-1e30)
    top = logits.topk(min(config.top_k, logits.shape[-1]), dim=-1)
    return Candidates(target_ids[top.indices], top.values.softmax(-1))


def build_tree(
    candidates: Candidates,
    context: Tensor,
    eos: Tensor,
    config: PruneConfig,
    nodes: int,
    ngram: NgramTable | None = None,
    learned: LearningTable | None = None,
) -> DraftTree:
    """The tree of at most `nodes` ≤ 64 nodes below the root, the last token of `context`.

    `context` int64 [n ≥ 1]: the latest tokens, the root last; −1 stands for none before the conversation's
    first. The n-gram models look at order − 1 and 8 of them. `eos` int64 [E]: tokens that end a reply.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise ValueError(f"a tree has 1 to {MAX_NODES} nodes, not {nodes}")
    if context.device.type == "cpu" and native.load():
        return DraftTree(
            *torch.ops.dart.prune_tree(
                candidates.tokens,
                candidates.probability,
                context,
                eos,
                [] if ngram is None else ngram.arrays,
                0 if ngram is None else ngram.order,
                0 if ngram is None else ngram.bits,
                [] if learned is None else [learned.keys, learned.tokens, learned.counts],
                config.level_power,
                config.logit_decay,
                config.ngram_weight,
                config.learned_weight,
                config.beam,
                nodes,
            )
        )
    q = mixed_frequency(ngram, learned, config.learned_weight)
    return build_tree_reference(candidates, context, eos, config, nodes, q)


def mixed_frequency(ngram: NgramTable | None, learned: LearningTable | None, weight: float) -> Lookup | None:
    """q: from contexts int64 [B, n], tokens int64 [B, K] and the head's probabilities of them to fp32 [B, K].

    Of one model or of both mixed. The learning table knows little yet: what it leaves of the probability goes to
    the head's own guess, so that a context it has never seen says nothing, where the built model's silence counts.
    """
    if ngram is None and learned is None:
        return None

    def q(contexts: Tensor, tokens: Tensor, prior: Tensor) -> Tensor:
        if learned is None:
            assert ngram is not None
            return ngram_lookup(ngram, contexts, tokens)[0]
        recent = learned_frequency(learned, contexts, tokens, prior)
        if ngram is None:
            return recent
        return (1 - weight) * ngram_lookup(ngram, contexts, tokens)[0] + weight * recent

    return q


def build_tree_reference(
    candidates: Candidates, context: Tensor, eos: Tensor, config: PruneConfig, nodes: int, q: Lookup | None
) -> DraftTree:
    """`build_tree` in tensor operations of fixed shapes, on any device, with any q (`mixed_frequency`)."""
    depths, k = candidates.tokens.shape
    device = context.device
    paths, path_score = context[None], torch.zeros(1, device=device)
    path_index = torch.full((1,), -1, dtype=torch.int64, device=device)
    scores, parents = [], []
    start = 0
    for level in range(depths):
        tokens = candidates.tokens[level].expand(len(paths), k)
        step = config.logit_decay**level * (candidates.probability[level] + EPSILON).log()
        if level > 0 and q is not None:
            step = step + config.ngram_weight * (q(paths, tokens, candidates.probability[level]) + EPSILON).log()
        step = (level + 1) ** -config.level_power * step
        # A softmax may round to a little more than 1; a node must not score better than its parent.
        score = (path_score[:, None] + step.clamp(max=0)).expand(len(paths), k).flatten()
        scores.append(score)
        parents.append(path_index[:, None].expand(-1, k).flatten())
        goes_on = ~torch.isin(tokens.flatten(), eos)
        best = _best(score, goes_on, min(config.beam, len(score)))
        paths = torch.cat((paths[best // k, 1:], tokens.flatten()[best, None]), dim=1)
        path_score, path_index = score[best], start + best
        start += len(score)
    return _as_tree(torch.cat(scores), torch.cat(parents), candidates, config, context[-1:], nodes)


def _best(score: Tensor, first: Tensor | None, count: int) -> Tensor:
    """Indices of the `count` best, those in `first` before all others; ties: lower index first."""
    bits = (score + 0.0).view(torch.int32).long()  # adding 0 makes −0 a 0
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) + (1 << 31)
    if first is not None:
        rising = rising + (first.long() << 32)
    index = torch.arange(len(score), device=score.device)
    return (rising << _INDEX_BITS | ((1 << _INDEX_BITS) - 1 - index)).topk(count).indices


def _as_tree(
    score: Tensor, parent: Tensor, candidates: Candidates, config: PruneConfig, root: Tensor, nodes: int
) -> DraftTree:
    """The best extensions, in the order they were made, as the rows of a tree."""
    depths, k = candidates.tokens.shape
    device = score.device
    count = min(nodes - 1, len(score))
    chosen = _best(score, None, count).sort().values
    rank = chosen % k
    depth = 1 + _levels_below(chosen, k, config.beam, depths)
    above = parent[chosen]
    rows = torch.arange(nodes, device=device)
    row_of_parent = torch.where(above < 0, 0, 1 + torch.searchsorted(chosen, above))
    token = candidates.tokens[depth - 1, rank]
    ancestor = torch.ones_like(rows) << rows
    up = _padded(row_of_parent, nodes, 0)
    for _ in range(depths):
        ancestor = ancestor | torch.where((rows > 0) & (rows <= count), ancestor[up], 0)
    return DraftTree(
        tokens=torch.cat((root, _padded(token, nodes, 0)[1:])),
        parent=_padded(row_of_parent, nodes, -1),
        depth=_padded(depth, nodes, 0),
        ancestor=ancestor,
        score=torch.cat((torch.ones(1, device=device), _padded(candidates.probability[depth - 1, rank], nodes, 0)[1:])),
        rank=_padded(rank, nodes, 0),
        count=torch.full((1,), count + 1, device=device),
    )


def _levels_below(extension: Tensor, k: int, beam: int, depths: int) -> Tensor:
    """The depth, 0-based, an extension was made at: k at the first, then k for every path of the beam."""
    ends = []
    made, paths = 0, 1
    for _ in range(depths - 1):
        made += paths * k
        paths = min(beam, paths * k)
        ends.append(made)
    below = torch.zeros_like(extension)
    for end in ends:
        below = below + (extension >= end)
    return below


def _padded(rows: Tensor, nodes: int, fill: int) -> Tensor:
    """`rows` from row 1 on, `fill` in the root's place and in the padding."""
    return torch.nn.functional.pad(rows, (1, nodes - 1 - len(rows)), value=fill)
