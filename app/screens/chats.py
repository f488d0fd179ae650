"""Earlier chats: search, open, rename, pin, delete, bring back."""

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

KEYS = "Enter open · F2 rename · F3 pin · ^D delete · ^Z bring back · Esc close"


class ChatsScreen(ModalScreen[int | None]):
    """Gives the chosen chat's number, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close"),
        Binding("f2", "rename", "Rename"),
        Binding("f3", "pin", "Pin"),
        Binding("f8,ctrl+d", "delete", "Delete", priority=True),  # before the input's own Ctrl+D
        Binding("ctrl+z", "undelete", "Bring back"),
        Binding("up", "move('cursor_up')", "Up", show=False),
        Binding("down", "move('cursor_down')", "Down", show=False),
        Binding("pageup", "move('page_up')", "Page up", show=False),
        Binding("pagedown", "move('page_down')", "Page down", show=False),
    ]

    def __init__(self, store: Store, words: str = "") -> None:
        super().__init__()
        self._store = store
        self._words = words
        self._chats: list[Chat] = []
        self._deleted: list[int] = []
        self._renaming: Chat | None = None

    def compose(self) -> ComposeResult:
        """A search line above the list. The line keeps the keys."""
        with Vertical():
            yield Input(self._words, placeholder="Search in all chats")
            chats = OptionList()
            chats.can_focus = False
            yield chats
            yield Label(KEYS)

    def on_mount(self) -> None:
        """Shows all chats."""
        self._fill(self._words)

    @on(Input.Changed)
    def search(self, event: Input.Changed) -> None:
        """Narrows the list while one types."""
        if self._renaming is None:
            self._words = event.value
            self._fill(event.value)

    @on(Input.Submitted)
    def open_marked(self, event: Input.Submitted) -> None:
        """Enter opens the marked chat, or keeps its new title."""
        if self._renaming is None:
            self.query_one(OptionList).action_select()
            return
        if event.value.strip():
            with self._complaints():
                self._store.rename(self._renaming.id, event.value.strip())
        self._search_again()

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        """Opens a chat."""
        self.dismiss(self._chats[event.option_index].id)

    def action_move(self, action: str) -> None:
        """Moves the mark."""
        getattr(self.query_one(OptionList), f"action_{action}")()

    def action_close(self) -> None:
        """Leaves the title as it was, or the list."""
        if self._renaming is None:
            self.dismiss(None)
        else:
            self._search_again()

    def action_rename(self) -> None:
        """Puts the marked chat's title into the line, to be changed."""
        self._renaming = self._marked
        if self._renaming is not None:
            line = self.query_one(Input)
            line.border_title = "New title: Enter keeps it, Esc leaves it as it was"
            line.value = self._renaming.title
            line.action_end()

    def action_pin(self) -> None:
        """Keeps the marked chat at the top, or no longer."""
        if (chat := self._marked) is not None:
            with self._complaints():
                self._store.pin(chat.id, not chat.pinned)
            self._fill(self._words, marked=chat.id)

    def _search_again(self) -> None:
        marked = self._renaming.id if self._renaming else None
        line = self.query_one(Input)
        line.border_title = ""
        with line.prevent(Input.Changed):
            line.value = self._words
        self._renaming = None
        self._fill(self._words, marked)

    @property
    def _marked(self) -> Chat | None:
        place = self.query_one(OptionList).highlighted
        return self._chats[place] if place is not None and self._chats else None

    @contextmanager
    def _complaints(self) -> Iterator[None]:
        """Says what is wrong with the database; the list stays."""
        try:
            yield
        except StoreError as error:
            self.notify(f"{error.cause}\nTry: {error.hint}", severity="error", markup=False)

    def action_delete(self) -> None:
        """Deletes the marked chat; it can be brought back for a week."""
        chat = self._marked
        if chat is not None and self._renaming is None:
            with self._complaints():
                self._store.delete(chat.id)
                self._deleted.append(chat.id)
            self._fill(self._words)

    def action_undelete(self) -> None:
        """Brings back what was deleted last."""
        if self._deleted:
            with self._complaints():
                self._store.undelete(self._deleted[-1])
                self._fill(self._words, marked=self._deleted.pop())

    def _fill(self, words: str, marked: int | None = None) -> None:
        with self._complaints():
            self._chats = self._store.chats(words)
        chats = self.query_one(OptionList)
        chats.clear_options()
        chats.add_options(Option(_line(chat, words)) for chat in self._chats)
        places = [place for place, chat in enumerate(self._chats) if chat.id == marked]
        chats.highlighted = (places or [0])[0] if self._chats else None
        if not self._chats:
            nothing = "No chat holds these words." if words.strip() else "No chats yet: what you write is kept here."
            chats.add_option(Option(Content.styled(nothing, "$foreground 60%"), disabled=True))


def _line(chat: Chat, words: str) -> Content:
    """Time and title, and below them the words that were searched for."""
    when = datetime.fromtimestamp(chat.updated)
    line = Content.assemble((f"{when:%Y-%m-%d %H:%M}  ", "$foreground 60%"), f"{'* ' * chat.pinned}{chat.title}")
    if words.strip():
        line = Content.assemble(line, (f"\n   {chat.snippet[:100]}", "$foreground 60%"))
    return line
