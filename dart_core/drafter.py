"""Who proposes the draft tree. A drafter is a function of the past, so it changes speed and never text."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dart_core.state import State
from dart_core.tree import DraftTree, root_tree
from kernels.accept import Accepted
from kernels.learning_table import LearningTable, grow, learn, new_table

NODE_FLOOR = 0.1  # a tree of 8 costs about 1.6 single rows (FACTS), so a node must be accepted one time in ten


class Drafter(Protocol):
    """Proposes a tree below the root, `state.history[state.length]`."""

    @property
    def name(self) -> str:
        """What a draft tree's nodes say of where they come from."""

    def prefill(self, state: State, start: int, end: int, taps: Tensor) -> None:
        """The target has read the tokens [start, end); `taps` fp32 [end − start, 3 · H] are its tapped states."""

    def draft(self, state: State, accepted: Accepted | None, taps: Tensor | None, nodes: int) -> DraftTree:
        """A tree of at most `nodes` rows, root included.

        `accepted`, `taps` are the step's that wrote the root: None for the first tree after a prompt.
        """


@dataclass(frozen=True, slots=True)
class PlainDrafter:
    """Drafts nothing: plain decoding."""

    name: str = "off"

    def prefill(self, state: State, start: int, end: int, taps: Tensor) -> None:
        """Learns nothing."""

    def draft(self, state: State, accepted: Accepted | None, taps: Tensor | None, nodes: int) -> DraftTree:
        """The root alone."""
        return root_tree(state.history[state.length])


@dataclass(frozen=True, slots=True)
class NgramDrafter:
    """Drafts from what this conversation has said before."""

    table: LearningTable
    floor: float = NODE_FLOOR
    name: str = "ngram"

    def prefill(self, state: State, start: int, end: int, taps: Tensor) -> None:
        """Learns the prompt's tokens."""
        learn(self.table, state.history, start, end)

    def draft(self, state: State, accepted: Accepted | None, taps: Tensor | None, nodes: int) -> DraftTree:
        """Learns the tokens just written, then grows the most probable tree."""
        root = int(state.length)
        written = int(accepted.count) if accepted is not None else 1
        learn(self.table, state.history, root + 1 - written, root + 1)
        return DraftTree(*grow(self.table, state.history, root, nodes, self.floor))


def new_drafter(name: str) -> Drafter:
    """The drafter `name`: "ngram" or "off"."""
    return NgramDrafter(new_table()) if name == "ngram" else PlainDrafter()
