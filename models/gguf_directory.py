"""A GGUF file's config and tokenizer as a directory in the cache: transformers needs 9 s for them, once."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from kernels.cache import cache_dir
from models.errors import ModelError

Progress = Callable[[str, float | None], None]
FORMAT = 2  # raise it when what is written changes


def convert(
    path: Path, progress: Progress = lambda stage, fraction: None, generation: Mapping[str, object] | None = None
) -> Path:
    """The directory with config.json and tokenizer files made from `path`, which is read only the first time.

    `generation` becomes its generation_config.json.

    Raises ModelError where the file is damaged or of a kind transformers does not read.
    """
    path = path.resolve()
    stat = path.stat()
    key = hashlib.sha256(f"{FORMAT} {path} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    directory = cache_dir("gguf") / f"{path.stem}-{key}"
    if directory.exists():
        return directory
    progress("reading the GGUF tokenizer, once", None)
    # Written beside its place and moved there whole, so that a killed start leaves no half directory.
    work = Path(tempfile.mkdtemp(dir=directory.parent))
    try:
        _write(path, work)
        if generation is not None:
            (work / "generation_config.json").write_text(json.dumps(generation))
        os.replace(work, directory)
    except OSError:
        if not directory.exists():  # another process may have been first
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return directory


def _write(path: Path, directory: Path) -> None:
    import models.config  # noqa: F401  keeps transformers off the network before it is imported
    from models.gguf_file import GGUFSource

    GGUFSource(path)  # says so where the file is damaged
    from transformers import AutoConfig, AutoTokenizer

    try:
        AutoConfig.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(directory)
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(directory)
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        NotImplementedError,
        ImportError,
    ) as error:
        raise ModelError(
            f"transformers cannot read the config and tokenizer of {path}: {error}",
            "supported are GGUF files of Llama, Mistral, Qwen2 and Qwen3 models",
        ) from error
