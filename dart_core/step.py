"""The decode step: verify → accept → compact → draft → prune, over fixed-shape tensors."""

import torch
from torch import Tensor

from dart_core.drafter import Drafter
from dart_core.state import State, commit
from dart_core.tree import DraftTree, chain_ancestors, root_tree
from kernels.accept import Accepted, Sampling, accept
from kernels.kv_compact import kv_compact
from models.decoder import Target, forward, output_logits


def verify(target: Target, state: State, tree: DraftTree) -> tuple[Tensor, Tensor]:
    """One pass over the target's weights: logits fp32 [N, V] after every node, and its taps fp32 [N, 3 · H]."""
    hidden, taps = forward(target, state.cache, tree.tokens, tree.depth, tree.ancestor, state.length)
    return output_logits(target, hidden), taps


def step(
    target: Target, state: State, tree: DraftTree, sampling: Sampling, drafter: Drafter, nodes: int
) -> tuple[Accepted, DraftTree]:
    """Writes one to N tokens and proposes the next tree of at most `nodes` nodes (DART, figure 2).

    The root is the last token written, whose keys and values are not cached yet: verifying it is what plain
    decoding does, and a tree of one node is plain decoding. Fixed shapes, and nothing waits for the host. Where the
    last step drafted nothing, so must this one: `resume` makes the first tree.
    """
    logits, taps = verify(target, state, tree)
    accepted = accept(logits, tree.tokens, tree.parent, tree.depth, tree.ancestor, state.length, state.seen, sampling)
    kv_compact(state.cache.keys, state.cache.values, state.length, accepted.path)
    commit(state, tree.tokens, accepted)
    drafter.observe(state, taps[accepted.path], accepted.count)
    return accepted, draft(state, drafter, nodes)


def draft(state: State, drafter: Drafter, nodes: int) -> DraftTree:
    """The next tree, of at most `nodes` nodes; of one node, nothing is drafted."""
    return drafter.draft(state, nodes) if nodes > 1 else root_tree(state.history[state.length])


def resume(state: State, drafter: Drafter, nodes: int) -> DraftTree:
    """The first tree after a prompt, or after steps that drafted nothing. It waits for the host, as no step does."""
    if nodes > 1:
        drafter.catch_up(state)
    return draft(state, drafter, nodes)


def prefill(target: Target, state: State, tokens: Tensor, drafter: Drafter) -> None:
    """Reads the next ≤ 64 prompt tokens, int64 [M], as a chain tree without branches."""
    rows = torch.arange(len(tokens), device=tokens.device)
    _, taps = forward(target, state.cache, tokens, rows, chain_ancestors(rows), state.length)
    state.seen[tokens] = True
    state.length.add_(len(tokens))
    drafter.observe(state, taps, torch.full((1,), len(tokens), device=tokens.device))
