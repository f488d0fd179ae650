"""Counting n-grams of texts, out of core, and merging models."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from dart_core.ngram.model import load_ngram
from dart_core.ngram.pairs import TOTAL, Ints, Pairs, Spill, as_pairs, summed
from dart_core.ngram.write import write_ngram
from kernels.ngram_lookup import MAX_ORDER, TOKEN_BITS, context_key
from models.errors import ModelError, UsageError

_CHUNK = 1 << 20  # tokens counted, or pairs copied, at a time
_GAP = -1  # stands between documents: no n-gram crosses it


def build_ngram(documents: Iterable[list[int]], order: int, path: Path, max_entries: int | None = None) -> None:
    """Counts the n-grams of `documents` (token ids) up to `order` 2 to 5 into the model file `path`.

    No n-gram crosses documents. Holds a million tokens and one part of the sort (2 % of the pairs) in memory;
    the pairs lie in temporary files beside `path`. `max_entries` keeps the pairs seen most often.
    """
    if not 2 <= order <= MAX_ORDER:
        raise UsageError(f"The order of an n-gram model is 2 to {MAX_ORDER}, not {order}", "Try --order 3")
    with Spill(path.parent) as spill:
        for tokens in _chunks(documents):
            for length in range(1, order):
                spill.add(_count(tokens, length))
        write_ngram(path, order, spill, max_entries)


def merge_ngrams(sources: list[Path], path: Path, max_entries: int | None = None) -> None:
    """Adds up the counts of model files into `path`, as if all their texts had been counted together.

    A model forgets contexts it saw at the end of documents only, and what `max_entries` left out. Raises
    ModelError where their orders differ.
    """
    tables = [load_ngram(source) for source in sources]
    for source, table in zip(sources, tables, strict=True):
        if table.order != tables[0].order:
            raise ModelError(
                f"{source} has order {table.order}, {sources[0]} has {tables[0].order}",
                "Merge models of one order",
            )
    with Spill(path.parent) as spill:
        for table in tables:
            first = table.first.numpy()
            for start in range(0, len(table.context), _CHUNK):
                rows = slice(start, start + _CHUNK)
                keys, total = table.context[rows].numpy(), table.total[rows].numpy()
                spill.add(as_pairs(keys, np.full(len(keys), TOTAL), total))
                sizes = np.diff(first[start : start + len(keys) + 1])
                pairs = slice(int(first[start]), int(first[start + len(keys)]))
                spill.add(as_pairs(np.repeat(keys, sizes), table.token[pairs].numpy(), table.count[pairs].numpy()))
        write_ngram(path, tables[0].order, spill, max_entries)


def _chunks(documents: Iterable[list[int]]) -> Iterator[Ints]:
    """Documents with a gap after each, about a million tokens at a time."""
    parts: list[Ints] = []
    held = 0
    for document in documents:
        tokens = np.asarray(document, np.int64)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < 1 << TOKEN_BITS:
            wrong = tokens.min() if tokens.min() < 0 else tokens.max()
            raise ModelError(f"Token {wrong} is not 0 to {(1 << TOKEN_BITS) - 1}", "Check the tokenizer")
        parts += [tokens, np.array([_GAP])]
        held += len(tokens) + 1
        if held >= _CHUNK:
            yield np.concatenate(parts)
            parts, held = [], 0
    if parts:
        yield np.concatenate(parts)


def _count(tokens: Ints, length: int) -> Pairs:
    """Every context of `length` tokens with what follows it, and its total, whatever follows or nothing."""
    if len(tokens) <= length:
        return as_pairs(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    windows = np.lib.stride_tricks.sliding_window_view(tokens[:-1], length)  # the last token is a gap
    keys = context_key(torch.from_numpy(windows.copy())).numpy()
    whole = keys >= 0
    keys, following = keys[whole], tokens[length:][whole]
    totals, counts = np.unique(keys, return_counts=True)
    followed = following != _GAP
    pairs = summed(as_pairs(keys[followed], following[followed], 1))
    return np.concatenate((as_pairs(totals, np.full(len(totals), TOTAL), counts), pairs))
