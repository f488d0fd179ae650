"""Counting more pairs of context and token than memory holds: spill to disk by key, sort part by part."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernels.ngram_lookup import KEY_BITS

TOTAL = -1  # the token of a pair that counts how often its context was seen, whatever followed
PART_BITS = 8
PAIR = np.dtype([("key", "<i8"), ("token", "<i4"), ("count", "<i8")])
Ints: TypeAlias = NDArray[np.int64]
Pairs: TypeAlias = NDArray[np.void]  # of PAIR


def as_pairs(keys: Ints, tokens: Ints, counts: Ints | int) -> Pairs:
    """Columns of one length → PAIR records."""
    pairs: Pairs = np.empty(len(keys), PAIR)
    pairs["key"], pairs["token"], pairs["count"] = keys, tokens, counts
    return pairs


def summed(pairs: Pairs) -> Pairs:
    """Sorted by key, then token, equal pairs added up."""
    if len(pairs) == 0:
        return pairs
    pairs = pairs[np.argsort(pairs["key"])]
    group = np.cumsum(np.diff(pairs["key"], prepend=pairs["key"][0]) != 0)
    both = group << 32 | (pairs["token"].astype(np.int64) + 1)  # one number to sort by: TOTAL, −1, comes first
    order = np.argsort(both)
    both, pairs = both[order], pairs[order]
    starts = np.flatnonzero(np.diff(both, prepend=-1))
    counts = np.add.reduceat(pairs["count"], starts)
    pairs = pairs[starts]
    pairs["count"] = counts
    return pairs


class Spill:
    """Pairs on disk in 2^8 parts by the top bits of their keys, which spread evenly.

    A part is sorted in memory: 2 % of what was added is held at once. A context manager, whose files go
    with it.
    """

    def __init__(self, directory: Path) -> None:
        """Files lie in a directory of their own within `directory`."""
        self._stack = ExitStack()
        work = self._stack.enter_context(tempfile.TemporaryDirectory(prefix=".ngram-", dir=directory))
        self.work = Path(work)
        self._parts = [
            self._stack.enter_context((self.work / f"part{i}").open("w+b", buffering=0)) for i in range(1 << PART_BITS)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add(self, pairs: Pairs) -> None:
        """Appends pairs to the parts they belong to."""
        part = (pairs["key"] >> (KEY_BITS + 2 - PART_BITS)).astype(np.uint8)
        pairs = pairs[np.argsort(part, kind="stable")]
        ends = np.cumsum(np.bincount(part, minlength=1 << PART_BITS))
        for file, start, end in zip(self._parts, np.r_[0, ends[:-1]], ends, strict=True):
            if end > start:
                file.write(pairs[start:end].tobytes())

    def sort(self) -> None:
        """Sorts every part and adds up equal pairs."""
        for file in self._parts:
            pairs = summed(_read(file.name))
            file.seek(0)
            file.truncate()
            file.write(pairs.tobytes())

    def pairs(self) -> int:
        """How many pairs there are, totals included."""
        return sum(os.fstat(file.fileno()).st_size for file in self._parts) // PAIR.itemsize

    def parts(self) -> Iterator[Pairs]:
        """The parts one after the other: after `sort`, all pairs in ascending order."""
        for file in self._parts:
            yield _read(file.name)


def _read(name: str) -> Pairs:
    return np.fromfile(name, PAIR)
