"""The header of a GGUF file: its settings and where its tensors lie.

Format: ggml's docs/gguf.md, versions 2 and 3. The gguf library's own reader makes an array object for each of a
vocabulary's tokens: 2.5 s for 49,152 of them at every start, where skipping them takes 0.03 s.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.errors import ModelError

Setting = int | float | bool | str

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_TYPE_AND_COUNT, _LENGTH = struct.Struct("<IQ"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor's place: `kind` is a gguf.GGMLQuantizationType, `shape` has rows first, `offset` is in the file."""

    kind: Any
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """`settings` are the scalar ones (arrays, which are the tokenizer's, are left out); `data` maps the file."""

    path: Path
    settings: dict[str, Setting]
    tensors: dict[str, GGUFTensor]
    data: np.ndarray[Any, np.dtype[np.uint8]]

    def setting(self, key: str) -> Any:
        """A setting the file must have. Raises ModelError without it."""
        if key not in self.settings:
            raise ModelError(f"{self.path} does not say its {key}", "download it again, or use another file")
        return self.settings[key]


def read_header(path: Path) -> GGUFHeader:
    """Maps the file and reads its header. Raises ModelError where it is not a GGUF file, damaged or cut short."""
    again = "download it again, or check its checksum"
    try:
        # A plain array over the mapping: numpy's memmap class costs 4 µs a slice.
        data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        cursor = _Cursor(data.data)
        magic, version, tensors, settings = cursor.take("4sIQQ")
        if magic != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file: it begins with {magic!r}", again)
        if version not in (2, 3):
            raise ModelError(f"{path} is GGUF version {version}; versions 2 and 3 are read", "convert it anew")
        found = dict(_read_setting(cursor) for _ in range(settings))
        infos = [_read_info(cursor) for _ in range(tensors)]
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", "check its permissions") from error
    except (struct.error, ValueError, OverflowError) as error:
        raise ModelError(f"{path} is not a whole GGUF file: its header is damaged ({error})", again) from error
    alignment = int(found.get("general.alignment") or 32)
    start = -(-cursor.at // alignment) * alignment
    places = {}
    for name, shape, kind, offset in infos:
        place = _place(path, name, shape, kind, start + offset)
        if place.offset + place.nbytes > len(data):
            raise ModelError(f"{path} is cut short: {name} ends after byte {len(data):,}, the last", again)
        places[name] = place
    return GGUFHeader(path, {key: value for key, value in found.items() if value is not None}, places, data)


class _Cursor:
    """A position in the mapped file. Reading past the end raises struct.error."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, layout: str) -> tuple[Any, ...]:
        """The little-endian values of `layout` (see struct) at the position, which moves past them."""
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def skip(self, count: int) -> None:
        """Moves on by `count` bytes."""
        if count > len(self.data) - self.at:
            raise struct.error("the file ends inside an array")
        self.at += count

    def string(self) -> str:
        """A length and that many bytes of UTF-8."""
        (length,) = self.take("Q")
        start = self.at
        self.skip(length)
        return bytes(self.data[start : self.at]).decode()

    def skip_strings(self, count: int) -> None:
        """Moves past `count` strings: tokens and merges, some 100,000 of them."""
        data, at, read = self.data, self.at, _LENGTH.unpack_from
        for _ in range(count):
            at += 8 + read(data, at)[0]
        self.at = at


def _read_setting(cursor: _Cursor) -> tuple[str, Setting | None]:
    """Key and value; None for an array."""
    key = cursor.string()
    (kind,) = cursor.take("I")
    if kind == _STRING:
        return key, cursor.string()
    if kind != _ARRAY:
        return key, cursor.take(_scalar(kind))[0]
    inner, count = _TYPE_AND_COUNT.unpack_from(cursor.data, cursor.at)
    cursor.skip(_TYPE_AND_COUNT.size)
    if inner == _STRING:
        cursor.skip_strings(count)
    else:
        cursor.skip(count * struct.calcsize("<" + _scalar(inner)))
    return key, None


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"unknown type {kind}")
    return _SCALARS[kind]


def _read_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape (rows first), kind, offset from the start of the tensors."""
    name = cursor.string()
    (dimensions,) = cursor.take("I")
    if dimensions > 4:
        raise ValueError(f"{dimensions} dimensions")
    shape = cursor.take(f"{dimensions}Q")
    kind, offset = cursor.take("IQ")
    return name, shape[::-1], kind, offset


def _place(path: Path, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GGUFTensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        known = GGMLQuantizationType(kind)
        block, size = GGML_QUANT_SIZES[known]
    except (ValueError, KeyError) as error:
        raise ModelError(
            f"{path}: {name} has the unknown quantisation {kind}", "use a Q4_0, Q4_1, Q8_0 or K-quant file"
        ) from error
    if not shape or min(shape) < 1 or shape[-1] % block:
        raise ModelError(f"{path}: {name} has the impossible shape {list(shape)}", "download it again")
    return GGUFTensor(known, shape, offset, math.prod(shape) // block * size)
