"""y = x · Wᵀ for 4-bit weights, a few rows at a time: the cost of a pass over a draft tree.

A row's result does not depend on how many rows go with it, so greedy text is the same drafted or plain.
On a CPU the C++ of `kernels/cpu` multiplies the codes with activations rounded to int8 per group (about 0.5 %
error a layer). Without it: torch's 4-bit product for affine codes, else plain torch.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import native
from kernels.weight4 import Weight4, dequantise, pack_codes, unpack_codes

TILE = 32  # columns of y in a tile; kTile in cpu/linear4.h


@dataclass(frozen=True, slots=True)
class Tiles:
    """The C++ kernel's layout, described in cpu/linear4.h.

    `w[n, k] = ((table[code] - offset) · scale + minimum) · unit`; `data` uint8 [tiles, K / group, bytes],
    `table` uint8 [16].
    """

    data: Tensor
    table: Tensor
    columns: int
    group: int
    offset: int
    unit: float


@dataclass(frozen=True, slots=True)
class Int4Pack:
    """The layout of torch's `_weight_int4pack_mm_for_cpu`: `scale_and_zero` bf16 [K / group, N, 2]."""

    data: Tensor
    scale_and_zero: Tensor
    group: int


@dataclass(frozen=True, slots=True)
class Packed4:
    """A 4-bit [N, K] matrix laid out for this machine's kernel: made by `pack`, used by `linear4`."""

    shape: tuple[int, int]
    layout: Tiles | Int4Pack | Weight4

    @property
    def nbytes(self) -> int:
        """Bytes of the weight as it lies in memory."""
        match self.layout:
            case Tiles(data=data):
                return data.nbytes
            case Int4Pack(data=data, scale_and_zero=scale_and_zero):
                return data.nbytes + scale_and_zero.nbytes
            case weight:
                return weight.nbytes


def pack(weight: Weight4) -> Packed4:
    """Lays `weight` out for its device's kernel. Raises ValueError unless the group is a multiple of 32."""
    if weight.group % 32 or weight.shape[1] % weight.group:
        raise ValueError(f"no kernel for group {weight.group} and K = {weight.shape[1]}: multiples of 32 only")
    if weight.codes.device.type == "cpu":
        if native.load():
            return Packed4(weight.shape, _tiles(weight))
        if _is_affine(weight) and weight.shape[0] % 16 == 0 and weight.group in (32, 64, 128):
            return Packed4(weight.shape, _int4pack(weight))
    return Packed4(weight.shape, weight)


def linear4(x: Tensor, packed: Packed4, bias: Tensor | None = None) -> Tensor:
    """x fp32 [M, K], M ≤ 64, bias fp32 [N] → fp32 [M, N]. A row's result is the same bits whatever M."""
    layout = packed.layout
    if isinstance(layout, Tiles):
        result: Tensor = torch.ops.dart.linear4(
            x, layout.data, layout.table, layout.columns, layout.group, layout.offset, layout.unit, bias
        )
        return result
    if isinstance(layout, Int4Pack):
        product = torch._weight_int4pack_mm_for_cpu(x.bfloat16(), layout.data, layout.group, layout.scale_and_zero)
        y: Tensor = product.float()
        return y if bias is None else y + bias
    return linear4_reference(x, layout, bias)


def linear4_reference(x: Tensor, weight: Weight4, bias: Tensor | None = None) -> Tensor:
    """`linear4` in plain torch on exact fp32 weights, row by row (a matrix product's sums depend on M)."""
    matrix = dequantise(weight)
    y = torch.cat([row @ matrix.T for row in torch.split(x, 1)])
    return y if bias is None else y + bias


