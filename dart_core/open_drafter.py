"""Which drafter goes with a model: what was asked for, else what the catalog knows, else n-grams alone."""

from pathlib import Path

from dart_core.drafter import Drafter, NgramDrafter, PlainDrafter
from dart_core.head_drafter import new_head_drafter
from dart_core.head_file import load_head
from dart_core.ngram.model import load_ngram
from dart_core.options import EngineOptions
from kernels.learning_table import new_table
from models.catalog import published_head
from models.decoder import Target
from models.errors import ModelError, UsageError
from models.resolve import ModelFiles, hub_directory

NGRAM_FILE = "ngram.safetensors"


def open_drafter(
    options: EngineOptions, files: ModelFiles, target: Target, eos: frozenset[int], context: int
) -> tuple[Drafter, tuple[str, ...]]:
    """The drafter, and what a person should know about the choice.

    Raises ModelError where a head or n-gram model that was asked for cannot be found, read or used.
    """
    if options.drafter == "off":
        return PlainDrafter(), ()
    head_path, note = _head_path(options, files)
    if head_path is None:
        if options.ngram is not None:
            raise UsageError("an n-gram model scores what a draft head proposes, and there is no head", "add --head")
        return NgramDrafter(new_table()), note
    # 4 bits: 0.6 ms a draft at SmolLM2's sizes on two cores, where fp32 takes 4.
    fits = target.config.hidden_size % 32 == 0 and target.config.intermediate_size % 32 == 0
    head = load_head(head_path, target, four_bit=options.weights == "4bit" and fits)
    ngram = load_ngram(_ngram_file(options.ngram), target.config.vocab_size) if options.ngram else None
    return new_head_drafter(head, target.embed, context, eos, ngram), note


def _head_path(options: EngineOptions, files: ModelFiles) -> tuple[Path | None, tuple[str, ...]]:
    if options.head == "none":
        return None, ()
    if options.head is not None:
        path = Path(options.head).expanduser()
        return (path if path.is_dir() else hub_directory(options.head)), ()
    known = published_head(files.name)
    if known is None:
        return None, ("no draft head is known for this model; n-grams of the conversation draft",)
    try:
        return hub_directory(known.head), ()
    except ModelError:
        return None, (f"a draft head for this model would make it faster: hf download {known.head}",)


def _ngram_file(spec: str) -> Path:
    path = Path(spec).expanduser()
    if path.is_file():
        return path
    directory = path if path.is_dir() else hub_directory(spec)
    file = directory / NGRAM_FILE
    if not file.exists():
        raise ModelError(
            f"{directory} holds no {NGRAM_FILE}",
            "make one: python -m dart_core.ngram import FILE.trie --out ngram.safetensors",
        )
    return file
