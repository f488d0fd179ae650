"""Relative frequencies from an n-gram table: q(token | the longest context in which the pair was seen).

A table is sorted flat arrays: contexts by a mixed key, found through a bucket index, each with its tokens in
order. A few memory lines a context, whatever the size of the table, and nothing to build when it is loaded.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import native

MAX_ORDER = 5
TOKEN_BITS = 20
KEY_BITS = 60  # three tokens: contexts of orders 2 to 4 have exact keys, those of order 5 a 60-bit fingerprint
_KEY_MASK = (1 << KEY_BITS) - 1
_FIRST_FACTOR = 0x9E3779B97F4A7C1  # odd, so that multiplying modulo 2^60 can be undone
_SECOND_FACTOR = 0xD1B54A32D192ED3
_FIRST_SHIFT, _SECOND_SHIFT = 31, 30


@dataclass(frozen=True, slots=True)
class NgramTable:
    """An n-gram model of `order` 2 to 5, C contexts and E pairs of context and token.

    `bucket`  int32 or int64 [2^bits + 1]: contexts whose keys begin with the bits b start at bucket[b].
    `context` int64 [C]: keys (`context_key`), ascending.
    `first`   int32 or int64 [C + 1]: where a context's pairs begin.
    `total`   int32 [C]: how often the context was seen.
    `token`   int32 [E]: ascending in a context. `count` int32 [E]: how often it followed; both saturate.
    `longest_bucket`, `longest_list`: the most contexts in a bucket, the most tokens of a context.
    """

    order: int
    bits: int
    longest_bucket: int
    longest_list: int
    bucket: Tensor
    context: Tensor
    first: Tensor
    total: Tensor
    token: Tensor
    count: Tensor

    @property
    def arrays(self) -> list[Tensor]:
        """The arrays in the order the C++ takes them."""
        return [self.bucket, self.context, self.first, self.total, self.token, self.count]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays)


def context_key(contexts: Tensor) -> Tensor:
    """Keys of contexts int64 [..., n] of 1 to 4 tokens, the most recent last → int64 [...].

    −1, which no table holds, where a token is outside [0, 2^20). Keys are spread evenly over 62 bits; the low
    two say how long the context is.
    """
    length = contexts.shape[-1]
    tokens = contexts.unbind(-1)
    valid = (contexts >> TOKEN_BITS == 0).all(-1)
    packed = torch.zeros_like(tokens[0])
    for token in tokens[-3:]:
        packed = packed << TOKEN_BITS | (token & (1 << TOKEN_BITS) - 1)
    if length > 3:
        packed = (_mixed(packed) ^ (tokens[0] + 1) * _SECOND_FACTOR) & _KEY_MASK
    return torch.where(valid, _mixed(packed) << 2 | (length - 1), -1)


def _mixed(x: Tensor) -> Tensor:
    """A one-to-one scrambling of 60-bit numbers."""
    x = x * _FIRST_FACTOR & _KEY_MASK
    x = x ^ x >> _FIRST_SHIFT
    x = x * _SECOND_FACTOR & _KEY_MASK
    return x ^ x >> _SECOND_SHIFT


def key_context(key: int) -> list[int] | None:
    """The tokens of a context's key; None for a context of four, of which the key is a fingerprint."""
    length = (key & 3) + 1
    if length > 3:
        return None
    x = key >> 2
    for factor, shift in ((_SECOND_FACTOR, _SECOND_SHIFT), (_FIRST_FACTOR, _FIRST_SHIFT)):
        x = x ^ x >> shift  # twice the shift is at least 60 bits, so this undoes itself
        x = x * pow(factor, -1, 1 << KEY_BITS) & _KEY_MASK
    return [x >> TOKEN_BITS * place & (1 << TOKEN_BITS) - 1 for place in reversed(range(length))]


def ngram_lookup(table: NgramTable, contexts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """How often `tokens` int64 [B, K] follow `contexts` int64 [B, n ≥ 1], the most recent token last.

    Returns the relative frequency under the longest context of at most order − 1 tokens in which the pair was
    seen, fp32 [B, K], 0 where it never was, with no penalty for shorter contexts (DART, appendix C); and that
    context's length, int64 [B, K]. A context token of −1 is none: the conversation begins after it.
    """
    if tokens.device.type == "cpu" and native.load():
        found: tuple[Tensor, Tensor] = torch.ops.dart.ngram_lookup(
            table.arrays, table.order, table.bits, contexts, tokens
        )
        return found
    if tokens.device.type == "cuda":
        from kernels.ngram_lookup_triton import ngram_lookup_triton

        return ngram_lookup_triton(table, contexts, tokens)
    return ngram_lookup_reference(table, contexts, tokens)


def ngram_lookup_reference(table: NgramTable, contexts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """`ngram_lookup` in tensor operations of fixed shapes, on any device."""
    probability = torch.zeros(tokens.shape, device=tokens.device)
    matched = torch.zeros_like(tokens)
    for length in range(1, min(table.order - 1, contexts.shape[-1]) + 1):
        row, known = find_contexts(table, context_key(contexts[:, -length:]))
        start, end = _bounds(table.first, row[:, None], len(table.token))
        end = torch.where(known[:, None], end, start).expand_as(tokens)
        place = _bisect(table.token, start.expand_as(tokens), end, tokens, table.longest_list)
        inside = place.clamp(max=len(table.token) - 1)
        seen = (place < end) & (table.token[inside] == tokens)
        ratio = table.count[inside].float() / table.total[row].clamp(min=1).float()[:, None]
        probability = torch.where(seen, ratio.clamp(0, 1), probability)
        matched = torch.where(seen, length, matched)
    return probability, matched


def find_contexts(table: NgramTable, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Places of `keys` int64 [B] in the table, int64 [B] (any where unknown), and bool [B]: known."""
    slot = keys.clamp(min=0) >> KEY_BITS + 2 - table.bits
    start, end = _bounds(table.bucket, slot, len(table.context))
    place = _bisect(table.context, start, end, keys, table.longest_bucket)
    row = place.clamp(max=len(table.context) - 1)
    return row, (place < end) & (table.context[row] == keys)


def _bounds(offsets: Tensor, place: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """[offsets[place], offsets[place + 1]), inside the array of `size` even where a file is damaged."""
    return offsets[place].long().clamp(0, size), offsets[place + 1].long().clamp(0, size)


def _bisect(ascending: Tensor, start: Tensor, end: Tensor, wanted: Tensor, longest: int) -> Tensor:
    """The first place in [start, end), at most `longest` long, of a value ≥ `wanted`; `end` if none."""
    for _ in range(longest.bit_length()):
        middle = (start + end) >> 1
        below = ascending[middle.clamp(max=len(ascending) - 1)] < wanted
        open_ = start < end
        start, end = torch.where(open_ & below, middle + 1, start), torch.where(open_ & ~below, middle, end)
    return start