def unpack(packed: Packed4) -> Weight4:
    """The matrix the kernel multiplies with: `pack` rounds scales to fp16 and a codebook to bytes."""
    layout = packed.layout
    if isinstance(layout, Int4Pack):
        raise ValueError("torch's 4-bit layout cannot be read back")
    if isinstance(layout, Weight4):
        return layout
    tiles, groups, _ = layout.data.shape
    split = layout.group * TILE // 2
    pairs = layout.data[..., :split].reshape(tiles, groups, layout.group // 8, TILE, 4).permute(0, 3, 1, 2, 4)
    codes = torch.cat((pairs & 15, pairs >> 4), dim=-1).reshape(tiles * TILE, -1)[: layout.columns]
    halves = layout.data[..., split:].contiguous().view(torch.float16).view(tiles, groups, -1, TILE)
    scale, *minimum = (
        half.transpose(1, 2).reshape(tiles * TILE, groups)[: layout.columns].float() * layout.unit
        for half in halves.unbind(2)
    )
    codebook = layout.table.float() - layout.offset
    return Weight4(pack_codes(codes), codebook, scale, minimum[0] if minimum else None, layout.group)


def _is_affine(weight: Weight4) -> bool:
    steps = weight.codebook.diff()
    return bool((steps == 1).all())


def _byte_table(codebook: Tensor) -> tuple[Tensor, int, float]:
    """(table uint8 [16], offset, step) with codebook ≈ (table - offset) · step, exact for whole numbers.

    Otherwise the step has the smallest squared error of those that use 3/4 of the byte; zero stays exact.
    """
    low, high = min(float(codebook.min()), 0.0), max(float(codebook.max()), 0.0)
    if bool((codebook == codebook.round()).all()) and high - low <= 255:
        steps = torch.ones(1)
    else:
        steps = (high - low) / torch.linspace(192, 254, 1000)
    levels = (codebook / steps.unsqueeze(-1)).round()
    error = (levels * steps.unsqueeze(-1) - codebook).square().sum(-1)
    best = int(error.argmin())
    offset = -int(min(float(levels[best].min()), 0.0))
    return (levels[best] + offset).byte(), offset, float(steps[best])


def _tiles(weight: Weight4) -> Tiles:
    """Weight4 → the C++ kernel's layout; rows are padded with zeros to whole tiles."""
    rows, k = weight.shape
    group = 64 if weight.group % 64 == 0 else 32
    table, offset, step = _byte_table(weight.codebook)
    scales = [weight.scale] if weight.minimum is None else [weight.scale, weight.minimum / step]
    # A power of two brings fp32 scales, however small, into the range of fp16.
    largest = max(float(part.abs().max()) for part in scales)
    exact = all(part.dtype == torch.float16 for part in scales) and step == 1
    unit = 1.0 if exact or largest == 0 else 2.0 ** (math.frexp(largest)[1] - 15)
    pad = -rows % TILE
    tiles = (rows + pad) // TILE

    # Eight codes are one int32, in the order of k; the kernel wants k and k + 4 in one byte.
    words = _pad(weight.codes, pad).contiguous().view(torch.int32)
    words = _spread(words & 0xFFFF) | (_spread((words >> 16) & 0xFFFF) << 4)
    words = words.view(tiles, TILE, k // group, group // 8).permute(0, 2, 3, 1).contiguous()
    parts = [words.view(torch.uint8).view(tiles, k // group, -1)]
    for scale in scales:
        halves = scale if exact else (scale.float() / unit).half()
        halves = _pad(halves.repeat_interleave(weight.group // group, dim=-1), pad)
        halves = halves.view(tiles, TILE, k // group).transpose(1, 2).contiguous()
        parts.append(halves.view(torch.uint8))
    return Tiles(torch.cat(parts, dim=-1), table, rows, group, offset, unit * step)


def _pad(matrix: Tensor, rows: int) -> Tensor:
    return torch.nn.functional.pad(matrix, (0, 0, 0, rows)) if rows else matrix


def _spread(nibbles: Tensor) -> Tensor:
    """int32 of four nibbles in the low half → one in each byte."""
    nibbles = (nibbles | (nibbles << 8)) & 0x00FF00FF
    return (nibbles | (nibbles << 4)) & 0x0F0F0F0F


def _int4pack(weight: Weight4) -> Int4Pack:
    """Weight4 with codes in steps of one → torch's layout: value = (code - 8) · scale + zero."""
    data = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unpack_codes(weight.codes).int(), 1)
    zero = weight.scale.float() * (weight.codebook[0] + 8)
    if weight.minimum is not None:
        zero = zero + weight.minimum.float()
    pair = torch.stack((weight.scale.float(), zero), dim=-1).bfloat16()
    return Int4Pack(data, pair.transpose(0, 1).contiguous(), weight.group)
