"""Keys and commands."""

from collections.abc import Iterable
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.commands import COMMANDS

KEYS = (
    ("Enter", "send"),
    ("Ctrl+J", "new line"),
    ("Ctrl+G", "write in your $EDITOR, long pastes unfolded"),
    ("Up, Down", "what you wrote before"),
    ("Page Up, Page Down", "scroll the conversation"),
    ("Esc", "stop the reply; its text is kept, and what waits comes back to be edited"),
    ("Ctrl+Up", "choose a message: edit, write again, copy, go on from there"),
    ("F2", "show or hide the draft tree"),
    ("F3, F4", "in the tree: the step before, the step after"),
    ("F7, F8", "the version before, the version after, where (1 of 2, F7 F8) stands"),
    ("F9", "F7 and F8 walk the versions of an earlier message, then of the last again"),
    ("Ctrl+R", "write the reply again"),
    ("Ctrl+N", "a new chat"),
    ("Ctrl+O", "earlier chats"),
    ("Ctrl+Y", "copy the last reply"),
    ("Ctrl+C", "stop, and twice: leave"),
)


class HelpScreen(ModalScreen[None]):
    """Closed by Esc, F1 or q."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """Two lists."""
        with VerticalScroll():
            yield Static(Content.styled("Keys", "bold $text-primary"))
            yield Static(two_columns(KEYS))
            yield Static(Content.styled("\nCommands", "bold $text-primary"))
            yield Static(two_columns([(command.usage, command.help) for command in COMMANDS]))
            yield Static(Content.styled("\nUp and Down scroll, Esc closes.", "$text-muted"))


def two_columns(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and what they do, each wrapped in its own column."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=20)
    table.add_column(ratio=1)
    for name, what in rows:
        table.add_row(Text(f"  {name}"), Text(what))
    return table
