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
    catch up after a time without drafting. `length` positions are in the head's cache.
    """

    head: DraftHead
    cache: HeadCache
    embed: Tensor  # the target's, [V, H]
    taps: Tensor
    eos: Tensor
    learned: LearningTable
    ngram: NgramTable | None
    config: PruneConfig
    length: int = 0
    name: str = "head"

    def rewind(self, kept: int) -> None:
        """A row of the head reads the token after its position, so the row before the first new token goes too."""
        self.length = min(self.length, max(kept - 1, 0))

    def observe(self, state: State, taps: Tensor, count: int) -> None:
        """Keeps the taps; learns what follows each new position."""
        end = int(state.length)
        self.taps[end - count : end] = taps[:count].to(self.taps.dtype)
        learn(self.learned, state.history, end - count + 1, end + 1)

    def draft(self, state: State, nodes: int) -> DraftTree:
        """Brings the head up to the root, reads its logits, prunes."""
        root = int(state.length)
        while root - self.length > MAX_ROWS:
            prefill_head(self.head, self.cache, self.embed, *self._rows(state, self.length + MAX_ROWS))
            self.length += MAX_ROWS
        # The head drafts from its last real row; a prompt of one token has none yet, and row 0 stands in for it.
        self.length = min(self.length, max(root - 1, 0))
        logits = draft_logits(self.head, self.cache, self.embed, *self._rows(state, max(root, 1)))
        self.length = root
        context = state.history[max(0, root + 1 - CONTEXT) : root + 1]
        candidates = top_candidates(logits, self.head.target_ids, self.config)
        return build_tree(candidates, context, self.eos, self.config, nodes, self.ngram, self.learned)

    def _rows(self, state: State, end: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Arguments of the head for positions [length, end): next tokens, taps, count, length."""
        start = self.length
        return (
            state.history[start + 1 : end + 1],
            self.taps[start:end],
            torch.tensor([end - start]),
            torch.tensor([start]),
        )


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
    )
