"""y = x · Wᵀ for 4-bit weights, a few rows at a time: the cost of a pass over a draft tree.

A row's result does not depend on how many rows go with it, so greedy text is the same drafted or plain.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.weight4 import Weight4, dequantise


@dataclass(frozen=True, slots=True)
class Packed4:
    """A 4-bit [N, K] matrix laid out for this machine's kernel. Make it with `pack`, use it with `linear4`."""

    weight: Weight4


def pack(weight: Weight4) -> Packed4:
    """Lays `weight` out for the kernel of its device."""
    return Packed4(weight)


def linear4(x: Tensor, packed: Packed4) -> Tensor:
    """x fp32 [M, K], M ≤ 64 → fp32 [M, N]. A row's result is the same, bit for bit, whatever M."""
    matrix = dequantise(packed.weight)
    return torch.cat([row @ matrix.T for row in x.split(1)])
