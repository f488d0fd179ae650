"""All 4-bit linear layers of one forward pass by the number of rows M, against other kernels.

    python benchmarks/linear4.py [--models smollm2-135m llama-3.2-1b qwen3-4b] [--kind q4_1] [--repeat 15]

Every layer has weights of its own, so nothing is timed in a cache that a model would find cold. The kernels
take turns; times are medians, the minimum beside. GB/s counts the bytes of a kernel's own weights; the share
is that of copying memory (read and written bytes).
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from kernels import native
from kernels.linear4 import linear4, pack
from kernels.weight4 import AFFINE_CODEBOOK, NF4_CODEBOOK, Weight4, dequantise, unpack_codes

Product = Callable[[Tensor], Tensor]
Shape = tuple[int, int]
ROWS = (1, 2, 4, 8, 16, 24, 32, 64)


def decoder_shapes(
    hidden: int, heads: int, kv_heads: int, head_dim: int, middle: int, vocab: int, layers: int
) -> list[Shape]:
    """(N, K) of every linear layer of a decoder, qkv and gate/up fused, the output head last."""
    qkv = ((heads + 2 * kv_heads) * head_dim, hidden)
    layer = [qkv, (hidden, heads * head_dim), (2 * middle, hidden), (hidden, middle)]
    return layer * layers + [(vocab, hidden)]


MODELS = {
    "smollm2-135m": decoder_shapes(576, 9, 3, 64, 1536, 49152, 30),
    "llama-3.2-1b": decoder_shapes(2048, 32, 8, 64, 8192, 128256, 16),
    "qwen3-4b": decoder_shapes(2560, 32, 8, 128, 9728, 151936, 36),
}


def random_weight(n: int, k: int, kind: str) -> Weight4:
    """A [N, K] weight of the kind q4_0, q4_1 or nf4."""
    group = 64 if kind == "nf4" else 32
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    scale = torch.rand(n, k // group) * 0.01
    if kind == "nf4":
        return Weight4(codes, torch.tensor(NF4_CODEBOOK), scale, None, group)
    minimum = (torch.randn(n, k // group) * 0.05).half() if kind == "q4_1" else None
    codebook = torch.tensor(AFFINE_CODEBOOK) - (8 if kind == "q4_0" else 0)
    return Weight4(codes, codebook, scale.half(), minimum, group)


def ours(weight: Weight4) -> tuple[Product, int]:
    """`kernels.linear4`: fp32 in, int8 inside, fp32 out."""
    packed = pack(weight)
    return lambda x: linear4(x, packed), packed.nbytes


def int4pack(weight: Weight4) -> tuple[Product, int]:
    """torch's own 4-bit product, in bf16, the only type it is fast in; x comes as bf16."""
    data = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unpack_codes(weight.codes).int(), 1)
    scale = weight.scale.bfloat16()
    pair = torch.stack((scale, scale), -1).transpose(0, 1).contiguous()
    return (lambda x: torch._weight_int4pack_mm_for_cpu(x, data, weight.group, pair)), data.nbytes + pair.nbytes


def qlinear(weight: Weight4) -> tuple[Product, int]:
    """oneDNN: u8 activations × s8 weights, a scale per row of W; x comes as u8. 8 bits a weight, not 4."""
    matrix = dequantise(weight)
    scale = matrix.abs().amax(1) / 127
    q = (matrix / scale.unsqueeze(1)).round().char()
    data = torch.ops.onednn.qlinear_prepack(q, None)
    zero = torch.zeros(len(scale), dtype=torch.int64)
    return (
        lambda x: torch.ops.onednn.qlinear_pointwise(
            x, 0.02, 128, data, scale, zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
    ), q.nbytes


def bitsandbytes_nf4(weight: Weight4) -> tuple[Product, int]:
    """bitsandbytes on the CPU: without its hub kernel it dequantises and multiplies."""
    import bitsandbytes as bnb
    from bitsandbytes.functional import quantize_4bit

    data, state = quantize_4bit(dequantise(weight).bfloat16(), blocksize=64, quant_type="nf4")
    return lambda x: bnb.matmul_4bit(x, data.t(), state), data.nbytes + state.absmax.nbytes


# What each takes as x, so that conversions are not timed.
KERNELS: dict[str, tuple[Callable[[Weight4], tuple[Product, int]], torch.dtype]] = {
    "linear4": (ours, torch.float32),
    "int4pack bf16": (int4pack, torch.bfloat16),
    "onednn u8·s8": (qlinear, torch.uint8),
    "bitsandbytes": (bitsandbytes_nf4, torch.bfloat16),
}


def copy_bandwidth() -> float:
    """GB/s of copying 256 MB, read and written bytes counted, best of 9."""
    source = torch.ones(64_000_000)
    target = torch.empty_like(source)
    times = []
    for _ in range(9):
        start = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - start)
    return 2 * source.nbytes / min(times) / 1e9


def inputs(shapes: list[Shape], rows: int, dtype: torch.dtype) -> dict[int, Tensor]:
    if dtype == torch.uint8:
        return {k: torch.randint(0, 256, (rows, k), dtype=dtype) for _, k in shapes}
    return {k: torch.randn(rows, k).to(dtype) for _, k in shapes}


def build(shapes: list[Shape], kind: str, names: list[str]) -> dict[str, tuple[list[Product], int]]:
    """Every kernel's products and bytes; a kernel that cannot be had here is named and left out."""
    built = {}
    for name in names:
        make, _ = KERNELS[name]
        try:
            made = [make(random_weight(n, k, kind)) for n, k in shapes]
        except (RuntimeError, ImportError, NotImplementedError) as error:
            print(f"{name}: not here ({str(error).splitlines()[0]})")
            continue
        built[name] = ([product for product, _ in made], sum(size for _, size in made))
    return built


def measure(model: str, kind: str, repeat: int, names: list[str], bandwidth: float) -> None:
    shapes = MODELS[model]
    built = build(shapes, kind, names)
    print(f"\n{model}, {kind}: all linear layers, median ms (minimum), T(M)/T(1), GB/s, share of copying")
    first: dict[str, float] = {}
    for rows in ROWS:
        times: dict[str, list[float]] = {name: [] for name in built}
        x = {name: inputs(shapes, rows, KERNELS[name][1]) for name in built}
        for _ in range(repeat):
            for name, (products, _) in built.items():
                start = time.perf_counter()
                for (_, k), product in zip(shapes, products, strict=True):
                    product(x[name][k])
                times[name].append(time.perf_counter() - start)
        cells = []
        for name, (_, size) in built.items():
            median, least = statistics.median(times[name]), min(times[name])
            ratio = median / first.setdefault(name, median)
            rate = size / median / 1e9
            taken = f"{median * 1e3:7.2f} ({least * 1e3:7.2f})"
            cells.append(f"{name} {taken} {ratio:5.2f} {rate:5.1f} {rate / bandwidth:4.0%}")
        print(f"M={rows:<3}" + "  |  ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["smollm2-135m"])
    parser.add_argument("--kind", choices=("q4_0", "q4_1", "nf4"), default="q4_1")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    print(f"{native.status()}, {arguments.threads} threads, copying {bandwidth:.1f} GB/s")
    with torch.inference_mode():
        for model in arguments.models:
            measure(model, arguments.kind, arguments.repeat, arguments.kernels, bandwidth)


if __name__ == "__main__":
    main()
