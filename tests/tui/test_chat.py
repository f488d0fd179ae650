"""The chat, played by keys over the scripted engine."""

import asyncio
import random
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.events import Key
from textual.widgets import Button, Static
from textual.widgets._markdown import MarkdownBlock

from app.app import DartChat
from app.settings import Settings
from app.store import Store
from app.widgets.code_fence import CodeFence
from app.widgets.completion_menu import CompletionMenu
from app.widgets.prompt_input import PromptInput
from app.widgets.reply_markdown import ReplyMarkdown
from app.widgets.status_line import StatusLine
from app.widgets.tree_panel import TreePanel
from dart_core.client import EngineClient
from models.errors import UsageError
from tests.tui.playing import FAKE, SLOW, chat, chat_screen, say, settled, shown, stored, until


async def test_a_reply_is_shown_and_kept(tmp_path: Path) -> None:
    async with chat(tmp_path, FAKE) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        messages = stored(pilot)
        assert [role for role, _, _ in messages] == ["user", "assistant"]
        assert messages[1][2] == "complete"
        assert "List<String>" in messages[1][1], "HTML-like text must survive"
        assert shown(pilot) == [messages[0][1], messages[1][1]]
        status = str(chat_screen(pilot).query_one(StatusLine).content)
        for part in ("tok/s", "τ", "context", "draft on"):
            assert part in status


async def test_typing_before_the_model_is_there_is_answered(tmp_path: Path) -> None:
    async with chat(tmp_path, Settings(model="fake:?rate=0&load=0.5")) as (pilot, _):
        await say(pilot, "early")
        assert chat_screen(pilot).model is None
        assert stored(pilot)[0] == ("user", "early", "complete")
        await settled(pilot)
        assert stored(pilot)[1][2] == "complete"


async def test_escape_stops_and_keeps_the_text(tmp_path: Path) -> None:
    async with chat(tmp_path, Settings(model="fake:?rate=60")) as (pilot, store):
        await settled(pilot)
        await say(pilot, "hello")
        while not stored(pilot)[-1][1]:
            await asyncio.sleep(0.02)
        await pilot.press("escape")
        await settled(pilot)
        role, text, state = stored(pilot)[-1]
        assert (role, state) == ("assistant", "stopped")
        assert text
        assert "stopped" in str(chat_screen(pilot).query(".note").last(Static).content)
        chat_id = chat_screen(pilot).conversation.chat_id
        assert chat_id is not None
        assert store.path(chat_id)[-1].content == text


async def test_what_is_on_screen_is_on_disk(tmp_path: Path) -> None:
    async with chat(tmp_path, Settings(model="fake:?rate=200")) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        looks = 0
        while chat_screen(pilot).writing is not None and looks < 30:
            visible = shown(pilot)[-1]
            assert stored(pilot)[-1][1].startswith(visible)
            looks += bool(visible)
            await asyncio.sleep(0.02)
        assert looks > 3


async def test_a_message_typed_meanwhile_waits_its_turn(tmp_path: Path) -> None:
    async with chat(tmp_path, SLOW) as (pilot, _):
        await settled(pilot)
        await say(pilot, "first")
        await say(pilot, "second")
        screen = chat_screen(pilot)
        assert "1 waiting" in str(screen.query_one(StatusLine).content)
        assert [text for role, text, _ in stored(pilot) if role == "user"] == ["first"]
        screen.client.stop()
        await until(lambda: len(stored(pilot)) == 4 and screen.client.busy)
        screen.client.stop()
        await settled(pilot)
        assert [text for role, text, _ in stored(pilot) if role == "user"] == ["first", "second"]


async def test_regenerating_and_editing_make_siblings(tmp_path: Path) -> None:
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        first = stored(pilot)
        await pilot.press("ctrl+r")
        await settled(pilot)
        second = stored(pilot)
        assert second[0] == first[0]
        assert "2 of 2" in str(chat_screen(pilot).query(".who").last(Static).content)
        await pilot.press("f7")
        await pilot.pause()
        assert "1 of 2" in str(chat_screen(pilot).query(".who").last(Static).content)
        assert stored(pilot) == first
        await say(pilot, "/edit goodbye")
        await settled(pilot)
        assert stored(pilot)[0][1] == "goodbye"
        await pilot.press("f7")
        await pilot.pause()
        assert stored(pilot)[0][1] == "hello"


async def test_continuing_goes_on_from_the_text_there_is(tmp_path: Path) -> None:
    async with chat(tmp_path, Settings(model="fake:?rate=0", max_new_tokens=60)) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        begun = stored(pilot)[-1][1]
        await say(pilot, "/continue")
        await settled(pilot)
        assert stored(pilot)[-1][1].startswith(begun)
        assert len(stored(pilot)[-1][1]) > len(begun)


