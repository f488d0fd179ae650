"""Models that lie on this machine: the default, the hub's cache, .gguf files. Reads no weights and imports no torch."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.paths import cache_root
from models.catalog import DEFAULT_MODEL, DEFAULT_NAME

BITS_OF_FOUR = 4.5  # a 4-bit weight with its group's scale
MOST_FOLDERS = 2000  # that are looked into: a home directory has a hundred times as many
DEEPEST = 3  # of them below the working directory and ~/models


@dataclass(frozen=True, slots=True)
class LocalModel:
    """`spec` is what /model takes; `memory` the bytes its weights will need, 0 where that is not known."""

    spec: str
    name: str
    kind: str
    memory: int


def local_models() -> list[LocalModel]:
    """The default first, then the hub's cache, then files by name."""
    here = any((cache_root() / "models").rglob("*.gguf"))
    default = LocalModel("default", DEFAULT_NAME, "here" if here else "fetched at first use", DEFAULT_MODEL.size)
    places = [Path.cwd(), Path.home() / "models"]
    return [default, *sorted(_hub_models(), key=lambda model: model.name), *_files(places)]


def free_memory() -> int | None:
    """Bytes that programs may still take; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None


def fit(memory: int, free: int | None) -> str:
    """Such as "0.1 GB" or "9.8 GB, 7.1 GB free: does not fit"."""
    size = f"{memory / 1e9:.1f} GB" if memory >= 5e7 else f"{memory / 1e6:.0f} MB"
    if not memory or free is None or memory < free:
        return size if memory else ""
    return f"{size}, {free / 1e9:.1f} GB free: does not fit"


def _hub_models() -> Iterator[LocalModel]:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    for folder in hub.glob("models--*--*"):
        snapshots = sorted(folder.glob("snapshots/*/config.json"), key=lambda path: path.stat().st_mtime)
        if snapshots:
            name = folder.name.removeprefix("models--").replace("--", "/", 1)
            yield _directory(name, snapshots[-1].parent)


def _directory(spec: str, path: Path) -> LocalModel:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    except (OSError, ValueError):
        return LocalModel(spec, spec, "cannot be read", 0)
    whole = "quantization_config" in config
    return LocalModel(
        spec, spec, str(config.get("model_type", "?")), size if whole else round(size * BITS_OF_FOUR / 16)
    )


def _files(places: list[Path]) -> Iterator[LocalModel]:
    seen: set[Path] = set()
    left = MOST_FOLDERS
    for place in places:
        for folder, folders, names in os.walk(place):
            depth = len(Path(folder).relative_to(place).parts)
            folders[:] = [name for name in sorted(folders) if name[:1] != "." and depth < DEEPEST]
            left -= 1
            if left < 0:
                return
            for path in (Path(folder) / name for name in sorted(names) if name.endswith(".gguf")):
                if path.exists() and path.resolve() not in seen:
                    seen.add(path.resolve())
                    yield LocalModel(str(path), path.stem, "gguf", path.stat().st_size)
            if "config.json" in names and any(name.endswith(".safetensors") for name in names):
                yield _directory(folder, Path(folder))
