"""States of the chat that are worth looking at: for pictures and for the frames that tests compare."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.segment import Segment
from textual.widgets import Input, TextArea

from app.settings import Settings
from tests.tui.playing import FAKE, chat, settled

SIZES = {"80x24": (80, 24), "140x40": (140, 40)}
TREE = replace(FAKE, show_tree=True)
TALK = ("wait", "type Show me", "enter", "wait")

# What each begins with, and the keys that lead there; "type …" types, "wait" waits for the model.
STATES: dict[str, tuple[Settings, Sequence[str]]] = {
    "empty": (FAKE, ["wait"]),
    "reply": (FAKE, TALK),
    "tree": (TREE, [*TALK, "f3", "f3"]),
    "tree-first": (TREE, ["wait"]),
    "message": (FAKE, [*TALK, "ctrl+up", "up"]),
    "editing": (FAKE, [*TALK, "ctrl+up", "up", "e"]),
    "versions": (FAKE, [*TALK, "ctrl+up", "up", "e", "type !", "enter", "wait"]),
    "compared": (FAKE, [*TALK, "type /compare", "enter", "wait"]),
    "commands": (FAKE, ["wait", "type /s"]),
    "arguments": (FAKE, ["wait", "type /set t"]),
    "help": (FAKE, ["wait", "f1"]),
    "chats": (FAKE, [*TALK, "ctrl+n", "ctrl+o"]),
    "chats-none": (FAKE, ["wait", "ctrl+o", "type zebra"]),
    "chats-rename": (FAKE, [*TALK, "ctrl+n", "ctrl+o", "f2"]),
    "palette": (FAKE, ["wait", "ctrl+p"]),
    "failed": (Settings(model="/nowhere"), ["type Hi", "enter", "wait"]),
}


@asynccontextmanager
async def state(home: Path, name: str, size: tuple[int, int], theme: str = "dark") -> AsyncIterator[Any]:
    """The running chat in a state, its cursor still."""
    settings, keys = STATES[name]
    async with chat(home, replace(settings, theme=theme), size=size) as (pilot, _):
        for key in keys:
            if key == "wait":
                await settled(pilot)
            elif key.startswith("type "):
                await pilot.press(*("space" if letter == " " else letter for letter in key[5:]))
            else:
                await pilot.press(key)
        for screen in pilot.app.screen_stack:
            for line in screen.query("TextArea, Input").results(TextArea | Input):
                line.cursor_blink = False
        await pilot.app.workers.wait_for_complete()
        await pilot.pause(0.2)
        yield pilot


def rows(app: Any) -> list[list[Segment]]:
    """The screen's rows, in pieces of one style."""
    update = app.screen._compositor.render_update(full=True)
    return [[segment for strip in row for segment in strip] for row in update.strips]


def frame(app: Any) -> str:
    """The screen as text, its lines without what is blank at their ends; every date is the same."""
    lines = ["".join(segment.text for segment in row).rstrip() for row in rows(app)]
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "2026-01-01 00:00", "\n".join(lines)) + "\n"
