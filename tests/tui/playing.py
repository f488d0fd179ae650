"""Driving the chat in tests."""

import asyncio
import time
from typing import Any

from app.app import DartChat
from app.screens.chat import ChatScreen


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
