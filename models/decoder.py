"""One dense decoder for Llama, Mistral, Qwen2, Qwen3 and SmolLM: the differences are in the config."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from kernels.decoder_layers import LayerStack, StackLayer, decoder_layers, stack
from kernels.linear4 import Packed4, linear4
from kernels.tree_attention import tree_attention


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What tells one dense decoder from another. Sizes in elements; `sliding_window` in tokens, None for none."""

    family: str  # llama, mistral, qwen2 or qwen3
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    max_context: int
    sliding_window: int | None
    source: Any  # the transformers config, for rope scaling and export

    @property
    def taps(self) -> tuple[int, int, int]:
        """The layers whose inputs the draft head reads (DART: 2, L//2, L-3)."""
        first, last = min(2, self.layers - 1), max(self.layers - 3, 0)
        return first, self.layers // 2, last


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x · Wᵀ + b: `weight` in 4 bits, or a plain [N, K] tensor; `bias` fp32 [N] or None.

    `twice`: the weight is [N, 2 · K], the two 4-bit halves of 8-bit codes, and x is laid out twice.
    """

    weight: Packed4 | Tensor
    bias: Tensor | None = None
    twice: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. Norm weights are fp32 [H] ([head_dim] for `q_norm`, `k_norm`, which only Qwen3 has)."""

    input_norm: Tensor
    qkv: Linear  # [(heads + 2 · kv_heads) · head_dim, H]
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear  # [H, heads · head_dim]
    post_norm: Tensor
    gate_up: Linear  # [2 · intermediate, H], gate rows first
    down: Linear  # [H, intermediate]


@dataclass(frozen=True, slots=True)
class Target:
    """A target model's tensors. `embed` [V, H] fp16, bf16 or fp32; `norm` fp32 [H]; `head` [V, H].

    `inverse_frequency` fp32 [head_dim / 2] and `rope_scale` are transformers' rotary parameters for this config.
    `stack` is the layers as the CPU's one-operator form reads them, None where that form does not fit.
    """

    config: DecoderConfig
    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    inverse_frequency: Tensor
    rope_scale: float
    stack: LayerStack | None = None


def one_operator(target: Target) -> Target:
    """The target with its layers as one CPU operator where they fit it, else unchanged. Copies nothing large."""
    c = target.config
    layers = []
    for layer in target.layers:
        linears = (layer.qkv, layer.out, layer.gate_up, layer.down)
        packed = [linear.weight for linear in linears if isinstance(linear.weight, Packed4)]
        if len(packed) < len(linears) or any(linear.bias is not None for linear in linears[1:]):
            return target
        qkv, out, gate_up, down = packed
        norms = (layer.q_norm, layer.k_norm)
        layers.append(StackLayer(layer.input_norm, qkv, layer.qkv.bias, *norms, out, layer.post_norm, gate_up, down))
    taps = sorted(set(c.taps))
    stacked = stack(layers, c.head_dim, target.inverse_frequency, target.rope_scale, c.norm_eps, c.sliding_window, taps)
    return replace(target, stack=stacked)


@dataclass(frozen=True, slots=True)
class KVCache:
    """Static keys and values of one conversation: fp32 [layers, kv_heads, slots, head_dim] each."""

    keys: Tensor
    values: Tensor


def new_cache(config: DecoderConfig, slots: int, device: torch.device) -> KVCache:
    """An empty cache. Pages of memory are touched only as slots are written."""
    shape = (config.layers, config.kv_heads, slots, config.head_dim)
    return KVCache(torch.empty(shape, device=device), torch.empty(shape, device=device))


