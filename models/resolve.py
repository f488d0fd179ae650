"""From what a person typed to the files of a model."""

from dataclasses import dataclass
from pathlib import Path

from models.errors import ModelError
from models.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """`directory` holds config.json and the tokenizer; `weights` is a .gguf file, or that same directory."""

    name: str
    directory: Path
    weights: Path


def resolve_model(spec: str, progress: Progress = silent) -> ModelFiles:
    """The files of `spec`: "default" (fetched at first use), a directory, a .gguf file, or a cached hub id.

    Raises ModelError saying what was looked for, and what to type.
    """
    from models import gguf_directory
    from models.catalog import DEFAULT_GENERATION, DEFAULT_NAME
    from models.download import fetch_default

    if spec == "default":
        weights = fetch_default(progress)
        return ModelFiles(DEFAULT_NAME, gguf_directory.convert(weights, progress, DEFAULT_GENERATION), weights)
    try:
        path = Path(spec).expanduser()
        is_file, is_directory = path.is_file(), path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # no permission, ~nobody, a name too long or with a zero byte
        raise ModelError(f"there is no model at {spec[:200]!r}: {error}", "give the path of a model") from error
    if is_file:
        if path.suffix != ".gguf":
            raise ModelError(f"{path} is neither a directory nor a .gguf file", "give the model's directory")
        return ModelFiles(path.stem, gguf_directory.convert(path, progress), path)
    if is_directory:
        return _in_directory(path, progress)
    if spec.count("/") == 1 and not spec.startswith((".", "/", "~")):
        return _in_hub_cache(spec, progress)
    raise ModelError(
        f"there is no model at {path}",
        "give a directory, a .gguf file or ORG/NAME, or try: dart-chat --model default",
    )


def _in_directory(path: Path, progress: Progress) -> ModelFiles:
    from models import gguf_directory

    if (path / "config.json").exists() and _has_safetensors(path):
        return ModelFiles(path.resolve().name, path, path)
    gguf = sorted(path.glob("*.gguf"))
    if len(gguf) == 1:
        return ModelFiles(gguf[0].stem, gguf_directory.convert(gguf[0], progress), gguf[0])
    if gguf:
        raise ModelError(f"{path} holds {len(gguf)} .gguf files", f"name one: --model {gguf[0]}")
    lacking = "config.json" if not (path / "config.json").exists() else "model.safetensors"
    hint = "give a directory with config.json and *.safetensors"
    if any(path.glob("*.bin")):
        hint = "its *.bin weights are not read: save the model with transformers' save_pretrained, or use a GGUF file"
    raise ModelError(f"{path} is not a model: it lacks {lacking}", hint)


def _in_hub_cache(repo: str, progress: Progress) -> ModelFiles:
    files = _in_directory(hub_directory(repo), progress)
    return ModelFiles(repo, files.directory, files.weights)


def hub_directory(repo: str) -> Path:
    """Where `repo` ("ORG/NAME") lies in this machine's Hugging Face cache. Raises ModelError where it does not."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, HfHubHTTPError, OSError) as error:
        raise ModelError(f"{repo} is not in the Hugging Face cache of this machine", f"hf download {repo}") from error


def _has_safetensors(path: Path) -> bool:
    return (path / "model.safetensors").exists() or (path / "model.safetensors.index.json").exists()
