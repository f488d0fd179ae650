"""The conversation, newest at the bottom, following the text unless one has scrolled away."""

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Button, Static

from app.store import Message
from app.widgets.message_view import MessageView

WINDOW = 20  # 150 messages as Markdown take 9 s to mount (FACTS), twenty are at once there

WELCOME = """Ask something below. The model runs on this machine; nothing leaves it.

F1  keys and commands      F2  watch the draft tree      Ctrl+O  earlier chats
"""


class Transcript(VerticalScroll):
    """The messages from the root to the leaf that is shown."""

    def on_mount(self) -> None:
        """Keeps the newest text in sight."""
        self.anchor()

    async def show(self, messages: list[Message], versions: dict[int, str], model: str) -> None:
        """Replaces what is shown by the last messages of a path; older ones come by a button."""
        await self.remove_children()
        if not messages:
            await self.mount(Static(Content(WELCOME), id="welcome"))
            return
        self._older = [self._view(message, versions, model) for message in messages[:-WINDOW]]
        views = [self._view(message, versions, model) for message in messages[-WINDOW:]]
        if self._older:
            await self.mount(Button(f"Show {len(self._older)} earlier messages", id="older", compact=True))
        await self.mount_all(views)
        self.anchor()

    async def add(self, message: Message, who: str, version: str = "") -> MessageView:
        """Appends a message."""
        for welcome in self.query("#welcome"):
            await welcome.remove()
        view = MessageView(message, who, version)
        await self.mount(view)
        self.anchor()
        return view

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        """Shows the messages before the first one shown, twenty at a time."""
        batch, self._older = self._older[-WINDOW:], self._older[:-WINDOW]
        self.release_anchor()
        await self.mount_all(batch, after=event.button)
        if self._older:
            event.button.label = f"Show {len(self._older)} earlier messages"
        else:
            await event.button.remove()

    def _view(self, message: Message, versions: dict[int, str], model: str) -> MessageView:
        who = "You" if message.role == "user" else message.model or model
        return MessageView(message, who, versions.get(message.id, ""))
