"""Triton kernels compiled without a GPU: registers, spills, shared memory, matrix instructions."""

import dataclasses
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

from kernels import aot  # noqa: E402
from kernels.aot_variant import AotVariant  # noqa: E402

DOCUMENT = Path(__file__).parents[2] / "docs" / "KERNELS.md"


@triton.jit
def _spilling(source, target, size: triton.language.constexpr):
    """A matrix of 256 registers a thread, held across a transposition of itself."""
    place = triton.language.arange(0, size)[:, None] * size + triton.language.arange(0, size)[None, :]
    matrix = triton.language.load(source + place)
    other = triton.language.load(source + place + size * size)
    for _ in range(2):
        matrix, other = triton.language.dot(matrix, other), matrix + triton.language.trans(other)
    triton.language.store(target + place, matrix + other)


def spilling(size: int) -> AotVariant:
    pointers = {"source": "*fp32", "target": "*fp32"}
    return AotVariant("spilling", _spilling, pointers, {"size": size}, 4, 2, expects_mma=True)


def one_of_each_kernel() -> list[AotVariant]:
    """The first variant of every jitted function; `python -m kernels.aot` compiles them all."""
    firsts: dict[str, AotVariant] = {}
    for variant in aot.registered():
        firsts.setdefault(f"{variant.kernel.__module__}.{variant.kernel.__name__}", variant)
    return list(firsts.values())


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("variant", one_of_each_kernel(), ids=lambda variant: variant.name)
def test_fits_every_gpu(variant: AotVariant, architecture: int) -> None:
    compiled = aot.compile_variant(variant, architecture)
    assert compiled.registers > 0
    assert compiled.faults() == []


def test_spills_and_shared_memory_are_seen() -> None:
    compiled = aot.compile_variant(spilling(128), 80)
    assert compiled.mma
    assert compiled.spilled > 0
    assert compiled.shared == 128 * 128 * 4
    assert len(compiled.faults()) == 1
    worse = dataclasses.replace(compiled, shared=aot.MAX_SHARED + 1, mma=False)
    assert [fault.split(": ")[0] for fault in worse.faults()] == ["spilling on sm_80"] * 3


def test_a_wrong_signature_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"spilling: the arguments are \['source', 'target', 'size'\]"):
        aot.compile_variant(dataclasses.replace(spilling(16), constexprs={}), 80)


def test_the_document_lists_every_kernel() -> None:
    names = [variant.name for variant in aot.registered()]
    assert aot.documented(DOCUMENT) == names, "run: python -m kernels.aot --write docs/KERNELS.md"


def test_write_replaces_its_part_only(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text(f"before\n{aot.BEGIN}\nold\n{aot.END}\nafter\n")
    one = aot.Compiled("a b=1", 80, 4, 2, 32, 0, 1024, True, True)
    aot.write(path, aot.table([one, dataclasses.replace(one, architecture=90, registers=40)]))
    assert aot.documented(path) == ["a b=1"]
    text = path.read_text()
    assert "| `a b=1` | 4 × 2 | 32 / 40 | 0 | 1 | yes |" in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    path.write_text("nothing")
    with pytest.raises(ValueError, match="lacks the lines"):
        aot.write(path, "")
