"""Moves the accepted path's keys and values together, so that a cache slot is a position again."""

import torch
from torch import Tensor


def kv_compact(keys: Tensor, values: Tensor, length: Tensor, path: Tensor) -> None:
    """Copies slot `length` + path[j] to slot `length` + j, for every j, in place and for all layers at once.

    `keys`, `values` fp32 [layers, kv_heads, S, D]; `length` int64 [1]; `path` int64 [P], ascending, so that
    path[j] ≥ j. Entries of the path past the accepted count may repeat: what they write lies beyond the text.
    """
    target = length + torch.arange(len(path), device=path.device)
    for cache in (keys, values):
        cache[:, :, target] = cache[:, :, length + path]
