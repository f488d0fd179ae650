"""N-gram models on disk: one safetensors file of flat arrays, memory-mapped, shared between processes."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kernels.ngram_lookup import KEY_BITS, MAX_ORDER, NgramTable
from models.errors import ModelError

FORMAT = "dart-ngram-1"
ARRAYS = ("bucket", "context", "first", "total", "token", "count")
NUMBERS = ("order", "bits", "longest_bucket", "longest_list", "vocab_size")


def load_ngram(path: Path, vocab_size: int | None = None) -> NgramTable:
    """Maps the model file `path` into memory; pages are read when they are looked at.

    Raises ModelError where the file is damaged, or holds tokens that a vocabulary of `vocab_size` does not.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise damaged(path, f"it is no {FORMAT} file")
            numbers = {key: int(metadata[key]) for key in NUMBERS}
            arrays = {name: file.get_tensor(name) for name in ARRAYS}
    except (OSError, SafetensorError, ValueError) as error:
        raise damaged(path, str(error)) from error
    except KeyError as error:
        raise damaged(path, f"it does not say its {error.args[0]}") from error
    _check(path, numbers, arrays)
    if vocab_size is not None and numbers["vocab_size"] > vocab_size:
        raise damaged(path, f"its vocabulary has {numbers['vocab_size']} tokens, the target's {vocab_size}")
    return NgramTable(numbers["order"], numbers["bits"], numbers["longest_bucket"], numbers["longest_list"], **arrays)


def damaged(path: Path, cause: str) -> ModelError:
    """The error for a model file that cannot be used."""
    return ModelError(
        f"The n-gram model {path} cannot be used: {cause}",
        "Build one with: python -m dart_core.ngram build, or run with --ngram none",
    )


def _check(path: Path, numbers: dict[str, int], arrays: dict[str, Tensor]) -> None:
    """What can be seen without reading the arrays; look-ups stay inside them whatever they hold."""
    if not 2 <= numbers["order"] <= MAX_ORDER:
        raise damaged(path, f"its order is {numbers['order']}, not 2 to {MAX_ORDER}")
    if not 1 <= numbers["bits"] <= min(KEY_BITS, 40):
        raise damaged(path, f"its bits are {numbers['bits']}, not 1 to 40")
    contexts, pairs = arrays["context"].numel(), arrays["token"].numel()
    if not contexts or not pairs:
        raise damaged(path, "it is empty")
    index = (torch.int32, torch.int64)
    right = {
        "bucket": (index, (1 << numbers["bits"]) + 1),
        "context": ((torch.int64,), contexts),
        "first": (index, contexts + 1),
        "total": ((torch.int32,), contexts),
        "token": ((torch.int32,), pairs),
        "count": ((torch.int32,), pairs),
    }
    for name, (kinds, size) in right.items():
        array = arrays[name]
        if array.dtype not in kinds or tuple(array.shape) != (size,):
            raise damaged(path, f"{name} is {array.dtype} {list(array.shape)}, not {kinds[0]} [{size}]")
    for name, end in (("bucket", contexts), ("first", pairs)):
        if int(arrays[name][0]) != 0 or int(arrays[name][-1]) != end:
            raise damaged(path, f"{name} does not run from 0 to {end}")
    for name, most in (("longest_bucket", contexts), ("longest_list", pairs)):
        if not 1 <= numbers[name] <= most:
            raise damaged(path, f"{name} is {numbers[name]}, not 1 to {most}")
