"""Weights into 4 bits: NF4 by bitsandbytes for float checkpoints, bitsandbytes checkpoints taken over as they are."""

import json
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.weight4 import Weight4, cat_rows, quantise_affine

NF4_GROUP, AFFINE_GROUP = 64, 32


_PIECE = 1 << 22  # elements quantised at once; bitsandbytes needs 16 bytes for each meanwhile


def quantise(weight: Tensor) -> Weight4 | Tensor:
    """A float matrix [N, K] in 4 bits: NF4 where K is a multiple of 64, else as `quantise_q4_1`."""
    return by_rows(weight, quantise_nf4) if weight.shape[1] % NF4_GROUP == 0 else quantise_q4_1(weight)


def quantise_q4_1(weight: Tensor) -> Weight4 | Tensor:
    """A float matrix [N, K] in the affine code of GGUF's Q4_1; left as it is (fp32) where K does not divide by 32."""
    return by_rows(weight, quantise_affine) if weight.shape[1] % AFFINE_GROUP == 0 else weight.float()


def by_rows(weight: Tensor, code: Callable[[Tensor], Weight4]) -> Weight4:
    """`code` applied to some rows at a time, fp32, so that a large matrix needs little memory besides its codes."""
    return cat_rows([code(rows.float()) for rows in weight.split(max(1, _PIECE // weight.shape[1]))])


def quantise_nf4(weight: Tensor) -> Weight4:
    """fp32 [N, K] → NF4 (QLoRA, arXiv 2305.14314) in groups of 64 along K, which must divide by 64. Scales fp16."""
    packed, state = _bitsandbytes().quantize_4bit(
        weight.contiguous(), blocksize=NF4_GROUP, quant_type="nf4", compress_statistics=False
    )
    return Weight4(
        swap_nibbles(packed.view(weight.shape[0], -1)),
        state.code.float(),
        state.absmax.view(weight.shape[0], -1).half(),
        None,
        NF4_GROUP,
    )


def from_bitsandbytes(packed: Tensor, parts: dict[str, Tensor]) -> Weight4:
    """A matrix of a bitsandbytes 4-bit checkpoint, exactly.

    `packed` uint8 [N·K/2, 1] and what the checkpoint stores beside it, by the name after the weight's own:
    absmax, quant_map, quant_state.bitsandbytes__nf4 (or fp4), and nested_absmax, nested_quant_map where the
    scales are quantised too. Raises ValueError where blocks do not divide rows, KeyError where a part is missing.
    """
    state_name = next(name for name in parts if name.startswith("quant_state."))
    state = json.loads(bytes(parts[state_name].tolist()))
    rows, columns = state["shape"]
    group = state["blocksize"]
    if columns % group:
        raise ValueError(f"blocks of {group} do not divide rows of {columns}")
    absmax = parts["absmax"]
    if "nested_absmax" in parts:
        block = torch.arange(len(absmax)) // state["nested_blocksize"]
        absmax = parts["nested_quant_map"][absmax.long()] * parts["nested_absmax"][block] + state["nested_offset"]
    return Weight4(
        swap_nibbles(packed.view(rows, columns // 2)),
        parts["quant_map"].float(),
        absmax.view(rows, -1).float(),
        None,
        group,
    )


def swap_nibbles(packed: Tensor) -> Tensor:
    """bitsandbytes puts the even k into the high nibble, we into the low one."""
    return packed << 4 | packed >> 4


def _bitsandbytes() -> Any:
    # On some CPUs its import looks for a kernel on a hub and logs that it found none.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    import bitsandbytes.functional

    return bitsandbytes.functional
