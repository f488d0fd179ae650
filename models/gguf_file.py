"""GGUF files: tensors by their Hugging Face names, 4-bit blocks taken over exactly."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.weight4 import AFFINE_CODEBOOK, Weight4, pack_codes
from models.errors import ModelError
from models.gguf_header import read_header
from models.quantise import quantise_q4_1

_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_GROUP = 32


def hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`; unknown names stay as they are."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        return f"model.layers.{layer}.{_BLOCK_NAMES.get(part, part)}.{kind}"
    return f"{_NAMES.get(stem, stem)}.{kind}"


class GGUFSource:
    """A memory-mapped GGUF file. Raises ModelError where it is damaged."""

    def __init__(self, path: Path) -> None:
        """Reads the file's header, not its tensors."""
        self.path = path
        self._header = read_header(path)
        self._tensors = {hf_name(name): tensor for name, tensor in self._header.tensors.items()}
        self._architecture = self._header.setting("general.architecture")

    def names(self) -> set[str]:
        """Hugging Face names of all tensors."""
        return set(self._tensors)

    def read(self, name: str) -> Weight4 | Tensor:
        """Q4_0 and Q4_1 matrices as they are in the file, in 4 bits; everything else in fp32."""
        from gguf import GGMLQuantizationType, dequantize

        tensor = self._tensors[name]
        data = self._header.data[tensor.offset : tensor.offset + tensor.nbytes]
        rows = data.reshape(*tensor.shape[:-1], tensor.nbytes // math.prod(tensor.shape[:-1] or (1,)))
        weight: Weight4 | Tensor
        if len(tensor.shape) == 2 and tensor.kind in (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1):
            weight = _four_bit(rows, with_minimum=tensor.kind == GGMLQuantizationType.Q4_1)
        else:
            try:
                values = dequantize(rows, tensor.kind)
            except NotImplementedError as error:
                raise ModelError(
                    f"{self.path}: {name} is in {tensor.kind.name}, which the gguf library cannot read",
                    "use a Q4_0, Q4_1, Q8_0 or K-quant file",
                ) from error
            weight = torch.from_numpy(np.array(values, dtype=np.float32)).view(tensor.shape)
        heads = self._rotated_heads(name)
        if heads is None or weight.shape[0] % (2 * heads):  # rows that are no whole heads: refused by their shape
            return weight
        return _unpermute(weight, heads)

    def quantise(self, matrix: Tensor) -> Weight4 | Tensor:
        """The code of Q4_1: finer than NF4, and bitsandbytes takes seconds to import."""
        return quantise_q4_1(matrix)

    def _rotated_heads(self, name: str) -> int | None:
        """How many heads `name` has where llama.cpp has interleaved its rows (q and k of llama files)."""
        if self._architecture != "llama" or ".self_attn." not in name:
            return None
        if ".q_proj." in name:
            return int(self._header.setting("llama.attention.head_count"))
        if ".k_proj." in name:
            return int(self._header.setting("llama.attention.head_count_kv"))
        return None


def _four_bit(rows: np.ndarray[Any, Any], with_minimum: bool) -> Weight4:
    """Q4_1 rows (per block fp16 scale, fp16 minimum, 16 bytes of codes) or Q4_0 rows (no minimum; codes − 8)."""
    header = 4 if with_minimum else 2
    blocks = torch.from_numpy(np.array(rows)).view(len(rows), -1, header + _GROUP // 2)
    scale = blocks[..., :2].contiguous().view(torch.float16).squeeze(-1)
    minimum = blocks[..., 2:4].contiguous().view(torch.float16).squeeze(-1) if with_minimum else scale * -8
    codes = blocks[..., header:]  # the low nibbles are the first half of the group
    return Weight4(
        pack_codes(torch.cat((codes & 15, codes >> 4), dim=-1)).flatten(-2),
        torch.tensor(AFFINE_CODEBOOK),
        scale,
        minimum,
        _GROUP,
    )


def _unpermute(weight: Weight4 | Tensor, heads: int) -> Weight4 | Tensor:
    """Rows from llama.cpp's interleaved rotary pairs back to the two halves of Hugging Face."""
    if isinstance(weight, Weight4):
        minimum = None if weight.minimum is None else _half_split(weight.minimum, heads)
        return Weight4(
            _half_split(weight.codes, heads),
            weight.codebook,
            _half_split(weight.scale, heads),
            minimum,
            weight.group,
        )
    return _half_split(weight, heads)


def _half_split(rows: Tensor, heads: int) -> Tensor:
    pairs: Tensor = rows.unflatten(0, (heads, -1, 2))
    return pairs.transpose(1, 2).flatten(0, 2).contiguous()
