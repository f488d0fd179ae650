"""Drafting by the DART head: its logits, scored by n-grams, pruned to a tree."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dart_core.draft_head import MAX_ROWS, DraftHead, HeadCache, draft_logits, new_head_cache, prefill_head
from dart_core.prune import CONTEXT, PruneConfig, build_tree, top_candidates
from dart_core.state import State
from dart_core.tree import DraftTree
from kernels.learning_table import LearningTable, learn, new_table
from kernels.ngram_lookup import NgramTable


@dataclass(slots=True)
class HeadDrafter:
    """A draft head with its cache, and the n-gram models that score its proposals.

    `taps` bf16 [context + 64, 3 · H] are the target's tapped states of every position, so that the head can
    catch up after a time without drafting. `length` int64 [1]: positions in the head's cache.
    """

    head: DraftHead
    cache: HeadCache
    embed: Tensor  # the target's, [V, H]
    taps: Tensor
    eos: Tensor
    learned: LearningTable
    ngram: NgramTable | None
    config: PruneConfig
    length: Tensor
    name: str = "head"

    def rewind(self, kept: int) -> None:
        """A row of the head reads the token after its position, so the row before the first new token goes too."""
        self.length.clamp_(max=max(kept - 1, 0))

    def catch_up(self, state: State) -> None:
        """Reads all that is committed: a prompt, what was written while nothing was drafted."""
        start, end = int(self.length), int(state.length)
        for first in range(start, end, MAX_ROWS):
            rows = torch.arange(first, min(first + MAX_ROWS, end), device=self.length.device)
            count = torch.full_like(self.length, len(rows))
            tokens, taps = state.history[rows + 1], self.taps[rows]
            prefill_head(self.head, self.cache, self.embed, tokens, taps, count, self.length)
            self.length.add_(count)

    def observe(self, state: State, taps: Tensor, count: Tensor) -> None:
        """Keeps the taps; learns what follows each new position. Rows past `count` are written over later."""
        rows = torch.arange(len(taps), device=taps.device)
        self.taps.index_copy_(0, state.length - count + rows, taps.to(self.taps.dtype))
        learn(self.learned, state.history, state.length, count)

    def draft(self, state: State, nodes: int) -> DraftTree:
        """Reads what the last step committed, drafts below the root, prunes.

        The head drafts from its last real row: the root's predecessor, read again if it is in the cache already.
        A prompt of one token has none, and row 0 stands in for it. A step commits at most depth + 1 positions.
        """
        end = state.length.clamp(min=1)
        start = torch.minimum(self.length, end - 1)
        rows = start + torch.arange(self.config.depth + 1, device=start.device)
        tokens, taps = state.history[rows + 1], self.taps[rows]
        logits = draft_logits(self.head, self.cache, self.embed, tokens, taps, end - start, start)
        self.length.copy_(state.length)
        before = state.length + torch.arange(1 - CONTEXT, 1, device=start.device)
        context = torch.where(before >= 0, state.history[before.clamp(min=0)], -1)
        candidates = top_candidates(logits, self.head.target_ids, self.config)
        return build_tree(candidates, context, self.eos, self.config, nodes, self.ngram, self.learned)


def new_head_drafter(
    head: DraftHead,
    embed: Tensor,
    context: int,
    eos: frozenset[int],
    ngram: NgramTable | None = None,
    config: PruneConfig | None = None,
) -> HeadDrafter:
    """A drafter for one conversation of at most `context` tokens."""
    return HeadDrafter(
        head,
        new_head_cache(head, context),
        embed,
        torch.zeros(context + MAX_ROWS, 3 * embed.shape[1], dtype=torch.bfloat16),
        torch.tensor(sorted(eos), dtype=torch.int64),
        new_table(),
        ngram,
        config or PruneConfig(depth=head.config.draft_length + 1),
        torch.zeros(1, dtype=torch.int64),
    )
