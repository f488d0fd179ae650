"""What a person has typed and what a model has written survive every mishap."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.widgets import Static, TextArea

from app.screens.chat import ChatScreen
from app.settings import Settings
from app.store import Store
from app.widgets.prompt_input import PromptInput
from app.widgets.transcript import MOUNTED
from tests.tui.playing import FAKE, SLOW, chat, chat_screen, held, say, settled, shown, stored, until


def notes(pilot) -> list[str]:
    return [notification.message for notification in pilot.app._notifications]


def typed(pilot) -> str:
    return chat_screen(pilot).query_one(PromptInput).text


def locked(store: Store, home: Path) -> closing[sqlite3.Connection]:
    """Another program holds the database; the store finds out at once."""
    store._db.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(home / "chats.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return closing(other)


async def test_a_reply_that_cannot_be_stored_is_shown_and_stored_later(tmp_path, monkeypatch):
    monkeypatch.setattr("app.writing.RETRY_SECONDS", 0.05)
    async with chat(tmp_path) as (pilot, store):
        await settled(pilot)
        with held(pilot):
            await say(pilot, "hello")
            other = locked(store, tmp_path)
        with other:
            await settled(pilot)
            text = shown(pilot)[-1]
            assert text == "Well said."
            assert stored(pilot)[-1][1] == ""
            assert any("cannot be stored" in note for note in notes(pilot))
            assert "not stored" in str(chat_screen(pilot).query(".note").last(Static).content)
        await until(lambda: stored(pilot)[-1] == ("assistant", text, "complete"))
        await until(lambda: "not stored" not in str(chat_screen(pilot).query(".note").last(Static).content))


async def test_a_question_that_cannot_be_stored_stays_in_the_input(tmp_path):
    async with chat(tmp_path) as (pilot, store):
        await settled(pilot)
        with locked(store, tmp_path):
            await say(pilot, "hello")
            assert typed(pilot) == "hello"
            assert any("locked" in note for note in notes(pilot))
        await pilot.press("enter")
        await settled(pilot)
        assert [role for role, _, _ in stored(pilot)] == ["user", "assistant"]


async def test_a_chat_that_cannot_be_deleted_stays_in_the_list(tmp_path):
    async with chat(tmp_path) as (pilot, store):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        await pilot.press("ctrl+o")
        with locked(store, tmp_path):
            await pilot.press("f8")
            assert any("locked" in note for note in notes(pilot))
        assert [found.title for found in store.chats()] == ["hello"]
        await pilot.press("f8")
        assert store.chats() == []
        with locked(store, tmp_path):
            await pilot.press("ctrl+z")
        await pilot.press("ctrl+z")
        assert [found.title for found in store.chats()] == ["hello"]


async def test_what_could_not_be_stored_is_told_at_the_end(tmp_path):
    async with chat(tmp_path) as (pilot, store):
        await settled(pilot)
        with held(pilot):
            await say(pilot, "hello")
            other = locked(store, tmp_path)
        with other:
            await settled(pilot)
            [(message, error)] = chat_screen(pilot).not_kept()
            assert message.content == shown(pilot)[-1]
            assert "locked" in error.cause
        assert chat_screen(pilot).not_kept() == []


async def test_escape_gives_back_what_waits(tmp_path):
    async with chat(tmp_path, SLOW) as (pilot, _):
        await settled(pilot)
        for text in ("first", "second", "third"):
            await say(pilot, text)
        await pilot.press(*"fourth", "escape")
        await settled(pilot)
        assert typed(pilot) == "second\n\nthird\n\nfourth"
        assert [text for role, text, _ in stored(pilot) if role == "user"] == ["first"]


async def test_a_failed_reply_gives_back_what_waits_and_is_told_again_later(tmp_path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [{"text": "well", "fail": "out of ink"}]}))
    async with chat(tmp_path, Settings(model=f"fake:{script}?rate=0")) as (pilot, _):
        await settled(pilot)
        with held(pilot):
            await say(pilot, "first")
            await say(pilot, "second")
        await settled(pilot)
        assert typed(pilot) == "second"
        assert stored(pilot)[-1][2] == "failed"
        chat_id = chat_screen(pilot).conversation.chat_id
    async with chat(tmp_path, chat_id=chat_id) as (pilot, _):
        note = str(chat_screen(pilot).query(".note").last(Static).content)
        assert "out of ink" in note
        assert "Try: this failure is part of the script" in note


@pytest.mark.parametrize("text", ["/nonsense at all", "/set nonsense 1", "/home: what is it?"])
async def test_a_command_that_fails_can_be_corrected(tmp_path, text):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await say(pilot, text)
        assert typed(pilot) == text
        assert notes(pilot)


@pytest.mark.parametrize("text", ["/home/me/x: what is it?", "// a comment", " /nonsense"])
async def test_a_path_is_a_message(tmp_path, text):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await say(pilot, text)
        await settled(pilot)
        assert stored(pilot)[0][1] == text


def test_no_key_of_the_chat_is_taken_by_the_input():
    own = {key for binding in Binding.make_bindings(TextArea.BINDINGS) for key in binding.key.split(",")}
    for binding in Binding.make_bindings(ChatScreen.BINDINGS):
        assert binding.priority or binding.key not in own, binding.key


async def test_ctrl_y_copies(tmp_path, monkeypatch):
    copied = []
    monkeypatch.setattr("app.clipboard.copy", lambda text, *_: copied.append(text) or "copied")
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        await pilot.press("ctrl+y")
        assert copied == [stored(pilot)[-1][1]]


async def test_long_copies_and_saves_without_a_name_make_their_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("DART_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("app.clipboard.NATIVE", ())
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": ["word " * 16_000]}))
    async with chat(tmp_path, Settings(model=f"fake:{script}?rate=0", context=100_000)) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        exports = tmp_path / "home" / "data" / "exports"
        await say(pilot, "/copy")
        assert (exports / "copied.txt").read_text() == stored(pilot)[-1][1]
        await say(pilot, "/save")
        assert "hello" in (exports / "chat-1.md").read_text()


async def test_the_first_question_is_found_again_after_editing_and_writing_again(tmp_path):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        original = stored(pilot)
        await say(pilot, "/edit goodbye")
        await settled(pilot)
        await pilot.press("ctrl+r")
        await settled(pilot)
        who = [str(line.content) for line in chat_screen(pilot).query(".who").results(Static)]
        assert "2 of 2, F9" in who[0]
        assert "2 of 2, F7 F8" in who[1]
        await pilot.press("f9", "f7")
        await pilot.pause()
        assert stored(pilot) == original
        await pilot.press("f8")
        assert stored(pilot)[0][1] == "goodbye"


async def test_up_moves_in_a_wrapped_line_before_it_recalls(tmp_path):
    async with chat(tmp_path, size=(60, 20)) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        prompt = chat_screen(pilot).query_one(PromptInput)
        prompt.text = long = "word " * 20
        prompt.move_cursor(prompt.document.end)
        await pilot.pause()
        await pilot.press("up")
        assert prompt.text == long
        assert 0 < prompt.cursor_location[1] < len(long)
        await pilot.press("up", "up")
        assert prompt.text == "hello"


async def test_page_keys_scroll_the_conversation(tmp_path):
    async with chat(tmp_path, FAKE, size=(80, 16)) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        transcript = chat_screen(pilot).query_one("Transcript")
        await until(lambda: transcript.max_scroll_y > 0 and transcript.scroll_y == transcript.max_scroll_y)
        await pilot.press("pageup")
        await pilot.pause()
        assert transcript.scroll_y < transcript.max_scroll_y
        await pilot.press("pagedown")
        await pilot.pause()
        assert transcript.scroll_y == transcript.max_scroll_y


async def test_old_messages_leave_the_screen_and_come_back(tmp_path):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        screen = chat_screen(pilot)
        transcript = screen.query_one("Transcript")
        message = screen.conversation.add_user("0", "fake", "")
        for number in range(MOUNTED + 3):
            await transcript.add(message, f"number {number}")
        views = list(screen.query("MessageView"))
        assert len(views) == MOUNTED
        assert views[0].who == "number 3"
        await pilot.pause()
        screen.query_one("#older").press()
        await pilot.pause()
        assert [view.who for view in screen.query("MessageView")][:4] == [f"number {i}" for i in range(4)]
        assert not screen.query("#older")


async def test_a_system_prompt_is_stored_with_its_chat(tmp_path):
    async with chat(tmp_path) as (pilot, store):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        await say(pilot, "/system be brief")
        chat_id = chat_screen(pilot).conversation.chat_id
        assert store.chat(chat_id).system == "be brief"
        await say(pilot, "/system none")
        assert store.chat(chat_id).system == ""


async def test_a_new_chat_begins_with_an_empty_context(tmp_path):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        await say(pilot, "/new")
        assert "context 0/" in str(chat_screen(pilot).query_one("StatusLine").content)


async def test_a_tree_opened_in_the_middle_of_a_reply_says_when_it_comes(tmp_path):
    async with chat(tmp_path, Settings(model="fake:?rate=60")) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await until(lambda: stored(pilot)[-1][1])
        await pilot.press("f2")
        await until(lambda: "from the next reply on" in
                    str(chat_screen(pilot).query_one("#tree-lines", Static).content))  # fmt: skip
        await pilot.press("escape")
        await settled(pilot)


async def test_the_model_says_what_it_runs_on(tmp_path):
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await pilot.pause(0.1)
        assert "a script, not a model" in str(chat_screen(pilot).query_one("#welcome", Static).content)
