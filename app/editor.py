"""Writing a message in the editor that a person has chosen: `$VISUAL`, `$EDITOR`, else what is there."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from models.errors import UsageError

USUAL = ("nano", "vim", "vi")


def edit(text: str) -> str:
    """Opens the text in the editor, which needs the terminal to itself, and returns what was saved.

    Raises UsageError where there is no editor or it fails; the text is unchanged then.
    """
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR") or next(filter(shutil.which, USUAL), "")
    if not chosen:
        raise UsageError("no editor is set", "export EDITOR=nano, then start dart-chat again")
    with tempfile.TemporaryDirectory(prefix="dart-chat-") as folder:
        file = Path(folder) / "message.md"
        file.write_text(text, encoding="utf-8")
        try:
            # The process's own stderr leads to the log while there is a screen.
            code = subprocess.run([*shlex.split(chosen), str(file)], stderr=sys.__stderr__, check=False).returncode
            if code:
                raise UsageError(f"{chosen} has failed with exit code {code}", "export EDITOR=nano")
            return file.read_text(encoding="utf-8").rstrip("\n")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot use the editor {chosen}: {error}", "export EDITOR=nano") from error