async def test_comparing_writes_the_reply_without_drafting_beside_it(tmp_path: Path) -> None:
    async with chat(tmp_path, FAKE) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        first = stored(pilot)
        await say(pilot, "/compare")
        await settled(pilot)
        assert stored(pilot) == first
        screen = chat_screen(pilot)
        assert "2 of 2" in str(screen.query(".who").last(Static).content)
        on, off, equal = str(screen.query(".note").last(Static).content).splitlines()
        assert "τ 2." in on
        assert "τ 1.00" in off
        assert equal == "the texts are equal"
        assert screen.settings.draft, "the setting stays"


async def test_the_tree_shows_what_was_accepted(tmp_path: Path) -> None:
    async with chat(tmp_path, Settings(model="fake:?rate=0", show_tree=True), size=(140, 40)) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await settled(pilot)
        panel = chat_screen(pilot).query_one(TreePanel)
        head = str(panel.query_one("#tree-head", Static).content)
        assert head.startswith("Step ")
        back = 0
        while " 1 token " in str(panel.query_one("#tree-head", Static).content):
            await pilot.press("f3")
            back += 1
            assert "held" in str(panel.query_one("#tree-head", Static).content)
        lines = str(panel.query_one("#tree-lines", Static).content).split("\n\n")[0].splitlines()
        foot = str(panel.query_one("#tree-foot", Static).content)
        assert re.search(r"^1 █+░* +\d+% of \d+$", foot, re.MULTILINE)
        assert "hear the second" in foot
        await pilot.resize_terminal(100, 30)
        await pilot.pause()
        assert not panel.query_one("#tree-foot").display
        await pilot.press("f3", "f4")
        assert "accepted by depth: " in str(panel.query_one("#tree-lines", Static).content)
        assert lines[0].startswith('✓ "'), "the root is accepted"
        assert any(re.match(r'[ │├└─]+✓ ".*" 0\.\d\d (head|ngram)$', line) for line in lines)
        assert any(re.match(r'[ │├└─]+✗ ".*" 0\.\d\d (head|ngram)$', line) for line in lines)
        assert sum(bool(re.match(r'[ │├└─]+→ ".*"$', line)) for line in lines) == 1
        assert back
        await pilot.press(*["f4"] * (back + 1))
        assert str(panel.query_one("#tree-head", Static).content) == head
        await pilot.press("f2")
        assert not panel.display


async def test_a_model_that_cannot_be_opened_is_said_in_words(tmp_path: Path) -> None:
    async with chat(tmp_path, Settings(model=str(tmp_path / "nothing"))) as (pilot, _):
        await say(pilot, "hello")
        await settled(pilot)
        note = str(chat_screen(pilot).query(".note").last(Static).content)
        assert "no model at" in note
        assert "Try:" in note
        assert stored(pilot)[-1][2] == "failed"


async def test_commands_and_their_mistakes(tmp_path: Path) -> None:
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await say(pilot, "/set temperature 0.5")
        await say(pilot, "/draft off")
        await say(pilot, "/set nonsense 1")
        await say(pilot, "/nonsense")
        screen = chat_screen(pilot)
        assert screen.settings.temperature == 0.5
        assert "off: switched off" in str(screen.query_one(StatusLine).content)
        assert screen.conversation.chat_id is None
        await say(pilot, "hello")
        await settled(pilot)
        await say(pilot, f"/save {tmp_path / 'chat.md'}")
        assert "hello" in (tmp_path / "chat.md").read_text()
        await say(pilot, "/new")
        assert stored(pilot) == []


async def test_an_earlier_chat_opens_from_the_list(tmp_path: Path) -> None:
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        await say(pilot, "about walruses")
        await settled(pilot)
        first = stored(pilot)
        await pilot.press("ctrl+n", "ctrl+o")
        await pilot.press(*"walrus")
        await pilot.press("enter")
        await pilot.pause()
        assert stored(pilot) == first


async def test_ctrl_c_stops_first_and_leaves_at_the_second_press(tmp_path: Path) -> None:
    async with chat(tmp_path, Settings(model="fake:?rate=60")) as (pilot, _):
        await settled(pilot)
        await say(pilot, "hello")
        await pilot.press("ctrl+c")
        await settled(pilot)
        assert stored(pilot)[-1][2] == "stopped"
        await pilot.press("ctrl+c")
        assert pilot.app.is_running
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert not pilot.app.is_running


