"""Attention of a batch of conversations, one new row each, every one over its own cache and length."""

import torch
from torch import Tensor

from kernels import native


def batch_attention(query: Tensor, keys: Tensor, values: Tensor, length: Tensor, window: int | None = None) -> Tensor:
    """Softmax attention of row b over slots [0, length[b]] of its cache, at most the last `window` of them.

    `query` fp32 [B, heads, D]; `keys`, `values` fp32 [B, kv_heads, S, D]; `length` int64 [B]: the row's own
    position, its key already in place. Returns fp32 [B, heads, D].
    """
    if query.device.type == "cpu" and query.shape[-1] % 32 == 0 and native.load():
        mixed: Tensor = torch.ops.dart.batch_attention(query, keys, values, length, window or 0)
        return mixed
    return batch_attention_reference(query, keys, values, length, window)


def batch_attention_reference(
    query: Tensor, keys: Tensor, values: Tensor, length: Tensor, window: int | None = None
) -> Tensor:
    """`batch_attention` in plain torch, on any device, over the longest row's slots."""
    kv_heads, head_dim = keys.shape[1], keys.shape[3]
    end = int(length.max()) + 1
    slot = torch.arange(end, device=query.device)
    hidden = slot > length[:, None]
    if window is not None:
        hidden |= slot <= length[:, None] - window
    grouped = query.unflatten(1, (kv_heads, -1)) * head_dim**-0.5
    scores = grouped @ keys[:, :, :end].transpose(-1, -2)
    weights = scores.masked_fill(hidden[:, None, None], -torch.inf).softmax(-1)
    mixed: Tensor = (weights @ values[:, :, :end]).flatten(1, 2)
    return mixed
