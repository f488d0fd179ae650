"""The conversation, newest at the bottom, following the text unless one has scrolled away."""

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Button, Static

from app.store import Message
from app.widgets.message_view import MessageView

WINDOW = 20  # 150 messages as Markdown take 9 s to mount (FACTS): so many are shown at first,
WINDOW_LINES = 120  # or as many as have so many lines: a long reply has more parts to draw than ten short ones
MOUNTED = 40  # more than these go behind the button as new ones come

WELCOME = """Ask something below. The model runs on this machine; nothing leaves it.

F1 keys and commands · F2 watch the draft tree · Ctrl+O earlier chats
"""


class Transcript(VerticalScroll, can_focus=False):
    """The messages from the root to the leaf that is shown."""

    def __init__(self) -> None:
        super().__init__()
        self._older: list[MessageView] = []  # not mounted
        self.notes: tuple[str, ...] = ()  # what the model has to say, below the welcome

    def on_mount(self) -> None:
        """Keeps the newest text in sight."""
        self.anchor()

    async def show(self, messages: list[Message], versions: dict[int, str], model: str) -> None:
        """Replaces what is shown by the last messages of a path; older ones come by a button."""
        await self.remove_children()
        self._older = [self._view(message, versions, model) for message in messages]
        views = self._newest()
        if not messages:
            await self.mount(Static(self._welcome(), id="welcome"))
        await self._label_older()
        await self.mount_all(views)
        self.anchor()

    async def add(self, message: Message, who: str, version: str = "") -> MessageView:
        """Appends a message; the oldest ones leave the screen where there are many."""
        await self.query("#welcome").remove()
        view = MessageView(message, who, version)
        await self.mount(view)
        mounted = list(self.query(MessageView))
        for old in mounted[:-MOUNTED]:
            self._older.append(MessageView(old.message, old.who, old.version))
            await old.remove()
        await self._label_older()
        self.anchor()
        return view

    def say(self, notes: tuple[str, ...]) -> bool:
        """Shows what the model has to say below the welcome; False where a chat has taken its place."""
        self.notes = notes
        for welcome in self.query("#welcome").results(Static):
            welcome.update(self._welcome())
            return True
        return False

    async def reveal(self, message_id: int, focus: bool = False) -> None:
        """Scrolls to a message, mounting those after it where need be, and gives it the keys where asked to."""
        while self._older and not any(view.message.id == message_id for view in self.query(MessageView)):
            await self._mount_older()
        for view in self.query(MessageView):
            if view.message.id == message_id:
                self.release_anchor()
                view.scroll_visible(top=True, animate=False)
                if focus:
                    view.focus(scroll_visible=False)

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        """Shows the messages before the first one shown, twenty at a time."""
        self.release_anchor()
        await self._mount_older()

    def _newest(self) -> list[MessageView]:
        """Takes the newest of the messages that are not mounted."""
        count = lines = 0
        while count < min(WINDOW, len(self._older)) and (count < 2 or lines < WINDOW_LINES):
            count += 1
            lines += self._older[-count].message.content.count("\n") + 2
        newest = self._older[len(self._older) - count :]
        del self._older[len(self._older) - count :]
        return newest

    async def _mount_older(self) -> None:
        await self.mount_all(self._newest(), after=self.query_one("#older"))
        await self._label_older()

    async def _label_older(self) -> None:
        label = f"Show {len(self._older)} earlier messages"
        buttons = self.query("#older").results(Button)
        if button := next(buttons, None):
            button.label = label
            if not self._older:
                await button.remove()
        elif self._older:
            await self.mount(Button(label, id="older", compact=True), before=0 if self.children else None)

    def _welcome(self) -> Content:
        return Content("\n".join([WELCOME, *self.notes]))

    def _view(self, message: Message, versions: dict[int, str], model: str) -> MessageView:
        who = "You" if message.role == "user" else message.model or model
        return MessageView(message, who, versions.get(message.id, ""))
