"""Earlier chats: search, open, delete, bring back."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from app.store import Chat, Store, StoreError


class ChatsScreen(ModalScreen[int | None]):
    """Gives the chosen chat's number, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
        Binding("f8,ctrl+d", "delete", "Delete"),
        Binding("ctrl+z", "undelete", "Bring back"),
    ]

    def __init__(self, store: Store, words: str = "") -> None:
        super().__init__()
        self._store = store
        self._words = words
        self._deleted: list[int] = []

    def compose(self) -> ComposeResult:
        """A search line above the list."""
        with Vertical():
            yield Input(self._words, placeholder="Search in all chats")
            yield OptionList()
            yield Label("Enter opens · Ctrl+D deletes · Ctrl+Z brings back · Esc closes")

    def on_mount(self) -> None:
        """Shows all chats."""
        self._fill(self._words)

    @on(Input.Changed)
    def search(self, event: Input.Changed) -> None:
        """Narrows the list while one types."""
        self._fill(event.value)

    @on(Input.Submitted)
    def open_first(self) -> None:
        """Enter in the search line opens the marked chat."""
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        """Opens a chat."""
        self.dismiss(int(event.option_id or 0))

    def key_down(self) -> None:
        """From the search line into the list."""
        self.query_one(OptionList).focus()

    @contextmanager
    def _complaints(self) -> Iterator[None]:
        """Says what is wrong with the database; the list stays."""
        try:
            yield
        except StoreError as error:
            self.notify(f"{error.cause}\nTry: {error.hint}", severity="error", markup=False)

    def action_delete(self) -> None:
        """Deletes the marked chat; it can be brought back for a week."""
        chats = self.query_one(OptionList)
        if chats.highlighted is not None and chats.option_count:
            chat = int(chats.get_option_at_index(chats.highlighted).id or 0)
            with self._complaints():
                self._store.delete(chat)
                self._deleted.append(chat)
            self._fill(self.query_one(Input).value)

    def action_undelete(self) -> None:
        """Brings back what was deleted last."""
        if self._deleted:
            with self._complaints():
                self._store.undelete(self._deleted[-1])
                self._deleted.pop()
            self._fill(self.query_one(Input).value)

    def _fill(self, words: str) -> None:
        chats = self.query_one(OptionList)
        found: list[Chat] = []
        with self._complaints():
            found = self._store.chats(words)
        chats.clear_options()
        for chat in found:
            when = datetime.fromtimestamp(chat.updated)
            pin = "* " if chat.pinned else ""
            line = Content.assemble((f"{when:%Y-%m-%d %H:%M}  ", "$text-muted"), f"{pin}{chat.title}")
            if words:
                line = Content.assemble(line, (f"\n   {chat.snippet[:100]}", "$text-muted"))
            chats.add_option(Option(line, id=str(chat.id)))
        if chats.option_count:
            chats.highlighted = 0
