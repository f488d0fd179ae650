"""Where one types: grows with the text, Enter sends, Ctrl+J breaks the line, Up recalls, `/` offers commands."""

from collections.abc import Callable
from typing import ClassVar

from textual import events, on
from textual.app import SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from app.completion import Completion
from app.editor import edit
from app.pastes import Pastes
from app.widgets.completion_menu import CompletionMenu
from models.errors import DartError

PLACEHOLDER = "Write a message. Enter sends, Ctrl+J breaks the line, / offers commands."


class PromptInput(TextArea):
    """A text area that sends on Enter, remembers what was sent and folds what is long."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "New line", show=False),
        Binding("ctrl+g", "edit", "Editor", show=False),
        # A text area's own, which only move the cursor in these few lines.
        Binding("pageup", "screen.scroll_text(-1)", "Scroll up", show=False),
        Binding("pagedown", "screen.scroll_text(1)", "Scroll down", show=False),
    ]

    class Submitted(Message):
        """A person has sent `text`."""

        def __init__(self, text: str) -> None:
            self.text = text
            super().__init__()

    def __init__(self, menu: CompletionMenu, complete: Callable[[str], list[Completion]]) -> None:
        """`complete` says what a text may become; `menu` shows it."""
        super().__init__(placeholder=PLACEHOLDER)
        self.show_line_numbers = False
        self._menu = menu
        self._complete = complete
        self._pastes = Pastes()
        self._history: list[str] = []
        self._place = 0  # in the history; its end is the text being written
        self._draft = ""
        self._quiet_for = ""  # the text whose completions were closed
        self._offered_for = ""  # the text whose completions the menu shows

    @property
    def whole_text(self) -> str:
        """The text with what its marks stand for."""
        return self._pastes.unfold(self.text)

    def remember(self, texts: list[str]) -> None:
        """Makes `texts`, oldest first, what Up recalls."""
        self._history = list(texts)
        self._place = len(self._history)

    def write(self, text: str) -> None:
        """Puts `text` into the input, folded where it is long; a command offers nothing until it is changed."""
        self._quiet_for = folded = self._pastes.fold(text)
        self.text = folded
        self.move_cursor(self.document.end)

    def give_back(self, texts: list[str]) -> None:
        """Puts texts that were not sent before what is being written."""
        self._place = len(self._history)
        self.write("\n\n".join(text for text in [*texts, self.whole_text] if text.strip()))

    async def _on_key(self, event: events.Key) -> None:
        if self._menu.display and self._choose(event.key):
            event.prevent_default().stop()
            return
        if event.key == "enter":
            event.prevent_default().stop()
            self._send()
            return
        first = self.navigator.is_first_wrapped_line(self.cursor_location)
        last = self.navigator.is_last_wrapped_line(self.cursor_location)
        if (event.key == "up" and first) or (event.key == "down" and last):
            event.prevent_default().stop()
            self._recall(-1 if event.key == "up" else 1)
            return
        await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        event.prevent_default().stop()
        attached = None if self.text.startswith("/") else self._pastes.attach(event.text)
        self.insert(attached or self._pastes.fold(event.text))

    @on(TextArea.Changed)
    def _offer(self) -> None:
        self._offered_for = self.text
        self._menu.offer([] if self.text == self._quiet_for else self._complete(self.text))

    def action_newline(self) -> None:
        """Breaks the line."""
        self.insert("\n")

    def action_edit(self) -> None:
        """Opens the text, with what its marks stand for, in the person's editor."""
        try:
            with self.app.suspend():
                text = edit(self.whole_text)
        except (DartError, SuspendNotSupported) as error:
            self.notify(str(error), severity="error", markup=False)
        else:
            self.app.refresh()
            self.write(text)

    def _choose(self, key: str) -> bool:
        """Keys of the open menu; False for those that are not."""
        if self._offered_for != self.text:
            self._offer()  # keys that come fast are here before the word that the text has changed
            if not self._menu.display:
                return False
        chosen = self._menu.chosen
        if key in ("up", "down"):
            self._menu.move(-1 if key == "up" else 1)
        elif key == "escape":
            self._quiet_for = self.text
            self._menu.offer([])
        elif chosen is not None and (key == "tab" or (key == "enter" and chosen.text.strip() != self.text.strip())):
            self.text = chosen.text
            self.move_cursor(self.document.end)
            if key == "enter" and not chosen.text.endswith((" ", "/")):
                self._send()
        else:
            return False
        return True

    def _send(self) -> None:
        text = self.whole_text
        if text.strip():
            self._history.append(text)
            self._place = len(self._history)
            self.text = ""
            self.post_message(self.Submitted(text))

    def _recall(self, step: int) -> None:
        place = self._place + step
        if not 0 <= place <= len(self._history):
            return
        if self._place == len(self._history):
            self._draft = self.text
        self._place = place
        if place == len(self._history):
            self.text = self._draft
            self.move_cursor(self.document.end)
        else:
            self.write(self._history[place])
