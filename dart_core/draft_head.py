"""The DART draft head: one decoder layer that proposes the next draft_length + 1 tokens in one forward.

Row i of a conversation is x_i = [input_layernorm(embed(token_{i+1})), hidden_norm(fc(taps_i))] with residual
fc(taps_i); then draft_length rows of the learned mask vector follow (arXiv 2601.19278, section 3). With a
single layer, a row's key and value depend on that row alone: only the last real row and the mask rows query.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from kernels.causal_attention import causal_attention
from models.decoder import Linear, linear, rms_norm, rotate

MAX_ROWS = 64  # new positions a call takes; the cache keeps room for as many beyond the context


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The head's `config.json`. Sizes in elements. `final_norms`: how often the final norm is applied before
    `lm_head`: twice in the published heads, once in heads trained here."""

    draft_length: int
    draft_vocab_size: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    final_norms: int


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A head's tensors. Norm weights and `mask` [2 · H] are fp32.

    `target_ids` int64 [Vd] maps draft to target ids.
    `mask_qkv` fp32 [(heads + 2 · kv_heads) · D] is the mask vector's query, key and value before rotation.
    """

    config: HeadConfig
    fuse: Linear  # [H, 3 · target hidden]
    embed_norm: Tensor
    fused_norm: Tensor
    qkv: Linear  # [(heads + 2 · kv_heads) · D, 2 · H]
    out: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear
    mask: Tensor
    mask_qkv: Tensor
    norm: Tensor
    lm_head: Linear  # [Vd, H]
    target_ids: Tensor
    inverse_frequency: Tensor
    rope_scale: float


@dataclass(frozen=True, slots=True)
class HeadCache:
    """Static keys and values of one conversation: fp32 [kv_heads, context + 64, D] each."""

    keys: Tensor
    values: Tensor


def new_head_cache(head: DraftHead, context: int) -> HeadCache:
    """A cache for `context` tokens. Zeros, for what is masked must be finite too."""
    shape = (head.config.kv_heads, context + MAX_ROWS, head.config.head_dim)
    return HeadCache(torch.zeros(shape, device=head.norm.device), torch.zeros(shape, device=head.norm.device))


def draft_logits(
    head: DraftHead,
    cache: HeadCache,
    embed: Tensor,
    tokens: Tensor,
    taps: Tensor,
    count: Tensor,
    length: Tensor,
) -> Tensor:
    """Takes in new positions and drafts what follows: logits fp32 [draft_length + 1, Vd].

    `tokens` int64 [M]: the token *after* each new position; `taps` [M, 3 · target hidden]: the target's
    hidden states at those positions; only the first `count` ≥ 1 rows hold, M ≤ 64. `length` positions are in
    the cache already; the new ones are added to it, the mask rows' slots are written over by the next call.
    `count` and `length` are int64 [1] or scalars. `embed` [V, H] is the target's.
    """
    config = head.config
    residual, query, end = _take_in(head, cache, embed, tokens, taps, count, length)
    last = (count.reshape(1) - 1).clamp(min=0)
    masks = torch.arange(config.draft_length, device=tokens.device)
    mask_query, key, value = _rotated(head, head.mask_qkv.expand(config.draft_length, -1), end + masks)
    _write(cache, end + masks, key, value)

    query = torch.cat((query[last], mask_query))
    positions = torch.cat((end - 1, end + masks))
    mixed = causal_attention(query, cache.keys, cache.values, positions)
    mask_residual = head.mask[: config.hidden_size].expand(config.draft_length, -1)
    hidden = torch.cat((residual[last], mask_residual)) + linear(mixed.flatten(1), head.out)
    gate, up = linear(rms_norm(hidden, head.post_norm, config.norm_eps), head.gate_up).chunk(2, dim=-1)
    hidden = hidden + linear(silu(gate) * up, head.down)
    for _ in range(config.final_norms):
        hidden = rms_norm(hidden, head.norm, config.norm_eps)
    return linear(hidden, head.lm_head)


def prefill_head(
    head: DraftHead,
    cache: HeadCache,
    embed: Tensor,
    tokens: Tensor,
    taps: Tensor,
    count: Tensor,
    length: Tensor,
) -> None:
    """Adds positions of a prompt to the cache, drafting nothing. Arguments as in `draft_logits`."""
    _take_in(head, cache, embed, tokens, taps, count, length)


def _take_in(
    head: DraftHead,
    cache: HeadCache,
    embed: Tensor,
    tokens: Tensor,
    taps: Tensor,
    count: Tensor,
    length: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Writes the new rows' keys and values. Returns residual [M, H], query [M, heads, D], their end [1]."""
    rows = torch.arange(len(tokens), device=tokens.device)
    real = rows < count
    fused = linear(taps.float().masked_fill(~real[:, None], 0), head.fuse)
    embedded = embed[tokens.masked_fill(~real, 0)].float()
    eps = head.config.norm_eps
    x = torch.cat((rms_norm(embedded, head.embed_norm, eps), rms_norm(fused, head.fused_norm, eps)), dim=-1)
    slots = length.reshape(1) + rows
    query, key, value = _rotated(head, linear(x, head.qkv), slots)
    _write(cache, slots, key, value)
    return fused, query, (length + count).reshape(1)


def _rotated(head: DraftHead, qkv: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fused projections [R, …] → query [R, heads, D], key, value [R, kv_heads, D], at `positions` [R]."""
    config = head.config
    angle = positions[:, None] * head.inverse_frequency
    rotation = (angle.cos() * head.rope_scale, angle.sin() * head.rope_scale)
    heads = qkv.reshape(len(qkv), -1, config.head_dim)
    query, key, value = torch.split(heads, [config.heads, config.kv_heads, config.kv_heads], dim=1)
    return rotate(query, rotation), rotate(key, rotation), value


def _write(cache: HeadCache, slots: Tensor, key: Tensor, value: Tensor) -> None:
    cache.keys.index_copy_(1, slots, key.transpose(0, 1))
    cache.values.index_copy_(1, slots, value.transpose(0, 1))
