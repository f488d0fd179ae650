"""The 4-bit product against exact arithmetic, for every instruction set this CPU has, and its errors."""

from collections.abc import Iterator

import pytest
import torch

from kernels import native
from kernels.linear4 import Packed4, linear4, linear4_reference, pack, unpack
from kernels.weight4 import AFFINE_CODEBOOK, NF4_CODEBOOK, Weight4, dequantise

pytestmark = pytest.mark.skipif(not native.load(), reason=f"no C++: {native.status().reason}")

FORMATS = ("q4_0", "q4_1", "q4_1_group64", "nf4", "nf4_minimum")


def supported_paths() -> list[str]:
    if not native.load():
        return []
    best = torch.ops.dart.cpu_path()
    found = []
    for path in ("avx512_vnni", "avx_vnni", "avx2", "scalar"):
        try:
            torch.ops.dart.select_cpu_path(path)
            found.append(path)
        except RuntimeError:
            continue
    torch.ops.dart.select_cpu_path(best)
    return found


@pytest.fixture(params=supported_paths())
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    best = torch.ops.dart.cpu_path()
    torch.ops.dart.select_cpu_path(request.param)
    yield request.param
    torch.ops.dart.select_cpu_path(best)


def random_weight(n: int, k: int, kind: str, seed: int = 0) -> Weight4:
    generator = torch.Generator().manual_seed(seed)
    group = 32 if kind in ("q4_0", "q4_1") else 64
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator)
    scale = torch.rand(n, k // group, generator=generator) * 0.01
    minimum = torch.randn(n, k // group, generator=generator) * 0.05
    if kind.startswith("nf4"):
        return Weight4(codes, torch.tensor(NF4_CODEBOOK), scale, minimum if "minimum" in kind else None, group)
    codebook = torch.tensor(AFFINE_CODEBOOK)
    if kind == "q4_0":
        return Weight4(codes, codebook - 8, scale.half(), None, group)
    return Weight4(codes, codebook, scale.half(), minimum.half(), group)


def round_groups(x: torch.Tensor, group: int) -> torch.Tensor:
    """The activations the kernel sees: int8 per group of a row, ties to even."""
    grouped = x.unflatten(1, (-1, group))
    largest = grouped.abs().amax(-1, keepdim=True)
    rounded: torch.Tensor = (grouped * (torch.full_like(largest, 127) / largest)).round() * (largest / 127)
    return rounded.flatten(1)


def relative_error(y: torch.Tensor, reference: torch.Tensor) -> float:
    return float((y - reference).norm() / reference.norm())


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("n", "k"), [(1, 64), (40, 576), (33, 1536), (31, 2560), (64, 4096), (7, 11008)])
def test_equals_exact_arithmetic_on_the_rounded_activations(path: str, kind: str, n: int, k: int) -> None:
    packed = pack(random_weight(n, k, kind))
    x = torch.randn(5, k, generator=torch.Generator().manual_seed(1))
    y = linear4(x, packed)
    exact = round_groups(x, unpack(packed).group).double() @ dequantise(unpack(packed)).double().T
    assert relative_error(y.double(), exact) < 2e-6


@pytest.mark.parametrize("kind", FORMATS)
def test_rounding_of_activations_scales_and_codebook_costs_about_one_percent(kind: str) -> None:
    weight = random_weight(128, 1536, kind)
    x = torch.randn(16, 1536, generator=torch.Generator().manual_seed(1))
    assert relative_error(linear4(x, pack(weight)), linear4_reference(x, weight)) < 0.012


@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_is_the_same_bits_whatever_the_number_of_rows(path: str, kind: str) -> None:
    packed = pack(random_weight(70, 576, kind))
    x = torch.randn(64, 576, generator=torch.Generator().manual_seed(2))
    y = linear4(x, packed)
    for rows in (*range(1, 18), 24, 31, 63):
        assert torch.equal(linear4(x[:rows], packed), y[:rows])
        assert torch.equal(linear4(x[64 - rows :], packed), y[64 - rows :])


@pytest.mark.parametrize("kind", FORMATS)
def test_every_instruction_set_gives_the_same_bits(path: str, kind: str) -> None:
    packed = pack(random_weight(70, 576, kind))
    x = torch.randn(11, 576, generator=torch.Generator().manual_seed(2))
    y = linear4(x, packed)
    torch.ops.dart.select_cpu_path("scalar")
    assert torch.equal(linear4(x, packed), y)


def test_a_row_does_not_depend_on_threads() -> None:
    packed = pack(random_weight(1000, 1536, "q4_1"))
    x = torch.randn(9, 1536, generator=torch.Generator().manual_seed(2))
    y = linear4(x, packed)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(linear4(x, packed), y)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", FORMATS)
def test_pack_keeps_the_matrix(kind: str) -> None:
    weight = random_weight(45, 192, kind)
    back = unpack(pack(weight))
    assert torch.equal(back.codes, weight.codes)
    if kind.startswith("nf4"):  # codebook to bytes, fp32 scales to fp16
        assert relative_error(dequantise(back), dequantise(weight)) < 0.004
    else:
        assert torch.equal(dequantise(back), dequantise(weight))


def test_scales_too_small_for_fp16_survive() -> None:
    weight = random_weight(32, 64, "nf4")
    tiny = Weight4(weight.codes, weight.codebook, weight.scale * 1e-9, None, 64)
    assert relative_error(dequantise(unpack(pack(tiny))), dequantise(tiny)) < 0.004


def test_a_group_of_128_is_two_of_64() -> None:
    half = random_weight(32, 256, "q4_1_group64")
    weight = Weight4(half.codes, half.codebook, half.scale[:, ::2].contiguous(), half.minimum[:, ::2], 128)
    assert torch.equal(dequantise(unpack(pack(weight))), dequantise(weight))


def test_bias_zero_rows_and_no_rows(path: str) -> None:
    packed = pack(random_weight(40, 64, "q4_1"))
    bias = torch.randn(40, generator=torch.Generator().manual_seed(3))
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(4))
    x[1] = 0
    assert torch.equal(linear4(x, packed, bias), linear4(x, packed) + bias)
    assert torch.equal(linear4(x, packed)[1], torch.zeros(40))
    assert linear4(x[:0], packed).shape == (0, 40)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_gives_nan_and_leaves_the_others(path: str, bad: float) -> None:
    packed = pack(random_weight(40, 64, "q4_1"))
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(4))
    good = linear4(x, packed)
    x[1, 17] = bad
    y = linear4(x, packed)
    assert y[1].isnan().all()
    assert torch.equal(y[::2], good[::2])


