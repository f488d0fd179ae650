"""The 4-bit weight format: codes, a 16-entry codebook, a scale and optionally a minimum for each group.

`w[n, k] = codebook[code[n, k]] · scale[n, k // group] + minimum[n, k // group]`

It holds NF4 (bitsandbytes, group 64) and GGUF Q4_0 / Q4_1 (group 32, codebook 0…15) exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# QLoRA (arXiv 2305.14314), appendix E: quantiles of a normal distribution, scaled to [-1, 1].
NF4_CODEBOOK = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
AFFINE_CODEBOOK = tuple(float(i) for i in range(16))


@dataclass(frozen=True, slots=True)
class Weight4:
    """A [N, K] matrix in 4 bits.

    `codes`: uint8 [N, K/2], the low nibble is the even k. `codebook`: fp32 [16].
    `scale`, `minimum`: fp16 or fp32 [N, K/group]; `minimum` None is zero.
    """

    codes: Tensor
    codebook: Tensor
    scale: Tensor
    minimum: Tensor | None
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.codes.shape[0], self.codes.shape[1] * 2

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and minimums."""
        parts = (self.codes, self.scale) if self.minimum is None else (self.codes, self.scale, self.minimum)
        return sum(part.nbytes for part in parts)


def unpack_codes(codes: Tensor) -> Tensor:
    """uint8 [N, K/2] nibble pairs → uint8 [N, K] codes 0…15."""
    return torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)


def pack_codes(codes: Tensor) -> Tensor:
    """uint8 [N, K] codes 0…15 → uint8 [N, K/2], even k in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def dequantise(weight: Weight4) -> Tensor:
    """The matrix the codes stand for, fp32 [N, K]."""
    values = weight.codebook[unpack_codes(weight.codes).int()].view(*weight.scale.shape, weight.group)
    values = values * weight.scale.float().unsqueeze(-1)
    if weight.minimum is not None:
        values = values + weight.minimum.float().unsqueeze(-1)
    return values.flatten(-2)


def quantise_affine(weight: Tensor, group: int = 32) -> Weight4:
    """fp [N, K] → codes 0…15 over a group's [min, max] (GGUF Q4_1). ValueError unless `group` divides K."""
    if weight.shape[-1] % group:
        raise ValueError(f"K = {weight.shape[-1]} is not a multiple of the group {group}")
    grouped = weight.float().reshape(weight.shape[0], -1, group)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scale, minimum = ((high - low) / 15).half(), low.half()
    step = scale.float().unsqueeze(-1)
    step = torch.where(step > 0, step, torch.ones_like(step))
    codes = ((grouped - minimum.float().unsqueeze(-1)) / step).round()
    return Weight4(
        pack_codes(codes.clamp_(0, 15).byte().flatten(-2)),
        torch.tensor(AFFINE_CODEBOOK, device=weight.device),
        scale,
        minimum,
        group,
    )


def quantise_8bit(weight: Tensor, group: int = 32) -> Weight4:
    """fp [N, K] in 8 bits, as two 4-bit halves side by side: [N, 2 · K], for a row that is laid out twice.

    With q = round(w / d) + 128 = 16 · high + low (d as GGUF's Q8_0: the group's largest value is 127),
    w = 16 d · high + (d · low − 128 d). What is exact in Q8_0 is exact here.
    """
    grouped = weight.float().unflatten(-1, (-1, group))
    scale = (grouped.abs().amax(-1) / 127).half()
    step = scale.float().unsqueeze(-1)
    codes = (grouped / torch.where(step > 0, step, torch.ones_like(step))).round().clamp_(-127, 127) + 128
    high, low = codes.div(16, rounding_mode="floor").byte().flatten(-2), codes.remainder(16).byte().flatten(-2)
    return Weight4(
        torch.cat((pack_codes(high), pack_codes(low)), dim=-1),
        torch.tensor(AFFINE_CODEBOOK, device=weight.device),
        torch.cat((scale * 16, scale), dim=-1),
        torch.cat((torch.zeros_like(scale), scale * -128), dim=-1),
        group,
    )


def cat_rows(weights: Sequence[Weight4]) -> Weight4:
    """Stacks matrices of one K, codebook and group below one another (fused qkv, gate/up).

    Raises ValueError where they differ.
    """
    first = weights[0]
    for other in weights[1:]:
        if other.group != first.group or other.shape[1] != first.shape[1]:
            raise ValueError("only matrices of the same K and group can be fused")
        same_kind = (other.minimum is None) == (first.minimum is None)
        if not same_kind or not torch.equal(other.codebook, first.codebook):
            raise ValueError("only matrices of the same 4-bit code can be fused")
    minimums = [weight.minimum for weight in weights if weight.minimum is not None]
    return Weight4(
        torch.cat([weight.codes for weight in weights]),
        first.codebook,
        torch.cat([weight.scale for weight in weights]),
        torch.cat(minimums) if minimums else None,
        first.group,
    )
