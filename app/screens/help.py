"""Keys and commands."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Markdown

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
        """Two tables."""
        keys = "\n".join(f"| {key} | {what} |" for key, what in KEYS)
        commands = "\n".join(f"| `{command.usage.replace('|', '·')}` | {command.help} |" for command in COMMANDS)
        with VerticalScroll():
            yield Markdown(
                f"# Keys\n\n| key | does |\n| --- | --- |\n{keys}\n\n"
                f"# Commands\n\n| type | does |\n| --- | --- |\n{commands}\n\nEsc closes this."
            )
