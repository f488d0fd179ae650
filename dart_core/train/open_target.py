"""The target as training needs it: quantised as it will be used, with its tokenizer and its end-of-text tokens."""

from typing import Any

import torch

from models.decoder import Target
from models.resolve import resolve_model
from models.tokenizer import eos_ids, load_tokenizer
from models.weights import load_target


def open_target(model: str) -> tuple[Target, Any, frozenset[int]]:
    """Raises ModelError."""
    files = resolve_model(model)
    tokenizer = load_tokenizer(files.directory)
    target = load_target(files, "4bit", torch.device("cpu"))
    return target, tokenizer, eos_ids(files.directory, tokenizer)
