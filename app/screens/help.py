"""Keys and commands."""

from typing import ClassVar

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
    ("Up, Down", "what you wrote before"),
    ("Esc", "stop the reply; its text is kept"),
    ("F2", "show or hide the draft tree"),
    ("F3, F4", "in the tree: the step before, the step after"),
    ("F7, F8", "the reply's other versions"),
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
        keys = "\n".join(f"  {key:20}{what}" for key, what in KEYS)
        commands = "\n".join(f"  {command.usage:20}{command.help}" for command in COMMANDS)
        with VerticalScroll():
            yield Static(
                Content.assemble(
                    ("Keys\n", "bold $text-primary"), keys, ("\n\nCommands\n", "bold $text-primary"), commands,
                    ("\n\nUp and Down scroll, Esc closes.", "$text-muted"),
                )
            )  # fmt: skip
