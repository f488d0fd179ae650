"""Reading a model's config, by transformers, into what the decoder needs."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.decoder import DecoderConfig
from models.errors import ModelError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SUPPORTED = "supported are Llama, Mistral, Qwen2, Qwen3 and SmolLM models"
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a model is opened from disk; nothing here asks the network


def read_config(directory: Path) -> DecoderConfig:
    """The decoder's config from `directory`/config.json.

    Raises ModelError where the model is of another kind, naming what was found and what is supported.
    """
    from transformers import AutoConfig

    try:
        source = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:  # transformers raises nearly anything for a config that is wrong
        raise ModelError(f"{directory / 'config.json'} cannot be read: {in_short(error)}", SUPPORTED) from error
    return decoder_config(source)


def decoder_config(source: Any) -> DecoderConfig:
    """A transformers config as a DecoderConfig. Raises ModelError for what the decoder cannot do."""
    family = str(getattr(source, "model_type", "?"))
    if family not in FAMILIES:
        raise ModelError(f"the model is a {family!r}", f"{SUPPORTED}; try: dart-chat --model default")
    rope = source.rope_parameters or {}
    coded = _quantisation(source)
    heads, kv_heads = source.num_attention_heads, source.num_key_value_heads or source.num_attention_heads
    sizes = (source.hidden_size, source.intermediate_size, source.num_hidden_layers, source.vocab_size, heads, kv_heads)
    if min(sizes) < 1:
        raise ModelError("config.json has a size below 1", "download the model again")
    head_dim = getattr(source, "head_dim", None) or source.hidden_size // heads
    refusals = {
        f"hidden_act {source.hidden_act!r}": source.hidden_act != "silu",
        "a sliding window in some layers only": family.startswith("qwen") and bool(source.use_sliding_window),
        f"rope type {rope.get('rope_type')!r}": rope.get("rope_type", "default") not in ROPE_TYPES,
        "rotary embedding of a part of each head": rope.get("partial_rotary_factor", 1.0) != 1.0,
        f"weights quantised by {coded!r}": coded not in (None, "bitsandbytes"),
        f"{heads} heads over {kv_heads} key-value heads": heads % kv_heads != 0,
    }
    for found, refused in refusals.items():
        if refused:
            raise ModelError(f"the model has {found}, which this decoder does not do", SUPPORTED)
    window = getattr(source, "sliding_window", None) if family == "mistral" else None
    return DecoderConfig(
        family=family,
        hidden_size=source.hidden_size,
        intermediate_size=source.intermediate_size,
        layers=source.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=source.vocab_size,
        norm_eps=source.rms_norm_eps,
        max_context=source.max_position_embeddings,
        sliding_window=window,
        source=source,
    )


def rotary(config: DecoderConfig) -> tuple[Tensor, float]:
    """Rotary frequencies fp32 [head_dim / 2] and the factor on cos and sin, by transformers (scaling included)."""
    rope_type = config.source.rope_parameters.get("rope_type", "default")
    if rope_type == "default":
        theta = config.source.rope_parameters["rope_theta"]
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return 1.0 / theta**exponent, 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequency, scale = ROPE_INIT_FUNCTIONS[rope_type](config.source, torch.device("cpu"))
    return frequency.float(), float(scale)


def _quantisation(source: Any) -> str | None:
    """What quantised the checkpoint, as its config says; None for floating point."""
    settings = getattr(source, "quantization_config", None) or {}
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return None if method is None else str(getattr(method, "value", method))


def in_short(error: Exception) -> str:
    """The words of an error, which may go over many lines, in one."""
    return " ".join(str(error).split())[:300] or type(error).__name__
