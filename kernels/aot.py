"""Compiles every Triton kernel ahead of time, with no GPU, and tells what it needs of one.

    python -m kernels.aot [--only NAME] [--arch 80 89 90 120] [--json | --write docs/KERNELS.md]

Every module `kernels/*_triton.py` lists its specialisations in `aot_variants()`. Registers, spilled bytes and shared
memory are read from the compiled code by the cuobjdump in Triton's wheel. Exit code 1, with the reasons on stderr, if
a kernel spills, takes more shared memory than every architecture has, or lacks the matrix instructions it should use.
"""

import argparse
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import kernels
from kernels.aot_variant import AotVariant

ARCHITECTURES = (80, 89, 90, 120)
MAX_SHARED = 99 * 1024  # bytes a block may have on sm_86, sm_89 and sm_120 (CUDA C++ programming guide, table 29)
BEGIN = "<!-- python -m kernels.aot --write docs/KERNELS.md -->"
END = "<!-- end of what kernels.aot wrote -->"

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)")
_MMA = re.compile(r"\b(mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b")


@dataclass(frozen=True, slots=True)
class Compiled:
    """One variant on one architecture: registers of a thread, spilled bytes of a thread, shared bytes of a block."""

    name: str
    architecture: int
    num_warps: int
    num_stages: int
    registers: int
    spilled: int
    shared: int
    mma: bool
    expects_mma: bool

    def faults(self) -> list[str]:
        """What is wrong with it, in words."""
        where = f"{self.name} on sm_{self.architecture}"
        found = []
        if self.spilled:
            found.append(f"{where}: spills {self.spilled} bytes a thread")
        if self.shared > MAX_SHARED:
            found.append(f"{where}: {self.shared} bytes of shared memory, more than {MAX_SHARED}")
        if self.expects_mma and not self.mma:
            found.append(f"{where}: no matrix instruction")
        return found


def registered() -> list[AotVariant]:
    """The variants of every module `kernels/*_triton.py`, by module name. Raises RuntimeError if one lists none."""
    variants: list[AotVariant] = []
    for name in sorted(module.name for module in pkgutil.iter_modules(kernels.__path__)):
        if name.endswith("_triton"):
            module = importlib.import_module(f"kernels.{name}")
            if not hasattr(module, "aot_variants"):
                raise RuntimeError(f"kernels/{name}.py has no aot_variants(): see kernels/aot_variant.py")
            variants += module.aot_variants()
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise RuntimeError(f"two variants of one name among {sorted(names)}")
    return variants


def compile_variant(variant: AotVariant, architecture: int) -> Compiled:
    """Compiles for sm_`architecture`, past Triton's cache. Raises RuntimeError under Triton's interpreter."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: unset it to compile kernels")
    names = list(variant.kernel.arg_names)
    if {*variant.signature, *variant.constexprs} != set(names):
        raise RuntimeError(f"{variant.name}: the arguments are {names}")
    divisible = {name for name, kind in variant.signature.items() if kind.startswith("*")} | {*variant.divisible}
    source = ASTSource(
        variant.kernel,
        {name: variant.signature.get(name, "constexpr") for name in names},
        {(names.index(name),): value for name, value in variant.constexprs.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in divisible},
    )
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages}
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.always_compile = True
        built = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    registers, stack, local = _usage(built.asm["cubin"])
    return Compiled(
        variant.name,
        architecture,
        variant.num_warps,
        variant.num_stages,
        registers,
        stack + local,
        built.metadata.shared,
        bool(_MMA.search(built.asm["ptx"])),
        variant.expects_mma,
    )


def _usage(cubin: bytes) -> tuple[int, int, int]:
    """(registers, stack bytes, local bytes) of a thread."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = _USAGE.search(done.stdout)
    if not found:
        raise RuntimeError(f"{tool} -res-usage said: {done.stdout}{done.stderr}")
    registers, stack, local = map(int, found.groups())
    return registers, stack, local


def table(compiled: list[Compiled]) -> str:
    """Markdown, a variant a row; what differs by architecture in the order of `ARCHITECTURES`."""
    rows: dict[str, list[Compiled]] = {}
    for one in compiled:
        rows.setdefault(one.name, []).append(one)
    architectures = " / ".join(str(one.architecture) for one in next(iter(rows.values()), []))
    lines = [
        f"| kernel (sm_{architectures}) | warps × stages | registers | spilled bytes | shared KB | matrix unit |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        cells = (
            f"`{name}`",
            f"{row[0].num_warps} × {row[0].num_stages}",
            _same([str(one.registers) for one in row]),
            _same([str(one.spilled) for one in row]),
            _same([f"{one.shared / 1024:.3g}" for one in row]),
            _same(["yes" if one.mma else "no" for one in row]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _same(cells: list[str]) -> str:
    return cells[0] if len(set(cells)) == 1 else " / ".join(cells)


def documented(path: Path) -> list[str]:
    """The names in the generated part of the document at `path`."""
    section = path.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    return re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)


def write(path: Path, markdown: str) -> None:
    """Replaces the generated part of the document. Raises ValueError if it has no marks for it."""
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise ValueError(f"{path} lacks the lines {BEGIN} and {END}")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{markdown}\n\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME", help="only variants whose name contains NAME")
    parser.add_argument("--arch", nargs="+", type=int, default=list(ARCHITECTURES), metavar="CC")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="a list of objects on stdout")
    output.add_argument("--write", type=Path, metavar="FILE", help="put the table between FILE's marks")
    arguments = parser.parse_args()
    if arguments.write and (arguments.only or arguments.arch != list(ARCHITECTURES)):
        parser.error("--write takes the whole table: leave out --only and --arch")
    compiled = []
    for variant in registered():
        if arguments.only in variant.name:
            print(variant.name, file=sys.stderr)
            compiled += [compile_variant(variant, architecture) for architecture in arguments.arch]
    if arguments.write:
        write(arguments.write, table(compiled))
    elif arguments.json:
        print(json.dumps([asdict(one) for one in compiled], indent=1))
    else:
        print(table(compiled))
    faults = [fault for one in compiled for fault in one.faults()]
    print("\n".join(faults), file=sys.stderr, end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
