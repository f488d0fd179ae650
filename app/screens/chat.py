"""The chat: one types, the engine writes, and everything is on disk before it is on screen."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Footer

from app.commands import Command, is_command, parse
from app.comparison import comparison, is_repetition
from app.completion import completions
from app.conversation import Conversation
from app.notes import note
from app.screens.chat_commands import run_command
from app.screens.message_commands import do_with_message, finish_editing, stop_editing
from app.settings import Settings
from app.store import Message, Store, StoreError
from app.widgets.completion_menu import CompletionMenu
from app.widgets.loading_bar import LoadingBar
from app.widgets.message_view import MessageView
from app.widgets.prompt_input import PromptInput
from app.widgets.status_line import Status, StatusLine
from app.widgets.transcript import Transcript
from app.widgets.tree_panel import TreePanel
from app.writing import Writing
from dart_core.client import EngineClient
from dart_core.events import Event, Failed, Finished, Loading, ModelInfo, Prefill, Ready
from dart_core.options import GenerateOptions
from models.catalog import DEFAULT_NAME
from models.errors import DartError

FLUSHES_PER_SECOND = 15
TALL = 34  # rows from which the panel has room for more than the tree
WIDE = 110  # columns from which the tree stands beside the text


class ChatScreen(Screen[None]):
    """Owns the conversation's state; the engine is only ever asked, never waited for."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "help", "Help"),
        Binding("f2", "tree", "Tree"),
        Binding("f3", "tree_step(-1)", "Back"),
        Binding("f4", "tree_step(1)", "On"),
        Binding("escape", "stop", "Stop"),
        Binding("ctrl+r", "command('/regen')", "Again"),
        # Before the input's own F7, which selects all.
        Binding("f7", "version(-1)", "Version before", show=False, priority=True),
        Binding("f8", "version(1)", "Version after", show=False, priority=True),
        Binding("f9", "branch", "Earlier versions", show=False),
        Binding("ctrl+n", "command('/new')", "New"),
        Binding("ctrl+o", "command('/chats')", "Chats"),
        Binding("ctrl+y", "command('/copy')", "Copy", show=False, priority=True),  # before the input's redo
        Binding("ctrl+up", "select(-1)", "Message", show=False),
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
        self.last: Finished | None = None
        self.comparing: Message | None = None  # the reply that the next one is to equal
        self._unsaved: list[Writing] = []
        self._branch = 0  # which of the messages with versions F7 and F8 walk; 0 is the deepest
        self._leaving = False
        self.editing: Message | None = None  # what the text in the input will stand beside
        self.load_failed = False

    def compose(self) -> ComposeResult:
        """Text and tree above, input and status below."""
        with Container(id="main"):
            yield Transcript()
            yield TreePanel()
        yield LoadingBar()
        menu = CompletionMenu()
        yield menu
        yield PromptInput(menu, lambda typed: completions(typed, self.settings))
        yield StatusLine()
        yield Footer(compact=True)

    async def on_mount(self) -> None:
        """Shows the chat there is, and begins to listen to the engine."""
        self.query_one(TreePanel).set_class(self.settings.show_tree, "-shown")
        with self.complaints():
            await self.show_conversation()
        self.query_one(PromptInput).focus()
        self.set_interval(1 / FLUSHES_PER_SECOND, self._flush)

    def on_resize(self, event: events.Resize) -> None:
        """Puts the tree beside the text where there is room, and what it led to below it."""
        self.set_class(event.size.width >= WIDE, "-wide")
        self.set_class(event.size.height >= TALL, "-tall")

    @property
    def model_name(self) -> str:
        """The model's name for people."""
        if self.model:
            return self.model.name
        return DEFAULT_NAME if self.settings.model == "default" else self.settings.model

    @contextmanager
    def complaints(self) -> Iterator[None]:
        """Shows what goes wrong inside; the chat goes on."""
        try:
            yield
        except DartError as error:
            self.complain(error.cause, error.hint)

    async def show_conversation(self, branch: int = 0) -> None:
        """Draws the path from the root to the leaf. F7 and F8 walk the `branch`-th message with versions from below."""
        messages = self.conversation.messages()
        versions = {}
        self._branch = branch
        for level, (message, place, count) in enumerate(self.conversation.branches(messages)):
            versions[message.id] = f"{place} of {count}, {'F7 F8' if level == branch else 'F9'}"
        await self.query_one(Transcript).show(messages, versions, self.model_name)
        self.query_one(PromptInput).remember([message.content for message in messages if message.role == "user"])
        self.refresh_bindings()
        self.show_status()

    @on(PromptInput.Submitted)
    async def _submitted(self, event: PromptInput.Submitted) -> None:
        if is_command(event.text):
            await self.command(event.text, typed=True)
        elif self.editing is not None:
            with self.complaints():
                await finish_editing(self, event.text)
        elif self.writing is not None:
            self._waiting.append(event.text)
            self.show_status()
        else:
            await self.ask(event.text)

    async def ask(self, text: str) -> None:
        """Adds a person's message and has it answered; one that cannot be stored goes back into the input."""
        try:
            self._save_rest()
            message = self.conversation.add_user(text, self.model_name, self.settings.system)
        except StoreError as error:
            self._waiting.appendleft(text)
            self._give_back()
            return self.complain(error.cause, error.hint)
        await self.query_one(Transcript).add(message, "You")
        with self.complaints():
            await self.answer()

    async def answer(
        self,
        question: Message | None = None,
        begun: Message | None = None,
        options: GenerateOptions | None = None,
    ) -> None:
        """Has the engine reply to the leaf, to an earlier `question`, or go on from where the reply `begun` ends.

        What it writes stands beside the replies there are. `options` None takes the settings.

        Raises StoreError, with nothing begun.
        """
        self._save_rest()
        last = begun or question or self.conversation.messages()[-1]
        prompt = self.conversation.prompt(last.id)
        below, text = (begun.parent_id, begun.content) if begun else (last.id, "")
        message = self.conversation.add_reply(self.model_name, below, text)
        if begun or question:
            await self.show_conversation()
            view = self.query(MessageView).last()
        else:
            view = await self.query_one(Transcript).add(message, self.model_name)
        tree = self.query_one(TreePanel)
        tree.clear()
        options = replace(options or self.settings.generate_options(), show_tree=tree.has_class("-shown"))
        self.writing = Writing(self.conversation.store, message, view, options)
        self.refresh_bindings()
        self.client.send(prompt, options)

    def not_kept(self) -> list[tuple[Message, StoreError]]:
        """Replies that could not be stored, after one more attempt at each."""
        rest = [*self._unsaved, *filter(None, [self.writing])]
        return [
            (writing.message, writing.unsaved) for writing in rest if not writing.save(now=True) and writing.unsaved
        ]

    def _save_rest(self) -> None:
        """Stores what could not be stored before. Raises StoreError."""
        for writing in list(self._unsaved):
            if not writing.save(now=True) and writing.unsaved:
                raise writing.unsaved
            self._kept(writing)

    def _kept(self, writing: Writing) -> None:
        self._unsaved.remove(writing)
        self.notify("The reply is stored now.")
        if writing.view.is_attached:
            writing.view.say(note(writing.message))

    def _give_back(self) -> None:
        """Puts the messages that wait back into the input, first come first."""
        texts = list(self._waiting)
        self._waiting.clear()
        if texts:
            self.query_one(PromptInput).give_back(texts)
            self.show_status(self.writing)

    async def _flush(self) -> None:
        for unsaved in list(self._unsaved):
            if unsaved.save():
                self._kept(unsaved)
        received = self.client.poll()
        if received:
            for event in received:
                await self._loaded(event)
            if self.writing is not None:
                await self._write(self.writing, received)

    async def _loaded(self, event: Event) -> None:
        if isinstance(event, Loading | Prefill):
            self.query_one(LoadingBar).show(event)
        elif isinstance(event, Ready):
            self.model = event.info
            self.query_one(LoadingBar).display = False
            if not self.query_one(Transcript).say(event.info.notes) and event.info.notes:
                self.notify("\n".join(event.info.notes), title=event.info.name, markup=False)
            self.show_status()
        elif isinstance(event, Failed):
            self.load_failed = self.model is None
            self.query_one(LoadingBar).display = False
            self.show_status()
            if self.writing is None:
                self.complain(event.error, event.hint)
        else:
            self.query_one(LoadingBar).display = False  # the prompt has been read

    async def _write(self, writing: Writing, received: list[Event]) -> None:
        stored_before = writing.unsaved is None
        await writing.take(received)
        self.query_one(TreePanel).add(writing.steps)
        if writing.unsaved and stored_before:
            self.complain(f"the reply cannot be stored: {writing.unsaved.cause}", writing.unsaved.hint)
        if writing.finished or writing.failed:
            await self._end(writing)
        self.show_status(writing)

    async def _end(self, writing: Writing) -> None:
        if self.comparing is None or writing.options.draft:
            self.last = writing.finished or self.last
        self.writing = None
        self.refresh_bindings()
        if writing.unsaved:
            self._unsaved.append(writing)
            lines = [note(writing.message), f"not stored, which is tried again: {writing.unsaved.cause}"]
            writing.view.say("\n".join(filter(None, lines)))
        if self.comparing and writing.finished:
            writing.view.say(comparison(self.comparing, writing.message))
        elif not writing.unsaved and is_repetition(writing.message, self.conversation.store):
            self.notify("The same text as before: where little is left to chance it is. Try: /set temperature 0.8")
        self.comparing = None
        if writing.failed:
            self._give_back()
        elif self._waiting:
            await self.ask(self._waiting.popleft())

    def show_status(self, writing: Writing | None = None) -> None:
        """Draws the status line, with the figures of the reply that is being written, else of the last one."""
        last, model = self.last, self.model
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
                self.model_name if model else f"{self.model_name}: {'not opened' if self.load_failed else 'loading'}",
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

    async def command(self, text: str, typed: bool = False) -> None:
        """Does a slash command; one that was `typed` and fails is there again to be corrected."""
        try:
            found, argument = parse(text)
            await run_command(self, found.name, argument)
        except DartError as error:
            self.complain(error.cause, error.hint)
            if typed:
                self.query_one(PromptInput).give_back([text])

    async def choose_command(self, command: Command) -> None:
        """Does a command that was chosen from the palette, or puts it into the input where it needs more words."""
        if command.wants_argument:
            prompt = self.query_one(PromptInput)
            prompt.text = f"/{command.name} "
            prompt.move_cursor(prompt.document.end)
            prompt.focus()
        else:
            await self.command(f"/{command.name}")

    async def action_command(self, text: str) -> None:
        """A key that stands for a command."""
        await self.command(text)

    async def action_help(self) -> None:
        """Keys and commands."""
        await self.command("/help")

    async def action_tree(self) -> None:
        """Shows or hides the draft tree."""
        await self.command("/tree")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys that can be used now, which are those the footer shows."""
        if action == "stop":
            return self.writing is not None or self.editing is not None
        if action == "tree_step":
            return self.query_one(TreePanel).has_class("-shown")
        if action == "command":
            if parameters[0] in ("/regen", "/copy") and self.conversation.chat_id is None:
                return False
            return self.writing is None or parameters[0] == "/copy" or None
        return True

    @on(MessageView.Asked)
    async def _message_asked(self, event: MessageView.Asked) -> None:
        with self.complaints():
            await do_with_message(self, event.action, event.message)

    def action_select(self, by: int) -> None:
        """Goes from the input to the last message, and from there up (−1) and down (1), at the end back."""
        views = list(self.query(MessageView))
        place = views.index(self.focused) + by if isinstance(self.focused, MessageView) else len(views) - 1
        place = max(place, 0)
        if place < len(views):
            views[place].focus()
            self.query_one(Transcript).release_anchor()
            views[place].scroll_visible(animate=False)
        else:
            self.query_one(PromptInput).focus()

    def action_tree_step(self, by: int) -> None:
        """Goes through the steps of the reply."""
        self.query_one(TreePanel).move(by)

    def action_scroll_text(self, by: int) -> None:
        """Scrolls the conversation by a page, up (−1) or down (1)."""
        transcript = self.query_one(Transcript)
        if by < 0:
            transcript.scroll_page_up(animate=False)
        else:
            transcript.scroll_page_down(animate=False)

    async def action_version(self, by: int) -> None:
        """Shows another version of the message that F7 and F8 walk."""
        with self.complaints():
            found = self.conversation.branches(self.conversation.messages())
            if self.writing or self._branch >= len(found):
                return
            shown = self.conversation.walk(found[self._branch][0], by)
            if shown is not None:
                below = self.conversation.branches(self.conversation.messages())
                level = [message.id for message, _, _ in below].index(shown.id)
                await self._show_branch(level, shown)

    async def action_branch(self) -> None:
        """Has F7 and F8 walk the versions of an earlier message, after the first one of the last again."""
        with self.complaints():
            found = self.conversation.branches(self.conversation.messages())
            if found and not self.writing:
                level = (self._branch + 1) % len(found)
                await self._show_branch(level, found[level][0])

    async def _show_branch(self, level: int, message: Message) -> None:
        await self.show_conversation(level)
        await self.query_one(Transcript).reveal(message.id)

    def action_stop(self) -> None:
        """Stops the reply; what was written stays, and what waits can be edited. Before that, gives up an edit."""
        if self.editing is not None:
            return stop_editing(self)
        self._give_back()
        self.client.stop()

    def action_interrupt(self) -> None:
        """Ctrl+C: copies what is selected, else stops the reply, else leaves at the second press."""
        if self.query_one(PromptInput).selected_text:
            self.query_one(PromptInput).action_copy()
        elif self.get_selected_text():
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
