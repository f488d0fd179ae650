"""Safetensors checkpoints, single or sharded, one tensor at a time."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kernels.weight4 import Weight4
from models.errors import ModelError
from models.quantise import from_bitsandbytes, quantise

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_AGAIN = "download the model again: hf download ORG/NAME"


class SafetensorsSource:
    """A directory's *.safetensors, memory-mapped. Raises ModelError where a file is missing or damaged."""

    def __init__(self, directory: Path) -> None:
        """Opens every shard; reads no tensor yet."""
        self.path = directory
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        for path in _shards(directory):
            try:
                handle = self._stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{path} cannot be read: {error}", _AGAIN) from error
            self._files.update(dict.fromkeys(handle.keys(), handle))

    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._files)

    def read(self, name: str) -> Weight4 | Tensor:
        """The tensor as stored, or in 4 bits where the checkpoint is quantised by bitsandbytes."""
        tensor: Tensor = self._files[name].get_tensor(name)
        parts = {
            other.removeprefix(f"{name}."): self._files[other].get_tensor(other)
            for other in self._files
            if other.startswith(f"{name}.")
        }
        if any(part.startswith("quant_state.bitsandbytes") for part in parts):
            try:
                return from_bitsandbytes(tensor, parts)
            except (ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
                raise ModelError(f"{self.path}: {name} has a damaged 4-bit state: {error}", _AGAIN) from error
        if tensor.dtype not in _FLOATS:
            raise ModelError(
                f"{self.path}: {name} is quantised in a way this program does not read ({tensor.dtype})",
                "use a float checkpoint, a GGUF file, or one quantised to 4 bits by bitsandbytes",
            )
        return tensor

    def quantise(self, matrix: Tensor) -> Weight4 | Tensor:
        """NF4 where the shape allows it."""
        return quantise(matrix)


def _shards(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return [directory / "model.safetensors"]
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(f"{index} is not a shard index: {error}", _AGAIN) from error
    for name in names:
        if not (directory / name).exists():
            raise ModelError(f"{directory} lacks the shard {name}", _AGAIN)
    return [directory / name for name in names]
