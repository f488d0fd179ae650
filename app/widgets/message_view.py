"""One message of the conversation."""

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Collapsible, Static

from app.store import Message
from app.widgets.reply_markdown import ReplyMarkdown

NOTES = {"stopped": "stopped", "failed": "not written", "streaming": ""}


class MessageView(Vertical):
    """Who spoke, what was said, and a note where there is one to make."""

    def __init__(self, message: Message, who: str, version: str = "") -> None:
        """`version` says which of several replies this is, such as "2 of 3"."""
        super().__init__(classes=f"-{message.role}")
        self.message = message
        self._who = f"{who}  ({version})" if version else who
        self._live = message.state == "streaming"
        self._thought = message.reasoning

    def compose(self) -> ComposeResult:
        """The parts."""
        yield Static(Content(self._who), classes="who")
        if self.message.role == "user":
            yield Static(Content(self.message.content), classes="said")
        else:
            with Collapsible(title="Reasoning", collapsed=True) as reasoning:
                yield Static(Content(self._thought), id="reasoning")
            reasoning.display = bool(self._thought)
            yield ReplyMarkdown(self.message.content, streaming=self._live)
        note = Static(Content(NOTES.get(self.message.state, "")), classes="note")
        note.set_class(bool(NOTES.get(self.message.state)), "-shown")
        yield note

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

    async def finish(self, text: str, note: str = "", failed: bool = False) -> None:
        """Shows the whole reply once more, with a note below it."""
        await self.query_one(ReplyMarkdown).finish(text)
        self.set_class(failed, "-failed")
        line = self.query_one(".note", Static)
        line.update(Content(note))
        line.set_class(bool(note), "-shown")
