"""Choosing another model in the middle of a chat."""

from pathlib import Path

import pytest
from textual.widgets import Input, OptionList

from app.model_list import LocalModel
from tests.tui.playing import BRIEF, chat, chat_screen, say, settled, stored, until

OTHER = "fake:?rate=0"


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [LocalModel("default", "SmolLM2", "here", 98_000_000), LocalModel(OTHER, "a script", "gguf", 10**15)]
    monkeypatch.setattr("app.screens.models.local_models", lambda: found)


def lines(pilot) -> list[str]:
    return [str(option.prompt) for option in pilot.app.screen.query_one(OptionList).options]


async def test_another_model_goes_on_with_the_chat(tmp_path: Path):
    async with chat(tmp_path, BRIEF) as (pilot, _):
        await settled(pilot)
        await say(pilot, "one")
        await settled(pilot)
        await say(pilot, "/model")
        await until(lambda: len(lines(pilot)) == 2)
        assert lines(pilot)[0] == "SmolLM2  here · 0.1 GB"
        assert "does not fit" in lines(pilot)[1]
        await pilot.press("down", "enter")
        await until(lambda: chat_screen(pilot).settings.model == OTHER)
        await settled(pilot)
        assert chat_screen(pilot).model_name == "fake demo"
        await say(pilot, "two")
        await settled(pilot)
        assert [role for role, _, _ in stored(pilot)] == ["user", "assistant"] * 2


async def test_what_is_typed_is_taken_where_nothing_is_listed(tmp_path: Path):
    async with chat(tmp_path, BRIEF) as (pilot, _):
        await settled(pilot)
        await say(pilot, "/model")
        await until(lambda: len(lines(pilot)) == 2)
        await pilot.press(*"smol")
        pilot.app.screen.query_one(Input).value = "/nowhere"
        await until(lambda: not lines(pilot))
        await pilot.press("enter")
        await until(lambda: chat_screen(pilot).settings.model == "/nowhere")
        await settled(pilot)
        assert chat_screen(pilot).load_failed
