"""Where one types: grows with the text, Enter sends, Ctrl+J breaks the line, Up recalls."""

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea


class PromptInput(TextArea):
    """A text area that sends on Enter and remembers what was sent."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+j", "newline", "New line", show=False),
        # A text area's own, which only move the cursor in these few lines.
        Binding("pageup", "screen.scroll_text(-1)", "Scroll up", show=False),
        Binding("pagedown", "screen.scroll_text(1)", "Scroll down", show=False),
    ]

    class Submitted(Message):
        """A person has sent `text`."""

        def __init__(self, text: str) -> None:
            self.text = text
            super().__init__()

    def __init__(self) -> None:
        super().__init__(placeholder="Write a message. Enter sends, Ctrl+J breaks the line, /help helps.")
        self.show_line_numbers = False
        self._history: list[str] = []
        self._place = 0  # in the history; its end is the text being written
        self._draft = ""

    def remember(self, texts: list[str]) -> None:
        """Makes `texts`, oldest first, what Up recalls."""
        self._history = list(texts)
        self._place = len(self._history)

    def give_back(self, texts: list[str]) -> None:
        """Puts texts that were not sent before what is being written."""
        self.text = "\n\n".join(text for text in [*texts, self.text] if text.strip())
        self._place = len(self._history)
        self.move_cursor(self.document.end)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.prevent_default().stop()
            text = self.text
            if text.strip():
                self._history.append(text)
                self._place = len(self._history)
                self.text = ""
                self.post_message(self.Submitted(text))
            return
        first = self.navigator.is_first_wrapped_line(self.cursor_location)
        last = self.navigator.is_last_wrapped_line(self.cursor_location)
        if (event.key == "up" and first) or (event.key == "down" and last):
            event.prevent_default().stop()
            self._recall(-1 if event.key == "up" else 1)
            return
        await super()._on_key(event)

    def action_newline(self) -> None:
        """Breaks the line."""
        self.insert("\n")

    def _recall(self, step: int) -> None:
        place = self._place + step
        if not 0 <= place <= len(self._history):
            return
        if self._place == len(self._history):
            self._draft = self.text
        self._place = place
        self.text = self._draft if place == len(self._history) else self._history[place]
        self.move_cursor(self.document.end)
