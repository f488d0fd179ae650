"""Messages written in an editor."""

from pathlib import Path

import pytest

from app.editor import edit
from models.errors import UsageError


def script(path: Path, line: str) -> str:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


def test_what_the_editor_saves_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("VISUAL", raising=False)
    editor = script(tmp_path / "my editor", 'echo "$1: more" >> "$2"')
    monkeypatch.setenv("EDITOR", f"'{editor}' --wait")
    assert edit("begun\n") == "begun\n--wait: more"


@pytest.mark.parametrize(
    ("editor", "cause"), [("false", "exit code 1"), ("/nowhere/editor", "cannot use"), ("'", "cannot use")]
)
def test_an_editor_that_fails_is_named(editor: str, cause: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VISUAL", editor)
    with pytest.raises(UsageError, match=cause):
        edit("text")


def test_no_editor_at_all(monkeypatch: pytest.MonkeyPatch):
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="no editor"):
        edit("text")
