"""The list of earlier chats: search, rename, pin, delete, bring back."""

from pathlib import Path

import pytest
from textual.widgets import Input, OptionList

from app.app import DartChat
from app.screens.chats import ChatsScreen
from app.store import Store
from tests.tui.playing import chat, settled, stored


@pytest.fixture
def three(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "chats.db")
    for text in ("about walruses", "about seals", "about bears"):
        chat_id = store.new_chat("fake")
        store.add_message(chat_id, None, "user", text)
        store._run("UPDATE chats SET updated = id WHERE id = ?", chat_id)
    store.close()


def lines(pilot) -> list[str]:
    options = pilot.app.screen.query_one(OptionList).options
    return [str(option.prompt).partition("  ")[2] or str(option.prompt) for option in options]


@pytest.mark.usefixtures("three")
async def test_the_marked_chat_is_opened(tmp_path: Path):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await pilot.press("ctrl+o")
        assert lines(pilot) == ["about bears", "about seals", "about walruses"]
        await pilot.press("down", "enter")
        await pilot.pause()
        assert stored(pilot)[0][1] == "about seals"


@pytest.mark.usefixtures("three")
async def test_chats_are_renamed(tmp_path: Path):
    async with chat(tmp_path) as (pilot, store):
        await settled(pilot)
        await pilot.press("ctrl+o", *"seals", "f2")
        line = pilot.app.screen.query_one(Input)
        assert line.value == "about seals"
        await pilot.press("escape")
        assert line.value == "seals"
        await pilot.press("f2", *"!", "enter")
        assert store.chats("seals")[0].title == "about seals!"
        assert line.value == "seals"
        assert isinstance(pilot.app.screen, ChatsScreen)


@pytest.mark.usefixtures("three")
async def test_pinned_chats_stay_above_and_marked(tmp_path: Path):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await pilot.press("ctrl+o", "down", "f3")
        assert lines(pilot) == ["* about seals", "about bears", "about walruses"]
        assert pilot.app.screen.query_one(OptionList).highlighted == 0
        await pilot.press("f3")
        assert lines(pilot)[0] == "about bears"


@pytest.mark.usefixtures("three")
async def test_deleted_chats_come_back(tmp_path: Path):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await pilot.press("ctrl+o", "ctrl+d", "ctrl+d")
        assert lines(pilot) == ["about walruses"]
        await pilot.press("ctrl+z", "ctrl+z", "ctrl+z")
        assert lines(pilot) == ["about bears", "about seals", "about walruses"]


async def test_an_empty_list_says_so(tmp_path: Path):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await pilot.press("ctrl+o")
        assert "No chats yet" in lines(pilot)[0]
        await pilot.press("enter", "f2", "f3", "ctrl+d", *"zebra")
        assert "No chat holds" in lines(pilot)[0]
        await pilot.press("escape")
        assert not isinstance(pilot.app.screen, ChatsScreen)


async def test_the_palette_offers_commands(tmp_path: Path):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        app: DartChat = pilot.app
        offered = {command.title: command for command in app.get_system_commands(app.screen)}
        await offered["/rename TITLE"].callback()
        assert app.screen.query_one("PromptInput").text == "/rename "
        await offered["/tree"].callback()
        await pilot.pause()
        assert app.screen.query_one("TreePanel").display
        offered["/theme textual-light"].callback()
        assert app.theme == "textual-light"
