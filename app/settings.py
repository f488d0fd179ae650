"""Settings and where they come from: a flag before the environment before the file before the default.

None leaves a choice to the model's generation_config. In the file a setting stands by its name
(`tree_size = 8`), in the environment as `DART_TREE_SIZE`, on the command line as `--tree-size`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dart_core.options import EngineOptions, GenerateOptions
from models.errors import UsageError

TRUE, FALSE = ("on", "true", "yes", "1"), ("off", "false", "no", "0")
KINDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    tuple: "a list of texts",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a person can set. The meaning of each is in `dart_core.options`; `theme` "" is the default one."""

    model: str = "default"
    system: str = ""
    theme: str = ""
    show_tree: bool = False
    draft: bool = True
    tree_size: int = 16
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int = 0
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    context: int | None = None
    threads: int | None = None
    head: str | None = None
    ngram: str | None = None

    def __post_init__(self) -> None:
        self.engine_options()
        self.generate_options()
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be 1 or more, not {self.threads}")

    def engine_options(self) -> EngineOptions:
        """How to open the model."""
        return EngineOptions(
            model=self.model, context=self.context, threads=self.threads, head=self.head, ngram=self.ngram
        )

    def generate_options(self) -> GenerateOptions:
        """How to write a reply."""
        return GenerateOptions(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            stop=self.stop,
            draft=self.draft,
            tree_size=self.tree_size,
            show_tree=self.show_tree,
        )


TYPES: dict[str, type] = {
    "model": str,
    "system": str,
    "theme": str,
    "show_tree": bool,
    "draft": bool,
    "tree_size": int,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "seed": int,
    "max_new_tokens": int,
    "stop": tuple,
    "context": int,
    "threads": int,
    "head": str,
    "ngram": str,
}


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], path: Path) -> Settings:
    """Settings from all sources. `flags` holds what was typed, by name; None counts as not typed.

    Raises UsageError, naming setting and source, for an unknown name, a wrong type or a value out of range.
    """
    values: dict[str, Any] = {}
    for name, value in read_file(path).items():
        values[name] = checked(name, value, str(path))
    for name, kind in TYPES.items():
        variable = f"DART_{name.upper()}"
        if variable in environ:
            values[name] = checked(name, from_text(environ[variable], kind, variable), variable)
    for name, value in flags.items():
        if value is not None:
            values[name] = checked(name, value, f"--{name.replace('_', '-')}")
    return Settings(**values)


def read_file(path: Path) -> dict[str, Any]:
    """The file's settings; none where there is no file. Raises UsageError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the settings in {path}: {error}", f"mend or remove {path}") from error


def checked(name: str, value: Any, source: str) -> Any:
    """The value in its setting's type, alone in range. Raises UsageError."""
    if name not in TYPES:
        raise UsageError(f"{source}: unknown setting {name!r}", f"known are {', '.join(TYPES)}")
    kind = TYPES[name]
    if kind is float and type(value) is int:
        value = float(value)
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    right = type(value) is kind
    if right and kind is tuple:
        right = all(isinstance(text, str) for text in value)
    if not right:
        raise UsageError(f"{source}: {name} must be {KINDS[kind]}, not {value!r}", f"correct {name}")
    try:
        Settings(**{name: value})
    except ValueError as error:
        raise UsageError(f"{source}: {error}", f"correct {name}") from error
    return value


def from_text(text: str, kind: type, variable: str) -> object:
    """An environment variable's text in a setting's type; a list is one text. Raises UsageError."""
    if kind is tuple:
        return (text,)
    if kind is bool:
        if text.lower() not in TRUE + FALSE:
            raise UsageError(f"{variable} must be on or off, not {text!r}", f"set {variable}=on")
        return text.lower() in TRUE
    try:
        return kind(text)
    except ValueError as error:
        raise UsageError(f"{variable} must be {KINDS[kind]}, not {text!r}", f"unset {variable}") from error
