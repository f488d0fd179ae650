"""Who proposes the draft tree. A drafter is a function of the past, so it changes speed and never text."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dart_core.state import State
from dart_core.tree import DraftTree, root_tree
from kernels.learning_table import LearningTable, grow, learn

NODE_FLOOR = 0.1  # a tree of 8 costs about 1.6 single rows (FACTS), so a node must be accepted one time in ten


class Drafter(Protocol):
    """Watches what the target reads and writes, and proposes trees below the root, `history[length]`."""

    @property
    def name(self) -> str:
        """What a draft tree's nodes say of where they come from."""

    def rewind(self, kept: int) -> None:
        """Only the first `kept` tokens of the conversation stay; the token after them may be another."""

    def catch_up(self, state: State) -> None:
        """Called outside the step, before it drafts again after steps that did not."""

    def observe(self, state: State, taps: Tensor, count: Tensor) -> None:
        """The last `count` int64 [1] committed positions are new. `taps` [≥ count, 3 · H]: theirs come first."""

    def draft(self, state: State, nodes: int) -> DraftTree:
        """A tree of at most `nodes` rows, root included."""


@dataclass(frozen=True, slots=True)
class PlainDrafter:
    """Drafts nothing: plain decoding."""

    name: str = "off"

    def rewind(self, kept: int) -> None:
        """Nothing to forget."""

    def catch_up(self, state: State) -> None:
        """Nothing to read."""

    def observe(self, state: State, taps: Tensor, count: Tensor) -> None:
        """Nothing to learn."""

    def draft(self, state: State, nodes: int) -> DraftTree:
        """The root alone."""
        return root_tree(state.history[state.length])


@dataclass(frozen=True, slots=True)
class NgramDrafter:
    """Drafts from what this conversation, and those before it, have said."""

    table: LearningTable
    floor: float = NODE_FLOOR
    name: str = "ngram"

    def rewind(self, kept: int) -> None:
        """What was learnt stays true."""

    def catch_up(self, state: State) -> None:
        """It has learnt from every position already."""

    def observe(self, state: State, taps: Tensor, count: Tensor) -> None:
        """Learns what follows each new position."""
        learn(self.table, state.history, state.length, count)

    def draft(self, state: State, nodes: int) -> DraftTree:
        """The most probable tree."""
        return DraftTree(*grow(self.table, state.history, state.length, nodes, self.floor))
