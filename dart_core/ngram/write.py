"""From spilled pairs to a model file, part by part."""

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dart_core.ngram.model import ARRAYS, FORMAT
from dart_core.ngram.pairs import TOTAL, Ints, Pairs, Spill
from kernels.ngram_lookup import KEY_BITS
from models.errors import ModelError

_LARGEST = 2**31 - 1  # of an int32
_COUNT_CELLS = 1 << 16  # when a model is cut to size, larger counts are all the same
_BLOCK = 1 << 20  # buckets worked out at a time


def write_ngram(path: Path, order: int, spill: Spill, max_entries: int | None = None) -> None:
    """Sorts what `spill` holds into the model file `path`.

    At most `max_entries` pairs are kept, those seen most often, of shorter contexts first where equal; the
    rest still counts in their contexts' totals. Raises ModelError where there is nothing to keep.
    """
    spill.sort()
    cut = _Cut(spill, max_entries)
    index = np.dtype("<i4" if spill.pairs() <= _LARGEST else "<i8")
    contexts = pairs = longest_list = vocab_size = 0
    with ExitStack() as stack:
        files = {name: stack.enter_context(open(spill.work / name, "wb")) for name in ARRAYS}
        np.zeros(1, index).tofile(files["first"])
        for part in spill.parts():
            columns = _columns(part, cut)
            sizes = columns.pop("size")
            columns["first"] = (pairs + np.cumsum(sizes)).astype(index)
            for name, column in columns.items():
                column.tofile(files[name])
            contexts += len(sizes)
            pairs += len(columns["token"])
            longest_list = max(longest_list, int(sizes.max(initial=0)))
            vocab_size = max(vocab_size, int(columns["token"].max(initial=0)) + 1)
        if not pairs:
            raise ModelError("There is nothing to put in the n-gram model", "Give it more text or more entries")
        files["context"].flush()
        keys = np.memmap(spill.work / "context", "<i8", "r")
        bits = max(1, (contexts // 4).bit_length())
        longest_bucket = 0
        for start in range(0, (1 << bits) + 1, _BLOCK):
            bucket = np.arange(start, min(start + _BLOCK, 1 << bits) + 1) << (KEY_BITS + 2 - bits)
            places = np.searchsorted(keys, bucket)
            longest_bucket = max(longest_bucket, int(np.diff(places).max(initial=0)))
            last = start + _BLOCK > 1 << bits
            (places if last else places[:-1]).astype(index).tofile(files["bucket"])
        del keys
    numbers = {
        "format": FORMAT,
        "order": order,
        "bits": bits,
        "longest_bucket": longest_bucket,
        "longest_list": longest_list,
        "vocab_size": vocab_size,
    }
    kinds = {"bucket": index, "first": index, "context": np.dtype("<i8")}
    _assemble(path, numbers, {name: (spill.work / name, kinds.get(name, np.dtype("<i4"))) for name in ARRAYS})


class _Cut:
    """Which pairs to keep: cells are ordered by count, descending, then by the length of the context."""

    def __init__(self, spill: Spill, max_entries: int | None) -> None:
        self.cell, self.room = 4 * _COUNT_CELLS, 0
        if max_entries is None:
            return
        filled = np.zeros(self.cell, np.int64)
        for pairs in spill.parts():
            filled += np.bincount(self._cells(pairs[pairs["token"] != TOTAL]), minlength=self.cell)
        upto = np.concatenate(([0], np.cumsum(filled)))
        self.cell = int(np.searchsorted(upto, max_entries, side="right")) - 1
        self.room = max_entries - int(upto[self.cell])

    @staticmethod
    def _cells(pairs: Pairs) -> Ints:
        rarity = _COUNT_CELLS - np.clip(pairs["count"], 1, _COUNT_CELLS)
        cells: Ints = rarity * 4 + (pairs["key"] & 3)
        return cells

    def keep(self, pairs: Pairs) -> NDArray[np.bool_]:
        """For each of the next pairs, in the order of keys, whether it is kept."""
        cells = self._cells(pairs)
        last = cells == self.cell
        kept: NDArray[np.bool_] = (cells < self.cell) | (last & (np.cumsum(last) <= self.room))
        self.room -= int((kept & last).sum())
        return kept


def _columns(pairs: Pairs, cut: _Cut) -> dict[str, NDArray[np.integer]]:
    """The model's columns for one sorted part, `size` (pairs a context has) in place of `first`.

    Contexts with no pair to keep are left out.
    """
    keys, group = np.unique(pairs["key"], return_inverse=True)
    is_total = pairs["token"] == TOTAL
    total = np.zeros(len(keys), np.int64)
    total[group[is_total]] = pairs["count"][is_total]
    rest, group = pairs[~is_total], group[~is_total]
    positive = rest["count"] > 0
    rest, group = rest[positive], group[positive]
    # In a reduced trie a context's own count can lie below the sum of what follows; q must stay at most 1.
    total = np.maximum(total, np.bincount(group, rest["count"], len(keys)).astype(np.int64))
    kept = cut.keep(rest)
    rest, group = rest[kept], group[kept]
    size = np.bincount(group, minlength=len(keys))
    return {
        "context": keys[size > 0],
        "size": size[size > 0],
        "total": np.minimum(total[size > 0], _LARGEST).astype("<i4"),
        "token": rest["token"],
        "count": np.minimum(rest["count"], _LARGEST).astype("<i4"),
    }


def _assemble(path: Path, numbers: dict[str, object], columns: dict[str, tuple[Path, np.dtype]]) -> None:
    """Writes a safetensors file from one file a tensor, holding none of them in memory."""
    header: dict[str, object] = {"__metadata__": {key: str(value) for key, value in numbers.items()}}
    end = 0
    for name, (column, kind) in sorted(columns.items(), key=lambda item: -item[1][1].itemsize):
        start, end = end, end + column.stat().st_size
        size = (end - start) // kind.itemsize
        header[name] = {"dtype": f"I{kind.itemsize * 8}", "shape": [size], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(f".{path.name}.part")
    try:
        with open(partial, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in header:
                if name != "__metadata__":
                    with open(columns[name][0], "rb") as column_file:
                        shutil.copyfileobj(column_file, out, 1 << 20)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