async def test_keys_that_come_fast_choose_what_was_typed(tmp_path: Path) -> None:
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        prompt = chat_screen(pilot).query_one(PromptInput)
        await pilot.press("/")
        await pilot.pause()
        for key in (*"tree", "enter"):
            prompt.post_message(Key(key, key if len(key) == 1 else None))
        await pilot.pause()
        assert chat_screen(pilot).query_one(TreePanel).display


async def test_a_command_is_completed(tmp_path: Path) -> None:
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        prompt = chat_screen(pilot).query_one(PromptInput)
        menu = chat_screen(pilot).query_one(CompletionMenu)
        await pilot.press(*"/re")
        assert menu.display
        await pilot.press("down", "tab")
        assert prompt.text == "/rename "
        assert not menu.display
        prompt.text = ""
        await pilot.press(*"/dr", "enter")
        assert prompt.text == "/draft "
        await pilot.press("down", "enter")
        await pilot.pause()
        assert prompt.text == ""
        assert not chat_screen(pilot).settings.draft
        await pilot.press(*"/t", "escape")
        assert not menu.display
        assert prompt.text == "/t"


async def test_up_recalls_what_was_sent(tmp_path: Path) -> None:
    async with chat(tmp_path) as (pilot, _):
        await settled(pilot)
        for text in ("one", "two"):
            await say(pilot, text)
            await settled(pilot)
        prompt = chat_screen(pilot).query_one(PromptInput)
        await pilot.press(*"new")
        await pilot.press("up", "up")
        assert prompt.text == "one"
        await pilot.press("down", "down")
        assert prompt.text == "new"


async def test_the_editor_gets_the_whole_text_and_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr("app.widgets.prompt_input.edit", lambda text: given.append(text) or "from the editor")
    async with chat(tmp_path) as (pilot, _):
        monkeypatch.setattr(pilot.app, "suspend", nullcontext)
        await settled(pilot)
        prompt = chat_screen(pilot).query_one(PromptInput)
        prompt.write("line\n" * 100)
        assert prompt.text.startswith("[pasted")
        await pilot.press("ctrl+g")
        assert given == ["line\n" * 100]
        assert prompt.text == "from the editor"


async def test_long_chats_open_with_their_end_first(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "chats.db")
    chat_id, leaf = store.new_chat("fake"), None
    for i in range(30):
        leaf = store.add_message(chat_id, leaf, "user", f"question {i}")
        leaf = store.add_message(chat_id, leaf, "assistant", f"answer {i}")
    store.close()
    async with chat(tmp_path, chat_id=chat_id) as (pilot, _):
        await settled(pilot)
        assert len(shown(pilot)) == 20
        assert shown(pilot)[-1] == "answer 29"
        chat_screen(pilot).query_one("#older", Button).press()
        await pilot.pause()
        assert shown(pilot)[0] == "question 10"


def test_an_unknown_theme_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "chats.db")
    with pytest.raises(UsageError, match="no theme"):
        DartChat(Settings(theme="plaid"), store, EngineClient(tmp_path / "log"))
    store.close()


SAMPLE = (
    "# Title\n\nfirst line\nsecond line\n\nSome *words* with `code`, List<String>, a <think> tag and 日本語 🎉.\n\n"
    "```python\nfor i in range(3):\n    print(i)\n```\n\n| a | b |\n| - | - |\n| 1 | 2 |\n\n1. one\n2. two\n\n> quote\n"
)


class MarkdownApp(App[None]):
    """A reply alone on a screen."""

    def compose(self) -> ComposeResult:
        yield ReplyMarkdown(streaming=True)


def block_texts(markdown: ReplyMarkdown) -> list[tuple[str, str]]:
    return [
        (type(block).__name__, block.code if isinstance(block, CodeFence) else str(block._content))
        for block in markdown.query(MarkdownBlock)
    ]


@pytest.mark.parametrize("seed", range(6))
async def test_streamed_text_is_one_shot_text(seed: int) -> None:
    choose = random.Random(seed)
    app = MarkdownApp()
    async with app.run_test(size=(80, 60)) as pilot:
        streamed = app.query_one(ReplyMarkdown)
        at = 0
        while at < len(SAMPLE):
            step = choose.randint(1, 25)
            await streamed.write(SAMPLE[at : at + step])
            at += step
        await streamed.finish(SAMPLE)
        whole = ReplyMarkdown(SAMPLE)
        await app.mount(whole)
        await pilot.pause()
        assert streamed.source == SAMPLE
        assert block_texts(streamed) == block_texts(whole)
        text = " ".join(text for _, text in block_texts(streamed))
        assert "List<String>" in text
        assert "<think>" in text
        assert "first line\nsecond line" in text
