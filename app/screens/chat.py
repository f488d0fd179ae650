"""The chat: one types, the engine writes, and everything is on disk before it is on screen."""

from collections import deque
from dataclasses import replace
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Footer

from app.commands import parse
from app.conversation import Conversation
from app.screens.chat_commands import run_command
from app.settings import Settings
from app.store import Store
from app.widgets.loading_bar import LoadingBar
from app.widgets.message_view import MessageView
from app.widgets.prompt_input import PromptInput
from app.widgets.status_line import Status, StatusLine
from app.widgets.transcript import Transcript
from app.widgets.tree_panel import TreePanel
from app.writing import Writing
from dart_core.client import EngineClient
from dart_core.events import Event, Failed, Finished, Loading, ModelInfo, Ready
from models.errors import DartError

FLUSHES_PER_SECOND = 15
WIDE = 110  # columns from which the tree stands beside the text


class ChatScreen(Screen[None]):
    """Owns the conversation's state; the engine is only ever asked, never waited for."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help"),
        Binding("f2", "tree", "Tree"),
        Binding("f3", "tree_step(-1)", "Step back", show=False),
        Binding("f4", "tree_step(1)", "Step on", show=False),
        Binding("escape", "stop", "Stop"),
        Binding("ctrl+r", "command('/regen')", "Again"),
        # Before the input's own F7, which selects all.
        Binding("f7", "version(-1)", "Version before", show=False, priority=True),
        Binding("f8", "version(1)", "Version after", show=False, priority=True),
        Binding("ctrl+n", "command('/new')", "New"),
        Binding("ctrl+o", "command('/chats')", "Chats"),
        Binding("ctrl+y", "command('/copy')", "Copy"),
        Binding("ctrl+c", "interrupt", "Leave", show=False, priority=True),
    ]

    def __init__(self, settings: Settings, store: Store, client: EngineClient, chat_id: int | None) -> None:
        super().__init__()
        self.settings = settings
        self.client = client
        self.conversation = Conversation(store, chat_id)
        self.model: ModelInfo | None = None
        self.writing: Writing | None = None
        self._waiting: deque[str] = deque()
        self._last: Finished | None = None
        self._leaving = False
        self.load_failed = False

    def compose(self) -> ComposeResult:
        """Text and tree above, input and status below."""
        with Container(id="main"):
            yield Transcript()
            yield TreePanel()
        yield LoadingBar()
        yield PromptInput()
        yield StatusLine()
        yield Footer(compact=True, show_command_palette=False)

    async def on_mount(self) -> None:
        """Shows the chat there is, and begins to listen to the engine."""
        self.query_one(TreePanel).set_class(self.settings.show_tree, "-shown")
        await self.show_conversation()
        self.query_one(PromptInput).focus()
        self.set_interval(1 / FLUSHES_PER_SECOND, self._flush)

    def on_resize(self, event: events.Resize) -> None:
        """Puts the tree beside the text where there is room."""
        self.set_class(event.size.width >= WIDE, "-wide")

    @property
    def model_name(self) -> str:
        """The model's name for people."""
        return self.model.name if self.model else self.settings.model

    async def show_conversation(self) -> None:
        """Draws the path from the root to the leaf."""
        messages = self.conversation.messages()
        await self.query_one(Transcript).show(messages, self.conversation.versions(messages), self.model_name)
        self.query_one(PromptInput).remember([message.content for message in messages if message.role == "user"])
        self.show_status()

    @on(PromptInput.Submitted)
    async def _submitted(self, event: PromptInput.Submitted) -> None:
        if event.text.startswith("/"):
            await self.command(event.text)
        elif self.writing is not None:
            self._waiting.append(event.text)
            self.show_status()
        else:
            await self.ask(event.text)

    async def ask(self, text: str) -> None:
        """Adds a person's message and has it answered."""
        message = self.conversation.add_user(text, self.model_name, self.settings.system)
        await self.query_one(Transcript).add(message, "You")
        await self.answer()

    async def answer(self, again: bool = False, go_on: bool = False) -> None:
        """Has the engine reply to the leaf; `again` beside the last reply, `go_on` from where that one ends."""
        prompt = self.conversation.prompt(without_last_reply=again)
        last = self.conversation.last_reply() if again or go_on else None
        begun = last.content if last and go_on else ""
        message = self.conversation.add_reply(self.model_name, last.parent_id if last else None, begun)
        if last:
            await self.show_conversation()
            view = self.query(MessageView).last()
        else:
            view = await self.query_one(Transcript).add(message, self.model_name)
        self.writing = Writing(self.conversation.store, message, view, begun)
        tree = self.query_one(TreePanel)
        tree.clear()
        self.client.send(prompt, replace(self.settings.generate_options(), show_tree=tree.has_class("-shown")))

    async def _flush(self) -> None:
        received = self.client.poll()
        if received:
            for event in received:
                await self._loaded(event)
            if self.writing is not None:
                await self._write(self.writing, received)

    async def _loaded(self, event: Event) -> None:
        if isinstance(event, Loading):
            bar = self.query_one(LoadingBar)
            bar.display = True
            bar.show(event)
        elif isinstance(event, Ready):
            self.model = event.info
            self.query_one(LoadingBar).display = False
            self.show_status()
        elif isinstance(event, Failed):
            self.load_failed = self.model is None
            self.query_one(LoadingBar).display = False
            self.show_status()
            if self.writing is None:
                self.complain(event.error, event.hint)

    async def _write(self, writing: Writing, received: list[Event]) -> None:
        await writing.take(received)
        self.query_one(TreePanel).add(writing.steps)
        if writing.finished or writing.failed:
            self._last = writing.finished or self._last
            self.writing = None
            if self._waiting and writing.failed is None:
                await self.ask(self._waiting.popleft())
        self.show_status(writing)

    def show_status(self, writing: Writing | None = None) -> None:
        """Draws the status line, with the figures of the reply that is being written, else of the last one."""
        last, model = self._last, self.model
        if writing and writing.steps and self.writing:
            context, speed, tau = writing.steps[-1].context, writing.speed, writing.tau
        elif last:
            context, speed, tau = last.context, last.timings.predicted_per_second, last.usage.tau
        else:
            context, speed, tau = 0, None, None
        drafting = f"on, ≤ {self.settings.tree_size}" if self.settings.draft else "off: switched off"
        if last and last.note and self.settings.draft:
            drafting = f"off: {last.note}"
        self.query_one(StatusLine).show(
            Status(
                self.model_name
                if model
                else f"{self.settings.model}: {'not opened' if self.load_failed else 'loading'}",
                speed,
                tau,
                context,
                model.context_limit if model else 0,
                drafting,
                len(self._waiting),
            )
        )

    def complain(self, error: str, hint: str = "") -> None:
        """Says what went wrong and what to do; it stays until the next key."""
        self.notify(f"{error}\nTry: {hint}" if hint else error, severity="error", timeout=15, markup=False)

    async def command(self, text: str) -> None:
        """Does a slash command."""
        try:
            found, argument = parse(text)
            await run_command(self, found.name, argument)
        except DartError as error:
            self.complain(error.cause, error.hint)

    async def action_command(self, text: str) -> None:
        """A key that stands for a command."""
        await self.command(text)

    async def action_help(self) -> None:
        """Keys and commands."""
        await self.command("/help")

    async def action_tree(self) -> None:
        """Shows or hides the draft tree."""
        await self.command("/tree")

    def action_tree_step(self, by: int) -> None:
        """Goes through the steps of the reply."""
        self.query_one(TreePanel).move(by)

    async def action_version(self, by: int) -> None:
        """Shows another version of the last reply or question that has several."""
        if self.writing is None and self.conversation.walk(by):
            await self.show_conversation()

    def action_stop(self) -> None:
        """Stops the reply; what was written stays."""
        self._waiting.clear()
        self.client.stop()

    def action_interrupt(self) -> None:
        """Ctrl+C: copies what is selected, else stops the reply, else leaves at the second press."""
        if self.get_selected_text():
            self.action_copy_text()
        elif self.writing is not None:
            self.action_stop()
        elif self._leaving:
            self.app.exit()
        else:
            self._leaving = True
            self.notify("Press Ctrl+C again to leave.", timeout=2)
            self.set_timer(2, self._stay)

    def _stay(self) -> None:
        self._leaving = False
