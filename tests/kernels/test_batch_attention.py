"""Batched attention against the plain form."""

import pytest
import torch

from kernels import native
from kernels.batch_attention import batch_attention, batch_attention_reference


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 32), (8, 2, 128)])
@pytest.mark.parametrize("window", [None, 5, 200])
def test_equals_reference(heads: int, kv_heads: int, dim: int, window: int | None) -> None:
    """Odd lengths, on both sides of a split; what lies beyond a row's length is poison."""
    length = torch.tensor([0, 1, 6, 127, 128, 130, 299])
    query = torch.randn(len(length), heads, dim)
    keys, values = (torch.randn(len(length), kv_heads, 300, dim) for _ in range(2))
    expected = batch_attention_reference(query, keys, values, length, window)
    for row, end in enumerate(length.tolist()):
        keys[row, :, end + 1 :] = torch.nan
        values[row, :, end + 1 :] = torch.nan
    got = batch_attention(query, keys, values, length, window)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.skipif(not native.load(), reason="no C++ compiler")
def test_refuses_a_row_beyond_its_cache() -> None:
    """An error at the operator, never a read past the end."""
    cache = torch.zeros(2, 1, 8, 32)
    with pytest.raises(RuntimeError, match="does not fit"):
        batch_attention(torch.zeros(2, 1, 32), cache, cache, torch.tensor([3, 8]))
    with pytest.raises(RuntimeError, match=r"int64|Long"):
        batch_attention(torch.zeros(2, 1, 32), cache, cache, torch.tensor([3, 4], dtype=torch.int32))