def test_opcheck_and_compile() -> None:
    layout = pack(random_weight(40, 64, "q4_1")).layout
    x = torch.randn(3, 64)
    arguments = (layout.data, layout.table, layout.columns, layout.group, layout.offset, layout.unit)
    torch.library.opcheck(torch.ops.dart.linear4.default, (x, *arguments, None))
    compiled = torch.compile(lambda x: torch.ops.dart.linear4(x, *arguments) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), torch.ops.dart.linear4(x, *arguments) * 2)


def test_wrong_arguments_are_errors() -> None:
    packed = pack(random_weight(40, 64, "q4_1"))
    x = torch.randn(3, 64)
    for wrong in (x.double(), x.half(), x[:, :32], x[0], torch.randn(64, 3).T, torch.randn(3, 96)):
        with pytest.raises(RuntimeError, match="linear4"):
            linear4(wrong, packed)
    for bias in (
        torch.zeros(39),
        torch.zeros(40, 1),
        torch.zeros(40, dtype=torch.float64),
        torch.zeros(80)[::2],
    ):
        with pytest.raises(RuntimeError, match="linear4"):
            linear4(x, packed, bias)
    layout = packed.layout
    for arguments in (
        (layout.data[:, :, :-1], layout.table, 40, 32, 0, 1.0),
        (layout.data, layout.table[:8], 40, 32, 0, 1.0),
        (layout.data, layout.table, 65, 32, 0, 1.0),
        (layout.data, layout.table, 40, 64, 0, 1.0),
        (layout.data.char(), layout.table, 40, 32, 0, 1.0),
    ):
        with pytest.raises(RuntimeError, match="linear4"):
            torch.ops.dart.linear4(x, *arguments)
    with pytest.raises(ValueError, match="group"):
        pack(
            Weight4(
                torch.zeros(4, 24, dtype=torch.uint8),
                torch.tensor(AFFINE_CODEBOOK),
                torch.ones(4, 3),
                None,
                16,
            )
        )


def test_without_the_library_torch_or_plain_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: False)
    x = torch.randn(4, 576, generator=torch.Generator().manual_seed(5))
    for kind in FORMATS:
        weight = random_weight(64, 576, kind)
        packed = pack(weight)
        assert isinstance(packed, Packed4)
        y = linear4(x, packed)
        assert relative_error(y, linear4_reference(x, weight)) < 0.012
        assert torch.equal(linear4(x[:1], packed), y[:1])
