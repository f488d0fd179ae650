"""Choosing a message by keys: editing, writing again, going on from there."""

import asyncio
from pathlib import Path

from textual.widgets import Collapsible, Footer, Label, ProgressBar, Static
from textual.widgets._footer import FooterKey

from app.settings import Settings
from app.widgets.loading_bar import LoadingBar
from app.widgets.message_view import SHOWN_LINES, MessageView
from app.widgets.prompt_input import PromptInput
from dart_core.events import Delta, Prefill
from tests.tui.playing import FAKE, SLOW, chat, chat_screen, say, settled, stored


async def two_turns(pilot) -> list[tuple[str, str, str]]:
    await settled(pilot)
    for text in ("one", "two"):
        await say(pilot, text)
        await settled(pilot)
    return stored(pilot)


async def test_an_earlier_question_is_edited_on_a_branch_of_its_own(tmp_path: Path):
    async with chat(tmp_path) as (pilot, _):
        before = await two_turns(pilot)
        await pilot.press("ctrl+up", "up", "up", "up")
        assert pilot.app.focused.message.content == "one"
        await pilot.press("e")
        prompt = chat_screen(pilot).query_one(PromptInput)
        assert prompt.has_focus
        assert prompt.text == "one"
        await pilot.press("s", "enter")
        await settled(pilot)
        assert [text for _, text, _ in stored(pilot)] == ["ones", before[1][1]]
        await pilot.press("f7")
        await pilot.pause()
        assert stored(pilot) == before


async def test_an_edit_is_given_up_by_escape(tmp_path: Path):
    async with chat(tmp_path) as (pilot, _):
        before = await two_turns(pilot)
        await say(pilot, "/edit")
        prompt = chat_screen(pilot).query_one(PromptInput)
        assert prompt.text == "two"
        assert "Esc" in str(prompt.border_title)
        await pilot.press("escape")
        assert prompt.text == ""
        assert stored(pilot) == before


async def test_a_reply_is_edited_and_continued(tmp_path: Path):
    async with chat(tmp_path, FAKE) as (pilot, _):
        before = await two_turns(pilot)
        await pilot.press("ctrl+up", "e")
        prompt = chat_screen(pilot).query_one(PromptInput)
        assert prompt.whole_text == before[3][1]
        prompt.text = "A **draft tree**"
        await pilot.press("enter")
        await settled(pilot)
        assert stored(pilot) == [*before[:3], ("assistant", "A **draft tree**", "complete")]
        await say(pilot, "/continue")
        await settled(pilot)
        assert stored(pilot) == before


async def test_an_earlier_reply_is_written_again(tmp_path: Path):
    async with chat(tmp_path, FAKE) as (pilot, _):
        before = await two_turns(pilot)
        await pilot.press("ctrl+up", "up", "up", "r")
        await settled(pilot)
        assert stored(pilot) == before[:2]
        assert "2 of 2" in str(chat_screen(pilot).query(".who").last(Static).content)
        assert chat_screen(pilot).query_one(PromptInput).has_focus
        await pilot.press("ctrl+up", "left")
        await pilot.pause()
        assert stored(pilot) == before
        assert pilot.app.focused.message.content == before[1][1]


async def test_a_new_chat_begins_from_a_message(tmp_path: Path):
    async with chat(tmp_path) as (pilot, store):
        before = await two_turns(pilot)
        await pilot.press("ctrl+up", "up", "up", "b")
        await pilot.pause()
        assert stored(pilot) == before[:2]
        assert len(store.chats()) == 2


async def test_keys_leave_the_messages_at_their_end(tmp_path: Path):
    async with chat(tmp_path) as (pilot, _):
        await two_turns(pilot)
        prompt = chat_screen(pilot).query_one(PromptInput)
        await pilot.press("ctrl+up")
        assert isinstance(pilot.app.focused, MessageView)
        await pilot.press("down")
        assert prompt.has_focus
        await pilot.press("ctrl+up", "up", "escape")
        assert prompt.has_focus
        await pilot.press(*["ctrl+up"] * 9)
        assert pilot.app.focused.message.content == "one"


async def test_messages_stay_as_they_are_while_a_reply_is_written(tmp_path: Path):
    async with chat(tmp_path, SLOW) as (pilot, _):
        await settled(pilot)
        await say(pilot, "one")
        await pilot.press("ctrl+up", "up", "e")
        await pilot.pause()
        assert chat_screen(pilot).editing is None
        assert any("being written" in note.message for note in pilot.app._notifications)
        await pilot.press("escape", "escape")
        await settled(pilot)


async def test_long_questions_are_folded(tmp_path: Path):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        text = "\n".join(f"line {number}" for number in range(100))
        await say(pilot, text)
        await settled(pilot)
        view = chat_screen(pilot).query(MessageView).first()
        assert str(view.query_one(".said", Static).content) == "\n".join(text.splitlines()[:SHOWN_LINES])
        assert view.query_one(Collapsible).title == f"{100 - SHOWN_LINES} more lines"
        assert stored(pilot)[0][1] == text


def keys(pilot) -> set[str]:
    return {key.description for key in chat_screen(pilot).query_one(Footer).query(FooterKey)}


async def test_the_footer_shows_the_keys_of_the_moment(tmp_path: Path):
    async with chat(tmp_path, Settings(model="fake:?rate=60")) as (pilot, _):
        await settled(pilot)
        assert "Stop" not in keys(pilot)
        assert "Again" not in keys(pilot)
        await say(pilot, "one")
        await asyncio.sleep(0.1)
        assert "Stop" in keys(pilot)
        await pilot.press("f2", "escape")
        await settled(pilot)
        assert {"Again", "New", "Back", "On"} <= keys(pilot)
        await pilot.press("ctrl+up")
        await pilot.pause()
        assert {"Edit", "Copy"} <= keys(pilot)


async def test_reading_a_long_prompt_shows_how_far_it_is(tmp_path: Path):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        screen = chat_screen(pilot)
        bar = screen.query_one(LoadingBar)
        assert not bar.display
        await screen._loaded(Prefill(done=400, total=1000, reused=100))
        assert bar.display
        assert str(bar.query_one("#stage", Label).content) == "reading 900 tokens"
        assert bar.query_one(ProgressBar).percentage == 0.4
        await screen._loaded(Delta("Well", (1,)))
        assert not bar.display
