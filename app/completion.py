"""What a slash command that is being typed may become."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from app.commands import CHOSEN_AT_OPENING, COMMANDS
from app.settings import TYPES, Settings
from app.themes import SHORT_NAMES

WITH_PATH = ("model", "save", "import")
MOST_PATHS = 50


@dataclass(frozen=True, slots=True)
class Completion:
    """`text` replaces what was typed; `label` and `help` are shown."""

    text: str
    label: str
    help: str = ""


def completions(typed: str, settings: Settings) -> list[Completion]:
    """All that `typed` may become; nothing where it is no command, or complete."""
    if not typed.startswith("/") or "\n" in typed:
        return []
    word, space, argument = typed[1:].partition(" ")
    found = [*(_arguments(word, argument, settings) if space else _commands(word))]
    return [] if [completion.text for completion in found] == [typed] else found


def _commands(word: str) -> Iterable[Completion]:
    for command in COMMANDS:
        if command.name.startswith(word):
            yield Completion(f"/{command.name}{' ' * command.wants_argument}", command.usage, command.help)


def _arguments(command: str, argument: str, settings: Settings) -> Iterable[Completion]:
    if command == "set" and " " not in argument:
        for name in TYPES:
            if name.startswith(argument) and name not in CHOSEN_AT_OPENING:
                yield Completion(f"/set {name} ", name, f"now {getattr(settings, name)!r}")
    elif command == "theme":
        for name in SHORT_NAMES:
            if name.startswith(argument):
                yield Completion(f"/theme {name}", name)
    elif command == "draft":
        for name, what in (("on", "guess ahead, check in one pass"), ("off", "one token a pass; the same text")):
            if name.startswith(argument):
                yield Completion(f"/draft {name}", name, what)
    elif command in WITH_PATH and argument[:1] in ("/", "~", "."):
        for path in paths(argument):
            yield Completion(f"/{command} {path}", path)


def paths(begun: str) -> list[str]:
    """Files and directories whose path begins so, directories with a slash at the end; none that are hidden."""
    folder, _, name = begun.rpartition("/")
    try:
        entries = sorted(Path(f"{folder}/" if folder or begun[:1] == "/" else ".").expanduser().iterdir())
    except OSError:
        return []
    shown = [entry for entry in entries if entry.name.startswith(name) and (name or entry.name[:1] != ".")]
    return [
        f"{folder}/{entry.name}{os.sep * entry.is_dir()}" if "/" in begun else entry.name
        for entry in shown[:MOST_PATHS]
    ]
