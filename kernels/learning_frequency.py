"""The learning table's q(token | context) for many contexts at once, in tensor operations of fixed shapes."""

import torch
from torch import Tensor

from kernels.learning_table import CONTEXT_LENGTHS, LONGEST, PROBES, LearningTable


def learned_frequency(table: LearningTable, contexts: Tensor, tokens: Tensor, prior: Tensor | None = None) -> Tensor:
    """How likely `tokens` int64 [B, K] follow `contexts` int64 [B, n], the most recent last: fp32 [B, K].

    All contexts that match are mixed as `kernels.learning_table` says; what is left of the probability after the
    shortest goes to `prior` fp32 [K] or [B, K], or to no token. A context token of −1 is none.
    """
    key = torch.zeros(len(contexts), dtype=torch.int64, device=contexts.device)
    valid = torch.ones_like(key, dtype=torch.bool)
    found = []
    for used, token in enumerate(reversed(contexts.unbind(-1)[-LONGEST:]), start=1):
        valid = valid & (token >= 0)
        key = _mix64(key + token + 1)
        if used in CONTEXT_LENGTHS:
            found.append(_slots(table, key | 1, valid))
    probability = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device)
    left = torch.ones(len(contexts), dtype=torch.float64, device=tokens.device)
    for slot, known in reversed(found):
        counts = torch.where(known[:, None], table.counts[slot], 0)  # [B, ways]
        seen = ((table.tokens[slot][:, None] == tokens[:, :, None]) * counts[:, None]).sum(-1)
        distinct = (counts > 0).sum(-1)
        whole = (counts.sum(-1) + distinct).clamp(min=1)
        probability = probability + (left / whole)[:, None] * seen
        left = torch.where(known, left * distinct / whole, left)
    if prior is not None:
        probability = probability + left[:, None] * prior
    return probability.float()


def _slots(table: LearningTable, key: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The slots of `key` int64 [B] (any where there is none), and bool [B]: there is one."""
    probes = torch.arange(PROBES, device=key.device)
    slot = (_shifted(key, 1)[:, None] + probes) & (len(table.keys) - 1)
    here = (table.keys[slot] == key[:, None]) & valid[:, None]
    place = here.int().argmax(-1, keepdim=True)
    return slot.gather(-1, place)[:, 0], here.any(-1)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x shifted right as the unsigned number its 64 bits are."""
    return (x >> bits) & ((1 << 64 - bits) - 1)


def _mix64(x: Tensor) -> Tensor:
    """`kernels.learning_table._mix64` of int64 tensors."""
    x = (x ^ _shifted(x, 30)) * (0xBF58476D1CE4E5B9 - (1 << 64))
    x = (x ^ _shifted(x, 27)) * (0x94D049BB133111EB - (1 << 64))
    return x ^ _shifted(x, 31)
