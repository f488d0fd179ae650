"""8-bit weights as two 4-bit halves."""

import gguf
import torch

from kernels.linear4 import linear4, pack
from kernels.weight4 import dequantise, quantise_8bit


def test_q8_0_is_held_exactly() -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    matrix = torch.randn(40, 96, generator=torch.Generator().manual_seed(0))
    stored = torch.from_numpy(gguf.dequantize(gguf.quantize(matrix.numpy(), kind), kind))
    high, low = dequantise(quantise_8bit(stored)).chunk(2, dim=-1)
    torch.testing.assert_close(high + low, stored, rtol=1e-6, atol=1e-7)


def test_a_row_laid_out_twice_meets_both_halves() -> None:
    noise = torch.Generator().manual_seed(1)
    matrix, x = torch.randn(70, 128, generator=noise), torch.randn(5, 128, generator=noise)
    y = linear4(x.repeat(1, 2), pack(quantise_8bit(matrix)))
    exact = x @ matrix.T
    assert float((y - exact).norm() / exact.norm()) < 0.012
