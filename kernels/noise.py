"""Noise that is a function of (seed, position, token): the same seed draws the same text at any tree size."""

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 torch holds it in."""
    return value - (1 << 64) if value >> 63 else value


_FIRST, _SECOND = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)
_STRIDE = _signed(0x9E3779B97F4A7C15)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: int64's own is arithmetic."""
    return (x >> bits) & (_MASK >> bits)


def mix64(x: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele et al., OOPSLA 2014) on int64 bit patterns; products wrap."""
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


def uniform(seed: Tensor, position: Tensor, vocab_size: int) -> Tensor:
    """Uniform draws in (0, 1), fp64 [M, V], for int64 `seed` [1] and the int64 positions [M] to be written."""
    key = mix64(mix64(seed + _STRIDE) + position)
    token = torch.arange(vocab_size, device=position.device)
    bits = mix64(key[:, None] + (token + 1) * _STRIDE)
    return (_shift_right(bits, 12).double() + 0.5) * 2.0**-52


def gumbel(seed: Tensor, position: Tensor, vocab_size: int) -> Tensor:
    """Gumbel noise fp64 [M, V]: `argmax(logits / T + gumbel)` is a draw from softmax(logits / T)."""
    return -torch.log(-torch.log(uniform(seed, position, vocab_size)))
