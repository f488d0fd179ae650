"""Driving the chat in tests."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from textual.widgets import Static

from app.app import DartChat
from app.screens.chat import ChatScreen
from app.settings import Settings
from app.store import Store
from app.widgets.message_view import MessageView
from app.widgets.prompt_input import PromptInput
from app.widgets.reply_markdown import ReplyMarkdown
from dart_core.client import EngineClient

FAKE = Settings(model="fake:?rate=0")  # long replies with code and tables, which take 0.3 s to draw
BRIEF = Settings(model=f"fake:{Path(__file__).parents[1] / 'data' / 'brief.json'}?rate=0")
SLOW = Settings(model="fake:?rate=2")  # never at its end before a test stops it


@asynccontextmanager
async def chat(home: Path, settings: Settings = BRIEF, chat_id: int | None = None,
               size: tuple[int, int] = (100, 30)) -> AsyncIterator[tuple[Any, Store]]:  # fmt: skip
    """A running chat with its store."""
    store, client = Store.open(home / "chats.db"), EngineClient(home / "log")
    client.start(settings.engine_options())
    try:
        async with DartChat(settings, store, client, chat_id).run_test(size=size) as pilot:
            yield pilot, store
    finally:
        client.close()
        store.close()


async def say(pilot: Any, text: str) -> None:
    chat_screen(pilot).query_one(PromptInput).text = text
    await pilot.press("enter")
    await pilot.pause()


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.02)


def stored(pilot: Any) -> list[tuple[str, str, str]]:
    return [(m.role, m.content, m.state) for m in chat_screen(pilot).conversation.messages()]


def shown(pilot: Any) -> list[str]:
    views = chat_screen(pilot).query(MessageView)
    return [view.query_one(ReplyMarkdown).source if view.query(ReplyMarkdown) else
            str(view.query_one(".said", Static).content) for view in views]  # fmt: skip


def chat_screen(pilot: Any) -> ChatScreen:
    """The chat below whatever lies on it."""
    app: DartChat = pilot.app
    return next(screen for screen in app.screen_stack if isinstance(screen, ChatScreen))


async def settled(pilot: Any, seconds: float = 20) -> None:
    """Waits until the model is loaded or has failed, and no reply is being written."""
    await pilot.pause(0.05)  # what was typed may not have reached the screen yet
    screen = chat_screen(pilot)
    end = time.monotonic() + seconds
    while screen.writing is not None or screen.client.busy or (screen.model is None and not screen.load_failed):
        if time.monotonic() > end:
            raise AssertionError("the chat did not come to rest")
        await asyncio.sleep(0.02)
    await pilot.pause()


@contextmanager
def held(pilot: Any) -> Iterator[None]:
    """The engine's process stands still: a reply comes only afterwards."""
    pid = chat_screen(pilot).client.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
