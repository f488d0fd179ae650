"""Draft heads on disk: the published format (`config.json`, `model.safetensors`) and ours.

Ours say `"final_norm": "once"` and may leave out `lm_head.weight`: then it is the target's, by `d2t`.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from dart_core.draft_head import MAX_ROWS, DraftHead, HeadConfig
from kernels.linear4 import pack
from kernels.weight4 import quantise_affine
from models.decoder import Linear, Target, linear
from models.errors import ModelError

_GROUP = 32
_LARGEST_SIZE = 1 << 24  # a damaged config must not decide how much memory is asked for
_LONGEST_DRAFT = 31
_ATTENTION = "midlayer.self_attn."
_MLP = "midlayer.mlp."


def load_head(
    path: Path,
    target: Target,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    four_bit: bool = False,
) -> DraftHead:
    """Reads the head in directory `path` and checks that it fits `target`.

    Matrices are kept in `dtype`, or in 4 bits (group 32) with `four_bit`; norms in fp32. Raises ModelError
    where a file is damaged or the head does not fit, with the two numbers that differ.
    """
    raw = _read_json(path / "config.json")
    config = _head_config(raw, path)
    _check("hidden size", path, config.hidden_size, target.embed.shape[1])
    _check("vocabulary", path, _size(raw, "vocab_size", path, len(target.embed)), len(target.embed))
    _check("list of tapped layers", path, list(raw.get("taps", target.config.taps)), list(target.config.taps))
    if four_bit and (config.hidden_size % _GROUP or config.intermediate_size % _GROUP):
        sizes = f"{config.hidden_size} and {config.intermediate_size}"
        raise _damaged(path, f"its sizes {sizes} are not multiples of {_GROUP}, which 4 bits need")
    tensors = _read_tensors(path, config, target, device)

    def matrix(*names: str) -> Linear:
        weight = torch.cat([tensors.pop(name) for name in names])
        return Linear(pack(quantise_affine(weight, _GROUP)) if four_bit else weight.to(dtype))

    qkv = [f"{_ATTENTION}{name}_proj.weight" for name in "qkv"]
    mask = tensors["midlayer.mask_rep"].float()
    mask_qkv = torch.cat([tensors[name].float() for name in qkv]) @ mask
    ids = _target_ids(path, tensors, config, len(target.embed)).to(device)
    if "lm_head.weight" not in tensors:
        tensors["lm_head.weight"] = _output_rows(target.head, ids, config.hidden_size)
    inverse_frequency, rope_scale = _rotary(raw, config, path)
    return DraftHead(
        config=config,
        fuse=matrix("fc.weight"),
        embed_norm=tensors["midlayer.input_layernorm.weight"].float(),
        fused_norm=tensors["midlayer.hidden_norm.weight"].float(),
        qkv=matrix(*qkv),
        out=matrix(f"{_ATTENTION}o_proj.weight"),
        post_norm=tensors["midlayer.post_attention_layernorm.weight"].float(),
        gate_up=matrix(f"{_MLP}gate_proj.weight", f"{_MLP}up_proj.weight"),
        down=matrix(f"{_MLP}down_proj.weight"),
        mask=mask,
        mask_qkv=mask_qkv,
        norm=tensors["norm.weight"].float(),
        lm_head=matrix("lm_head.weight"),
        target_ids=ids,
        inverse_frequency=inverse_frequency.to(device),
        rope_scale=rope_scale,
    )


def _damaged(path: Path, cause: str) -> ModelError:
    return ModelError(f"The draft head {path} cannot be used: {cause}", "Choose another with --head, or --head none")


def _check(what: str, path: Path, ours: object, targets: object) -> None:
    if ours != targets:
        raise _damaged(path, f"its {what} is {ours}, the target's is {targets}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path.parent, f"{path.name} cannot be read ({error})") from error
    if not isinstance(raw, dict):
        raise _damaged(path.parent, f"{path.name} is not a JSON object")
    return raw


def _size(raw: dict[str, Any], key: str, path: Path, default: int | None = None) -> int:
    value = raw.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST_SIZE:
        raise _damaged(path, f"{key} in config.json is {value!r}, not a number from 1 to {_LARGEST_SIZE}")
    return value


def _head_config(raw: dict[str, Any], path: Path) -> HeadConfig:
    hidden_size, heads = _size(raw, "hidden_size", path), _size(raw, "num_attention_heads", path)
    final_norm = raw.get("final_norm", "twice")
    if final_norm not in ("once", "twice"):
        raise _damaged(path, f'final_norm in config.json is {final_norm!r}, not "once" or "twice"')
    if raw.get("hidden_act", "silu") != "silu":
        raise _damaged(path, f"hidden_act in config.json is {raw['hidden_act']!r}; only silu is known")
    eps = raw.get("rms_norm_eps")
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise _damaged(path, f"rms_norm_eps in config.json is {eps!r}, not a number between 0 and 1")
    config = HeadConfig(
        draft_length=_size(raw, "draft_length", path),
        draft_vocab_size=_size(raw, "draft_vocab_size", path, raw.get("vocab_size")),
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=_size(raw, "num_key_value_heads", path, heads),
        head_dim=_size(raw, "head_dim", path, max(hidden_size // heads, 1)),
        intermediate_size=_size(raw, "intermediate_size", path),
        norm_eps=eps,
        final_norms=2 if final_norm == "twice" else 1,
    )
    if config.draft_length > _LONGEST_DRAFT:
        raise _damaged(path, f"draft_length is {config.draft_length}, the most is {_LONGEST_DRAFT}")
    if config.heads % config.kv_heads or config.head_dim % 2:
        shape = f"{config.heads} heads, {config.kv_heads} key-value heads of {config.head_dim}"
        raise _damaged(path, f"{shape} do not form groups of even size")
    return config


def _shapes(config: HeadConfig, target: Target) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "fc.weight": (hidden, 3 * target.config.hidden_size),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        f"{_ATTENTION}q_proj.weight": (query, 2 * hidden),
        f"{_ATTENTION}k_proj.weight": (key, 2 * hidden),
        f"{_ATTENTION}v_proj.weight": (key, 2 * hidden),
        f"{_ATTENTION}o_proj.weight": (hidden, query),
        f"{_MLP}gate_proj.weight": (inner, hidden),
        f"{_MLP}up_proj.weight": (inner, hidden),
        f"{_MLP}down_proj.weight": (hidden, inner),
        "midlayer.mask_rep": (2 * hidden,),
        "norm.weight": (hidden,),
        "lm_head.weight": (config.draft_vocab_size, hidden),
        "d2t": (config.draft_vocab_size,),
    }


def _read_tensors(path: Path, config: HeadConfig, target: Target, device: torch.device | str) -> dict[str, Tensor]:
    """The tensors the config calls for, each checked for shape, kind and finite values before it is used."""
    optional = {"lm_head.weight"} | ({"d2t"} if config.draft_vocab_size == len(target.embed) else set())
    tensors = {}
    try:
        with safe_open(path / "model.safetensors", framework="pt", device=str(device)) as file:
            present = set(file.keys())
            for name, shape in _shapes(config, target).items():
                if name not in present:
                    if name in optional:
                        continue
                    raise _damaged(path, f"model.safetensors has no tensor {name}")
                found = tuple(file.get_slice(name).get_shape())
                if found != shape:
                    raise _damaged(path, f"{name} is {list(found)}, config and target call for {list(shape)}")
                tensors[name] = file.get_tensor(name)
    except (OSError, SafetensorError, ValueError) as error:
        raise _damaged(path, f"model.safetensors cannot be read ({error})") from error
    for name, tensor in tensors.items():
        if name == "d2t":
            continue
        if not tensor.is_floating_point():
            raise _damaged(path, f"{name} holds {tensor.dtype}, not floating point numbers")
        if not tensor.float().isfinite().all():
            raise _damaged(path, f"{name} holds values that are not finite")
    return tensors


def _target_ids(path: Path, tensors: dict[str, Tensor], config: HeadConfig, vocab_size: int) -> Tensor:
    """Target token ids of the draft vocabulary, int64 [Vd], all different and below `vocab_size`."""
    own = torch.arange(config.draft_vocab_size)
    if "d2t" not in tensors:
        return own
    offsets = tensors["d2t"].cpu()
    if offsets.is_floating_point() or offsets.is_complex() or offsets.dtype == torch.bool:
        raise _damaged(path, f"d2t holds {offsets.dtype}, not whole numbers")
    ids = own + offsets.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        worst = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise _damaged(path, f"d2t leads to token {worst}, the target's vocabulary has {vocab_size}")
    if len(torch.unique(ids)) != len(ids):
        raise _damaged(path, "d2t leads to one token from two places")
    return ids


def _rotary(raw: dict[str, Any], config: HeadConfig, path: Path) -> tuple[Tensor, float]:
    """Inverse frequencies fp32 [head_dim / 2] and the scale of cos and sin, by transformers' rules."""
    theta = raw.get("rope_theta", 10000.0)
    if not isinstance(theta, int | float) or not 1 < theta < 1e12:
        raise _damaged(path, f"rope_theta in config.json is {theta!r}, not a number above 1")
    try:
        embedding = LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=config.hidden_size,
                num_attention_heads=config.heads,
                head_dim=config.head_dim,
                max_position_embeddings=raw.get("max_position_embeddings", 2048),
                rope_theta=float(theta),
                rope_scaling=raw.get("rope_scaling"),
            )
        )
        inverse_frequency, scale = embedding.inv_freq.float(), float(embedding.attention_scaling)
    except Exception as error:  # transformers raises KeyError, TypeError, its own validation errors and more
        raise _damaged(path, f"rope_scaling in config.json is not understood ({error})") from error
    if inverse_frequency.shape != (config.head_dim // 2,) or not inverse_frequency.isfinite().all():
        raise _damaged(path, "rope_scaling in config.json gives frequencies that cannot be used")
    if not math.isfinite(scale):
        raise _damaged(path, f"rope_scaling in config.json gives the scale {scale}")
    return inverse_frequency, scale


def _output_rows(head: Linear, ids: Tensor, width: int) -> Tensor:
    """Rows `ids` of the target's output head, fp32 [Vd, width]; by unit vectors where it is in 4 bits."""
    if isinstance(head.weight, Tensor):
        return head.weight[ids].float()
    unit = torch.eye(width, device=ids.device)
    return torch.cat([linear(rows, head)[:, ids] for rows in unit.tensor_split(-(-width // MAX_ROWS))]).T.contiguous()
