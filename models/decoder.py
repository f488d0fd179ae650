"""One dense decoder for Llama, Mistral, Qwen2, Qwen3 and SmolLM: the differences are in the config."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kernels.linear4 import Packed4


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
        return 2, self.layers // 2, self.layers - 3


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x · Wᵀ + b: `weight` in 4 bits, or a plain [N, K] tensor; `bias` fp32 [N] or None."""

    weight: Packed4 | Tensor
    bias: Tensor | None = None


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
    """

    config: DecoderConfig
    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    inverse_frequency: Tensor
    rope_scale: float
