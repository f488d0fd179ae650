"""Everything a step reads and writes, in preallocated tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dart_core.tree import MAX_NODES
from kernels.accept import Accepted
from models.decoder import DecoderConfig, KVCache, new_cache


@dataclass(frozen=True, slots=True)
class State:
    """One conversation on the device.

    `length` int64 [1]: tokens whose keys and values are in `cache`. `history` int64 [S]: those tokens, then the
    root (the last token written) at index `length`. `seen` bool [V]: which tokens the first `length` hold.
    """

    cache: KVCache
    length: Tensor
    history: Tensor
    seen: Tensor


def new_state(config: DecoderConfig, context: int, device: torch.device) -> State:
    """An empty conversation of at most `context` tokens; the cache has room for a whole tree beyond them."""
    slots = context + MAX_NODES
    return State(
        new_cache(config, slots, device),
        torch.zeros(1, dtype=torch.int64, device=device),
        torch.zeros(slots + 1, dtype=torch.int64, device=device),
        torch.zeros(config.vocab_size, dtype=torch.bool, device=device),
    )


def rewind(state: State, tokens: list[int], kept: int) -> None:
    """Makes `tokens` the conversation, of which the first `kept` are in the cache already and stay there."""
    state.history[: len(tokens)] = torch.tensor(tokens)
    state.length.fill_(kept)
    state.seen.zero_()
    state.seen[state.history[:kept]] = True


def commit(state: State, tokens: Tensor, accepted: Accepted) -> None:
    """Appends what a step accepted: the path's tokens are committed, the last token written is the new root.

    `tokens` int64 [N] are the tree's. Entries past `accepted.count` lie beyond the text and are overwritten.
    """
    positions = state.length + 1 + torch.arange(len(accepted.written), device=tokens.device)
    state.history[positions] = accepted.written
    state.seen[tokens[accepted.path]] = True
    state.length.add_(accepted.count)
