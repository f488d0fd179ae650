"""One message of the conversation."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as TextualMessage
from textual.widgets import Collapsible, Static

from app.notes import note
from app.store import Message
from app.widgets.reply_markdown import ReplyMarkdown

FOLD_LINES, SHOWN_LINES = 16, 8  # a question of more lines shows its first ones


class MessageView(Vertical, can_focus=True):
    """Who spoke, what was said, and a note where there is one to make. Keys work on the one with the focus."""

    FOCUS_ON_CLICK = False  # a click selects text and leaves the keys to the input
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "ask('edit')", "Edit"),
        Binding("r", "ask('again')", "Again"),
        Binding("c,y", "ask('copy')", "Copy"),
        Binding("b", "ask('branch')", "Branch"),
        Binding("left", "ask('before')", "Before"),
        Binding("right", "ask('after')", "After"),
        Binding("up,ctrl+up,k", "screen.select(-1)", "Up", show=False),
        Binding("down,ctrl+down,j", "screen.select(1)", "Down", show=False),
        Binding("escape,enter", "screen.select(1000000)", "Back"),
    ]

    class Asked(TextualMessage):
        """A key on `message` asks for `action`."""

        def __init__(self, action: str, message: Message) -> None:
            self.action, self.message = action, message
            super().__init__()

    def __init__(self, message: Message, who: str, version: str = "") -> None:
        """`version` says which of several replies this is, such as "2 of 3"."""
        super().__init__(classes=f"-{message.role}")
        self.message = message
        self.who, self.version = who, version
        self._thought = message.reasoning
        self.set_class(message.state == "failed", "-failed")

    def compose(self) -> ComposeResult:
        """The parts."""
        yield Static(Content(f"{self.who}  ({self.version})" if self.version else self.who), classes="who")
        if self.message.role == "user":
            lines = self.message.content.splitlines()
            shown = len(lines) if len(lines) <= FOLD_LINES else SHOWN_LINES
            yield Static(Content("\n".join(lines[:shown])), classes="said")
            if rest := lines[shown:]:
                with Collapsible(title=f"{len(rest)} more lines", collapsed=True):
                    yield Static(Content("\n".join(rest)))
        else:
            with Collapsible(title="Reasoning", collapsed=True) as reasoning:
                yield Static(Content(self._thought), id="reasoning")
            reasoning.display = bool(self._thought)
            yield ReplyMarkdown(self.message.content, streaming=self.message.state == "streaming")
        said = Static(Content(note(self.message)), classes="note")
        said.set_class(bool(note(self.message)), "-shown")
        yield said

    def action_ask(self, action: str) -> None:
        """Passes a key on."""
        self.post_message(self.Asked(action, self.message))

    async def write(self, reply: str, reasoning: str) -> None:
        """Appends to a reply that is being written."""
        if reasoning:
            self._thought += reasoning
            box = self.query_one(Collapsible)
            box.display = True
            box.title = f"Reasoning ({len(self._thought.split())} words)"
            self.query_one("#reasoning", Static).update(Content(self._thought))
        if reply:
            await self.query_one(ReplyMarkdown).write(reply)

    async def finish(self, message: Message) -> None:
        """Shows the whole reply once more, with its note below."""
        self.message = message
        await self.query_one(ReplyMarkdown).finish(message.content)
        self.set_class(message.state == "failed", "-failed")
        self.say(note(message))

    def say(self, text: str) -> None:
        """Puts `text` below the message."""
        line = self.query_one(".note", Static)
        line.update(Content(text))
        line.set_class(bool(text), "-shown")
