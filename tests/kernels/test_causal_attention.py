"""The draft head's attention against a softmax written out, whatever lies beyond the last position."""

import pytest
import torch

from kernels.causal_attention import causal_attention, causal_attention_reference


@pytest.mark.parametrize("attention", [causal_attention, causal_attention_reference])
@pytest.mark.parametrize(("heads", "kv_heads", "start"), [(4, 2, 0), (9, 3, 17), (2, 2, 40)])
def test_written_out(attention: object, heads: int, kv_heads: int, start: int) -> None:
    random = torch.Generator().manual_seed(start)
    query = torch.randn(5, heads, 8, generator=random)
    keys, values = torch.randn(2, kv_heads, 64, 8, generator=random)
    positions = torch.arange(start, start + 5)
    found = attention(query, keys, values, positions)  # type: ignore[operator]
    for row in range(5):
        for head in range(heads):
            seen = slice(0, start + row + 1)
            k, v = keys[head * kv_heads // heads, seen], values[head * kv_heads // heads, seen]
            expected = (query[row, head] @ k.T / 8**0.5).softmax(-1) @ v
            torch.testing.assert_close(found[row, head], expected)


def test_operator() -> None:
    """Its shapes without running it, as compilation sees them."""
    arguments = (torch.randn(3, 4, 8), torch.randn(2, 16, 8), torch.randn(2, 16, 8), torch.tensor([5, 6, 7]))
    torch.library.opcheck(torch.ops.dart.causal_attention.default, arguments)
