"""The C++ operators: built once by the user's compiler into the cache, loaded into `torch.ops.dart`."""

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

from kernels.cache import cache_dir

_SOURCES = Path(__file__).parent / "cpu"
# No contraction: a multiply and an add become one rounding only where the code says fma, so that results are
# the same whatever the compiler, the instruction set and the number of rows. GCC 12 warns of its own headers.
_FLAGS = [
    "-O3",
    "-std=c++20",
    "-fopenmp",
    "-ffp-contract=off",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]

_lock = threading.Lock()
_loaded = False
_failure = ""


@dataclass(frozen=True, slots=True)
class Status:
    """`path`: avx512_vnni, avx_vnni, avx2 or scalar; "none" if the C++ cannot be had. `reason` says why."""

    path: str
    reason: str


@torch.compiler.assume_constant_result
def load() -> bool:
    """Builds (some ten seconds, once per version) and loads the operators. False if that is not possible.

    Safe to call from several threads and processes. `DART_NATIVE=0` turns the C++ off.
    """
    global _loaded, _failure
    with _lock:
        if not _loaded and not _failure:
            try:
                _load()
                _loaded = True
            except Exception as error:
                _failure = str(error).strip().split("\n", 1)[0] or type(error).__name__
        return _loaded


def is_built() -> bool:
    """Whether `load` will find the library in the cache, or knows at once that it cannot build one."""
    try:
        return _loaded or bool(_failure) or (cache_dir("native", _key()) / "dart_native.so").exists()
    except (OSError, RuntimeError):
        return True


def status() -> Status:
    """Which path the CPU kernels take, and why."""
    if not load():
        return Status("none", _failure)
    return Status(torch.ops.dart.cpu_path(), "the best of this CPU")


def _load() -> None:
    if os.environ.get("DART_NATIVE") == "0":
        raise RuntimeError("turned off by DART_NATIVE=0")
    directory = cache_dir("native", _key())
    library = directory / "dart_native.so"
    if not library.exists():
        with FileLock(directory / "build.lock"):
            if not library.exists():
                _build_and_load(library)
                return
    torch.ops.load_library(str(library))


def _key() -> str:
    """A name for what the library depends on: sources, flags, torch, compiler."""
    compiler = os.environ.get("CXX", "c++")
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"no C++ compiler: {compiler} does not run") from error
    key = hashlib.sha256("\0".join((torch.__version__, platform.machine(), compiler, version, *_FLAGS)).encode())
    for source in sorted(_SOURCES.iterdir()):
        key.update(source.name.encode() + source.read_bytes())
    return key.hexdigest()[:16]


def _build_and_load(library: Path) -> None:
    """Compiles in a directory of its own and moves the result: a killed build leaves nothing half done."""
    from torch.utils import cpp_extension

    path = os.environ.get("PATH", "")
    # ninja comes as a Python package, whose scripts are not on the PATH unless the environment is activated.
    os.environ["PATH"] = os.pathsep.join((path, str(Path(sys.executable).parent)))
    try:
        with tempfile.TemporaryDirectory(dir=library.parent) as work:
            built = cpp_extension.load(
                name=library.stem,
                sources=[str(source) for source in sorted(_SOURCES.glob("*.cpp"))],
                extra_cflags=_FLAGS,
                extra_ldflags=["-fopenmp"],
                build_directory=work,
                is_python_module=False,
            )
            os.replace(built, library)
    finally:
        os.environ["PATH"] = path


if __name__ == "__main__":
    if not is_built():
        print("compiling the CPU kernels, once (about a minute)", file=sys.stderr)
    print(f"CPU kernels: {status().path} ({status().reason})", file=sys.stderr)
