"""Many conversations decoded together, one row each: how training text is written at the speed of our kernels.

A pass over the target's weights serves every conversation of the batch (32 rows of SmolLM2 cost about four times
one). Each conversation has its own cache and its own length; one that ends makes room for the next.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from dart_core.tree import MAX_NODES, chain_ancestors
from kernels.batch_attention import batch_attention
from models.decoder import KVCache, Target, forward, linear, new_cache, output_logits, rms_norm, split_heads


@dataclass(frozen=True, slots=True)
class Batch:
    """Keys and values fp32 [layers, B, kv_heads, slots, head_dim]; `length` int64 [B]: positions each row holds."""

    keys: Tensor
    values: Tensor
    length: Tensor
    spare: KVCache  # prompts are read here, then copied into their row


def new_batch(target: Target, rows: int, slots: int) -> Batch:
    """An empty batch of `rows` conversations of at most `slots` tokens."""
    config = target.config
    device = target.embed.device
    shape = (config.layers, rows, config.kv_heads, slots, config.head_dim)
    keys, values = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
    spare = new_cache(config, slots + MAX_NODES, device)
    return Batch(keys, values, torch.zeros(rows, dtype=torch.int64, device=device), spare)


def read_tokens(target: Target, cache: KVCache, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The target over a whole text, int64 [T], from an empty cache: hidden fp32 [T, H] and taps fp32 [T, 3 · H]."""
    hidden, taps = [], []
    for start in range(0, len(tokens), MAX_NODES):
        chunk = tokens[start : start + MAX_NODES]
        rows = torch.arange(len(chunk), device=tokens.device)
        length = torch.full((1,), start, device=tokens.device)
        part = forward(target, cache, chunk, rows, chain_ancestors(rows), length)
        hidden.append(part[0])
        taps.append(part[1])
    return torch.cat(hidden), torch.cat(taps)


def place(target: Target, batch: Batch, row: int, prompt: list[int]) -> None:
    """Starts a conversation in `row`: its prompt is read but for the last token, which the next pass takes in."""
    end = len(prompt) - 1
    if end:
        read_tokens(target, batch.spare, torch.tensor(prompt[:-1], device=batch.length.device))
        batch.keys[:, row, :, :end] = batch.spare.keys[:, :, :end]
        batch.values[:, row, :, :end] = batch.spare.values[:, :, :end]
    batch.length[row] = end


def next_logits(target: Target, batch: Batch, tokens: Tensor) -> Tensor:
    """Takes in one token of every conversation, int64 [B]; logits of what follows each, fp32 [B, V]."""
    config = target.config
    rows = torch.arange(len(tokens), device=tokens.device)
    angle = batch.length[:, None] * target.inverse_frequency
    rotation = (angle.cos() * target.rope_scale, angle.sin() * target.rope_scale)
    hidden = target.embed[tokens].float()
    for index, layer in enumerate(target.layers):
        normed = rms_norm(hidden, layer.input_norm, config.norm_eps)
        query, key, value = split_heads(linear(normed, layer.qkv), layer, config, rotation)
        batch.keys[index][rows, :, batch.length] = key
        batch.values[index][rows, :, batch.length] = value
        mixed = batch_attention(query, batch.keys[index], batch.values[index], batch.length, config.sliding_window)
        hidden = hidden + linear(mixed.flatten(1), layer.out)
        gate, up = linear(rms_norm(hidden, layer.post_norm, config.norm_eps), layer.gate_up).chunk(2, dim=-1)
        hidden = hidden + linear(silu(gate) * up, layer.down)
    batch.length.add_(1)
    return output_logits(target, hidden)
