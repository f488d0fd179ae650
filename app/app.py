"""The chat as a Textual application: themes, and the one screen everything happens on."""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from app.commands import COMMANDS
from app.screens.chat import ChatScreen
from app.settings import Settings
from app.stderr_guard import stderr_to_log
from app.store import Store
from app.themes import DEFAULT_THEME, HIGH_CONTRAST, theme_name
from dart_core.client import EngineClient
from models.errors import UsageError


class DartChat(App[None]):
    """Run it with `start`, which keeps the screen clean of native output."""

    TITLE = "dart-chat"
    CSS_PATH: ClassVar[str] = "chat.tcss"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "quit", "Leave", show=False, priority=True)]

    def __init__(self, settings: Settings, store: Store, client: EngineClient, chat_id: int | None = None) -> None:
        """`chat_id` None begins a new chat. Raises UsageError for a theme that does not exist."""
        super().__init__()
        self.register_theme(HIGH_CONTRAST)
        self.choose_theme(settings.theme or DEFAULT_THEME)
        self._chat = ChatScreen(settings, store, client, chat_id)

    def on_mount(self) -> None:
        """Opens the chat."""
        self.push_screen(self._chat)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The slash commands in the palette (Ctrl+P); those that need more words are put into the input."""
        for command in COMMANDS:
            yield SystemCommand(command.usage, command.help, partial(self._chat.choose_command, command))
        for name in sorted(self.available_themes):
            yield SystemCommand(f"/theme {name}", "", partial(self.choose_theme, name), discover=False)

    def choose_theme(self, asked: str) -> None:
        """Changes the colours. Raises UsageError."""
        name = theme_name(asked)
        if name not in self.available_themes:
            raise UsageError(f"there is no theme {asked!r}", f"known: {', '.join(sorted(self.available_themes))}")
        self.theme = name

    def start(self, log: Path) -> None:
        """Runs until the person leaves; what native code prints goes to `log`.

        What ended the chat early, and text that could not be stored, are printed once the screen is gone: Textual's
        own report of a crash goes to the log.
        """
        with stderr_to_log(log):
            self.run()
        if self._exception is not None:
            print(f"{type(self._exception).__name__}: {self._exception}", file=sys.stderr)
            print(f"dart-chat has crashed; everything is kept. Try: read {log}", file=sys.stderr)
        for message, error in self._chat.not_kept():
            print(f"This reply could not be stored: {error.cause}\n\n{message.content}", file=sys.stderr)