def forward(
    target: Target, cache: KVCache, tokens: Tensor, depth: Tensor, ancestor: Tensor, length: Tensor
) -> tuple[Tensor, Tensor]:
    """One pass over the weights for the M ≤ 64 rows of a draft tree (a prefill chunk is a chain).

    `tokens`, `depth`, `ancestor` int64 [M]: row i stands at position `length` + depth[i], sees the committed
    slots [0, length) and the rows whose bits are set in ancestor[i]. Writes its keys and values to the cache at
    slot `length` + i. `length` int64 [1].

    Returns the hidden states before the final norm, fp32 [M, H], and those entering the tapped layers
    concatenated, fp32 [M, 3 · H] (DART, section 3: what the draft head reads).
    """
    hidden = target.embed[tokens].float()
    if target.stack is not None:
        hidden, tapped = decoder_layers(target.stack, hidden, depth, ancestor, length, cache.keys, cache.values)
        if target.stack.taps != target.config.taps:  # a model of few layers taps one of them twice
            order = [target.stack.taps.index(tap) for tap in target.config.taps]
            tapped = tapped.unflatten(1, (-1, hidden.shape[1]))[:, order].flatten(1)
        return hidden, tapped
    return forward_plain(target, cache, hidden, depth, ancestor, length)


def forward_plain(
    target: Target, cache: KVCache, hidden: Tensor, depth: Tensor, ancestor: Tensor, length: Tensor
) -> tuple[Tensor, Tensor]:
    """`forward` from the embedded rows, fp32 [M, H], layer by layer in plain torch."""
    config = target.config
    angle = (length + depth)[:, None] * target.inverse_frequency
    rotation = (angle.cos() * target.rope_scale, angle.sin() * target.rope_scale)
    start, masks = int(length), ancestor.tolist()
    entering = []
    for index, layer in enumerate(target.layers):
        entering.append(hidden)
        normed = rms_norm(hidden, layer.input_norm, config.norm_eps)
        query, key, value = split_heads(linear(normed, layer.qkv), layer, config, rotation)
        rows = slice(start, start + len(hidden))
        cache.keys[index, :, rows] = key.transpose(0, 1)
        cache.values[index, :, rows] = value.transpose(0, 1)
        mixed = tree_attention(query, cache.keys[index], cache.values[index], start, masks, config.sliding_window)
        hidden = hidden + linear(mixed.flatten(1), layer.out)
        gate, up = linear(rms_norm(hidden, layer.post_norm, config.norm_eps), layer.gate_up).chunk(2, dim=-1)
        hidden = hidden + linear(silu(gate) * up, layer.down)
    return hidden, torch.cat([entering[tap] for tap in config.taps], dim=-1)


def output_logits(target: Target, hidden: Tensor) -> Tensor:
    """Final norm and output head: fp32 [M, H] → logits fp32 [M, V]."""
    return linear(rms_norm(hidden, target.norm, target.config.norm_eps), target.head)


def linear(x: Tensor, layer: Linear) -> Tensor:
    """x fp32 [M, K] → fp32 [M, N]."""
    if not isinstance(layer.weight, Tensor):
        return linear4(x.repeat(1, 2) if layer.twice else x, layer.weight, layer.bias)
    y = x @ layer.weight.T.float()
    return y if layer.bias is None else y + layer.bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension, fp32."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def split_heads(
    qkv: Tensor, layer: Layer, config: DecoderConfig, rotation: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Fused projections [M, (heads + 2 · kv_heads) · D] → query [M, heads, D], key and value [M, kv_heads, D].

    Query and key are normed where the family does (Qwen3) and rotated.
    """
    heads = qkv.unflatten(-1, (-1, config.head_dim))
    query, key, value = heads.split([config.heads, config.kv_heads, config.kv_heads], dim=1)
    if layer.q_norm is not None and layer.k_norm is not None:
        query = rms_norm(query, layer.q_norm, config.norm_eps)
        key = rms_norm(key, layer.k_norm, config.norm_eps)
    return rotate(query, rotation), rotate(key, rotation), value


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding (RoFormer, arXiv 2104.09864), half-split: x [M, heads, D], cos and sin [M, D/2]."""
    cos, sin = (part[:, None] for part in rotation)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
