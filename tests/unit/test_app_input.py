"""What may be typed: completions of commands, long pastes and dropped files."""

from pathlib import Path

import pytest

from app.commands import COMMANDS
from app.completion import completions, paths
from app.pastes import Pastes, dropped_file
from app.screens.chat_commands import RUN
from app.settings import Settings


def offered(typed: str) -> list[str]:
    return [completion.text for completion in completions(typed, Settings())]


def test_every_command_can_be_done():
    assert {command.name for command in COMMANDS} == set(RUN)


def test_commands_are_completed():
    assert len(offered("/")) == len(COMMANDS)
    assert offered("/re") == ["/regen", "/rename "]
    assert offered("/regen") == []
    assert offered("what /re") == []
    assert offered("/re\nmore") == []
    assert offered("/nothing") == []


def test_arguments_are_completed():
    assert offered("/set top_") == ["/set top_k ", "/set top_p "]
    assert "/set model " not in offered("/set ")
    assert offered("/draft o") == ["/draft on", "/draft off"]
    assert offered("/draft off") == []
    assert offered("/theme l") == ["/theme light"]


def test_paths_are_completed(tmp_path: Path):
    for name in ("chat.md", "chats.md", ".chat.md"):
        (tmp_path / name).touch()
    (tmp_path / "chat").mkdir()
    assert paths(f"{tmp_path}/ch") == [f"{tmp_path}/{name}" for name in ("chat/", "chat.md", "chats.md")]
    assert f"{tmp_path}/.chat.md" not in paths(f"{tmp_path}/")
    assert paths(f"{tmp_path}/nowhere/") == []
    assert offered(f"/import {tmp_path}/chats") == [f"/import {tmp_path}/chats.md"]


def test_long_pastes_are_folded_and_sent_whole():
    pastes = Pastes()
    long = "line\n" * 120
    assert pastes.fold("short\ntext") == "short\ntext"
    folded = pastes.fold(long)
    assert folded == "[pasted #1, 120 lines]"
    assert pastes.fold("x" * 5000) == "[pasted #2, 1 line]"
    assert pastes.unfold(f"see {folded} and [pasted #9, 1 line]") == f"see {long} and [pasted #9, 1 line]"


def test_a_dropped_file_becomes_its_text(tmp_path: Path):
    path = tmp_path / "my notes.md"
    path.write_text("# Notes\n\n```\ncode\n```\n")
    pastes = Pastes()
    for written in (str(path).replace(" ", "\\ "), f"'{path}'", path.as_uri()):
        assert dropped_file(written) == path
    mark = pastes.attach(path.as_uri())
    assert mark == "[file #1, my notes.md, 5 lines]"
    assert pastes.unfold(mark) == "my notes.md:\n\n````md\n# Notes\n\n```\ncode\n```\n````\n"


@pytest.mark.parametrize(
    "text", ["", "notes.md", "/nowhere/notes.md", "it's /etc/passwd", "two /etc/hosts words", "/tmp"]
)
def test_what_is_no_path_of_a_text_file_stays_text(text: str):
    assert dropped_file(text) is None


def test_binary_files_are_not_attached(tmp_path: Path):
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff\xfe")
    assert dropped_file(str(tmp_path / "image.png")) is None
