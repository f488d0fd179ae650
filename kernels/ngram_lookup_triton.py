# mypy: disable-error-code="no-untyped-def"
"""Triton form of `ngram_lookup`: one program looks up a block of (context, token) pairs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.aot_variant import AotVariant
from kernels.ngram_lookup import KEY_BITS, NgramTable, context_key

_BLOCK = 128


@triton.jit
def _bisect(values, start, end, wanted, size, steps: tl.constexpr):
    """The first place in [start, end) of a value ≥ wanted, `end` if none; at most 2^steps places."""
    for _ in tl.static_range(steps):
        middle = (start + end) >> 1
        unsure = start < end
        below = tl.load(values + middle, mask=unsure, other=0).to(tl.int64) < wanted
        start, end = tl.where(unsure & below, middle + 1, start), tl.where(unsure & ~below, middle, end)
    return start


@triton.jit
def _inside(offsets, place, size, mask):
    """offsets[place] and the next, inside an array of `size` even where a file is damaged."""
    start = tl.load(offsets + place, mask=mask, other=0).to(tl.int64)
    end = tl.load(offsets + place + 1, mask=mask, other=0).to(tl.int64)
    start = tl.minimum(tl.maximum(start, 0), size)
    return start, tl.minimum(tl.maximum(end, start), size)


@triton.jit
def _lookup(
    bucket, context, first, total, token, count, keys, wanted, probability, matched,
    pairs, width, context_size, token_size,
    shift: tl.constexpr, lengths: tl.constexpr, bucket_steps: tl.constexpr, list_steps: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0) * block + tl.arange(0, block)
    real = pair < pairs
    row = pair // width
    target = tl.load(wanted + pair, mask=real, other=-1)
    best = tl.zeros([block], tl.float32)
    best_length = tl.zeros([block], tl.int64)
    for length in tl.static_range(1, lengths + 1):
        key = tl.load(keys + row * lengths + (length - 1), mask=real, other=-1)
        known = real & (key >= 0)
        start, end = _inside(bucket, tl.where(known, key >> shift, 0), context_size, known)
        place = _bisect(context, start, end, key, context_size, bucket_steps)
        known = known & (place < end)
        known = known & (tl.load(context + place, mask=known, other=-1) == key)
        start, end = _inside(first, place, token_size, known)
        at = _bisect(token, start, end, target, token_size, list_steps)
        seen = known & (at < end)
        seen = seen & (tl.load(token + at, mask=seen, other=-1).to(tl.int64) == target)
        q = tl.load(count + at, mask=seen, other=0).to(tl.float32)
        q = tl.div_rn(q, tl.maximum(tl.load(total + place, mask=seen, other=1), 1).to(tl.float32))
        best = tl.where(seen, tl.minimum(tl.maximum(q, 0.0), 1.0), best)
        best_length = tl.where(seen, length, best_length)
    tl.store(probability + pair, best, mask=real)
    tl.store(matched + pair, best_length, mask=real)


def ngram_lookup_triton(table: NgramTable, contexts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """`ngram_lookup` on a GPU; the table's arrays lie there too."""
    lengths = min(table.order - 1, contexts.shape[-1])
    keys = torch.stack([context_key(contexts[:, -length:]) for length in range(1, lengths + 1)], dim=-1)
    tokens = tokens.contiguous()
    probability = torch.empty(tokens.shape, device=tokens.device)
    matched = torch.empty_like(tokens)
    pairs = tokens.numel()
    _lookup[(triton.cdiv(pairs, _BLOCK),)](
        table.bucket, table.context, table.first, table.total, table.token, table.count,
        keys, tokens, probability, matched,
        pairs, tokens.shape[1], len(table.context), len(table.token),
        KEY_BITS + 2 - table.bits, lengths,
        table.longest_bucket.bit_length(), table.longest_list.bit_length(), _BLOCK,
    )  # fmt: skip
    return probability, matched


def aot_variants() -> list[AotVariant]:
    """The look-up at the orders people use: a table of order 3, and one of order 5."""
    arrays = dict.fromkeys(("bucket", "first"), "*i64") | dict.fromkeys(("total", "token", "count"), "*i32")
    sizes = dict.fromkeys(("pairs", "width", "context_size", "token_size"), "i32")
    rest = {"context": "*i64", "keys": "*i64", "wanted": "*i64", "probability": "*fp32", "matched": "*i64"}
    return [
        AotVariant(
            f"ngram_lookup order={lengths + 1}",
            _lookup,
            arrays | rest | sizes,
            {"shift": 42, "lengths": lengths, "bucket_steps": 5, "list_steps": 12, "block": _BLOCK},
            num_warps=4,
            num_stages=3,
            expects_mma=False,
        )
        for lengths in (2, 4)
    ]
