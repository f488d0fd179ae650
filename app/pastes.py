"""Long pastes and dropped files: a short mark in the input, the whole text in the message."""

import re
import shlex
from pathlib import Path
from urllib.parse import unquote, urlparse

FOLD_LINES = 8  # the input shows at most so many
FOLD_CHARACTERS = 1000
MOST_BYTES = 500_000  # of a file: more than any context holds

MARK = re.compile(r"\[(?:pasted|file) #(\d+)[^\]\n]*\]")


class Pastes:
    """Folds texts into marks such as `[pasted #1, 120 lines]`, and marks back into texts."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def fold(self, text: str) -> str:
        """A mark where the text is long, else the text."""
        if text.count("\n") < FOLD_LINES and len(text) < FOLD_CHARACTERS:
            return text
        return self._mark("pasted", text, text)

    def attach(self, text: str) -> str | None:
        """A mark for the file whose path `text` is, or None where it is none."""
        path = dropped_file(text)
        if path is None:
            return None
        content = path.read_text(encoding="utf-8")
        ticks = "`" * max(3, *(len(run) + 1 for run in re.findall("`{3,}", content) or [""]))
        whole = f"{path.name}:\n\n{ticks}{path.suffix[1:]}\n{content.rstrip()}\n{ticks}\n"
        return self._mark("file", whole, content, f", {path.name}")

    def unfold(self, text: str) -> str:
        """The text with what its marks stand for; a mark that nobody made stays."""

        def whole(mark: re.Match[str]) -> str:
            number = int(mark[1])
            return self._texts[number - 1] if 1 <= number <= len(self._texts) else mark[0]

        return MARK.sub(whole, text)

    def _mark(self, kind: str, whole: str, counted: str, name: str = "") -> str:
        self._texts.append(whole)
        lines = len(counted.splitlines())
        name = name.replace("]", ")").replace("\n", " ")
        return f"[{kind} #{len(self._texts)}{name}, {lines} line{'s' * (lines != 1)}]"


def dropped_file(text: str) -> Path | None:
    """The text file whose path this is, as a terminal writes it when a file is dropped on it, or None."""
    text = text.strip()
    if "\n" in text or not text or len(text) > 4096:
        return None
    if text.startswith("file://"):
        text = unquote(urlparse(text).path)
    else:
        try:
            words = shlex.split(text)
        except ValueError:
            return None
        if len(words) != 1:
            return None
        text = words[0]
    if text[:1] not in ("/", "~"):
        return None
    try:
        path = Path(text).expanduser()
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        path.read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError):
        return None
    return path
