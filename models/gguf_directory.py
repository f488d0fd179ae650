"""A GGUF file's config and tokenizer as a directory in the cache: transformers needs 5 s for the tokenizer, once."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kernels.cache import cache_dir
from models.errors import ModelError
from models.progress import Progress, silent

FORMAT = 3  # raise it when what is written changes


def convert(path: Path, progress: Progress = silent, generation: Mapping[str, object] | None = None) -> Path:
    """The directory with config.json and tokenizer files made from `path`, which is read only the first time.

    `generation` becomes its generation_config.json. Raises ModelError where the file is damaged or of a kind that
    is not supported, or the cache cannot be written.
    """
    try:
        return _convert(path.resolve(), progress, generation)
    except OSError as error:
        raise ModelError(
            f"the tokenizer of {path} cannot be kept in the cache: {error}",
            "make room or change permissions there, or set DART_CACHE to another directory",
        ) from error


def _convert(path: Path, progress: Progress, generation: Mapping[str, object] | None) -> Path:
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
    from models.config import in_short
    from models.gguf_config import config_of
    from models.gguf_header import read_header

    config_of(read_header(path)).save_pretrained(directory)
    from transformers import AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(directory)
    except Exception as error:  # transformers raises nearly anything here
        raise ModelError(
            f"transformers cannot read the tokenizer in {path}: {in_short(error)}", "use another file"
        ) from error
