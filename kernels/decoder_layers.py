"""All decoder layers of a CPU target in one C++ operator: no Python and no torch operation per layer.

Norms, projections, rotary embedding, KV cache, tree attention, SwiGLU and residuals, in one parallel region.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.linear4 import Packed4, Tiles


@dataclass(frozen=True, slots=True)
class StackLayer:
    """One decoder layer: norms fp32 [H] ([head_dim] for `q_norm`, `k_norm`), `qkv_bias` fp32 [N] or None."""

    input_norm: Tensor
    qkv: Packed4
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Packed4
    post_norm: Tensor
    gate_up: Packed4
    down: Packed4


@dataclass(frozen=True, slots=True)
class LayerStack:
    """The layers as the operator reads them, made by `stack`: small tensors stacked, weights shared."""

    norms: Tensor  # fp32 [L, 2, H]
    head_norms: Tensor | None  # fp32 [L, 2, head_dim]
    qkv_bias: Tensor | None  # fp32 [L, N]
    data: list[Tensor]  # qkv, out, gate_up, down of each layer, packed
    tables: Tensor  # uint8 [4 L, 16]
    formats: Tensor  # int64 [4 L, 3]: columns, group, offset
    units: Tensor  # fp64 [4 L]
    inverse_frequency: Tensor  # fp32 [head_dim / 2]
    rope_scale: float
    eps: float
    window: int  # positions, 0 for none
    taps: tuple[int, ...]


def stack(
    layers: Sequence[StackLayer],
    head_dim: int,
    inverse_frequency: Tensor,
    rope_scale: float,
    eps: float,
    window: int | None,
    taps: Sequence[int],
) -> LayerStack | None:
    """Prepares `layers` for `decoder_layers`; copies nothing large. None where the operator does not fit:
    no C++, a layer not in its 4-bit layout, or sizes that are not multiples of 32."""
    tiles: list[Tiles] = []
    for layer in layers:
        for packed in (layer.qkv, layer.out, layer.gate_up, layer.down):
            if not isinstance(packed.layout, Tiles):
                return None
            tiles.append(packed.layout)
    first = layers[0]
    sizes = (head_dim, first.qkv.shape[1], first.down.shape[1])
    if any(size % 32 for size in sizes):
        return None
    head_norms = qkv_bias = None
    if first.q_norm is not None:
        head_norms = torch.stack([torch.stack((layer.q_norm, layer.k_norm)) for layer in layers])  # type: ignore[arg-type]
    if first.qkv_bias is not None:
        qkv_bias = torch.stack([layer.qkv_bias for layer in layers])  # type: ignore[misc]
    return LayerStack(
        torch.stack([torch.stack((layer.input_norm, layer.post_norm)) for layer in layers]),
        head_norms,
        qkv_bias,
        [tile.data for tile in tiles],
        torch.stack([tile.table for tile in tiles]),
        torch.tensor([(tile.columns, tile.group, tile.offset) for tile in tiles]),
        torch.tensor([tile.unit for tile in tiles], dtype=torch.float64),
        inverse_frequency,
        rope_scale,
        eps,
        window or 0,
        tuple(taps),
    )


def decoder_layers(
    layers: LayerStack,
    embedded: Tensor,
    depth: Tensor,
    ancestor: Tensor,
    length: Tensor,
    keys: Tensor,
    values: Tensor,
) -> tuple[Tensor, Tensor]:
    """The M ≤ 64 rows of a draft tree through every layer.

    `embedded` fp32 [M, H]; `depth`, `ancestor` int64 [M]: row i stands at position `length` + depth[i], sees
    the committed slots [0, length) and the rows whose bits are set in ancestor[i], its path from the root to
    itself. `length` int64 [1]. `keys`, `values` fp32 [L, kv_heads, slots, head_dim]: row i's are written to
    slot length + i.

    Returns the hidden states after the last layer, fp32 [M, H], and those entering the tapped layers, side by
    side, fp32 [M, taps · H]. A row is the same bits whatever rows go with it, drafted or decoded one by one.
    Raises RuntimeError for a wrong shape, type or device, a full cache, and masks that are not a tree.
    """
    hidden, tapped = torch.ops.dart.decoder_layers(
        embedded,
        depth,
        ancestor,
        length,
        keys,
        values,
        layers.inverse_frequency,
        layers.rope_scale,
        layers.norms,
        layers.head_norms,
        layers.qkv_bias,
        layers.data,
        layers.tables,
        layers.formats,
        layers.units,
        layers.eps,
        layers.window,
        layers.taps,
    )
    return hidden, tapped
