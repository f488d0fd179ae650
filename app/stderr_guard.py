"""Keeps the screen whole: Textual draws on stderr, and so does every native library that has something to say."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def stderr_to_log(log: Path) -> Iterator[None]:
    """Gives Textual a duplicate of the terminal's stderr and points file descriptor 2 at `log` meanwhile."""
    screen = os.dup(2)
    log_file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    python_stderr = sys.__stderr__
    os.dup2(log_file, 2)
    os.close(log_file)
    with os.fdopen(screen, "w", encoding="utf-8", errors="replace", closefd=False) as drawing:
        sys.__stderr__ = drawing  # type: ignore[misc]
        try:
            yield
        finally:
            drawing.flush()
            sys.__stderr__ = python_stderr  # type: ignore[misc]
            os.dup2(screen, 2)
            os.close(screen)
