"""What the slash commands do to the chat screen."""

import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.commands import code_blocks, describe, with_setting
from app.comparison import other_way
from app.conversation import Conversation
from app.screens.message_commands import begin_editing, finish_editing, write_again
from app.widgets.tree_panel import TreePanel
from models.errors import UsageError

if TYPE_CHECKING:
    from app.screens.chat import ChatScreen

Run = Callable[["ChatScreen", str], Awaitable[None]]


async def run_command(screen: "ChatScreen", name: str, argument: str) -> None:
    """Does the command. Raises UsageError with what is wrong."""
    if name in WHILE_IDLE and screen.writing is not None:
        raise UsageError("a reply is being written", "press Esc to stop it first")
    await RUN[name](screen, argument)


async def show_help(screen: "ChatScreen", argument: str) -> None:
    """Keys and commands."""
    from app.screens.help import HelpScreen

    screen.app.push_screen(HelpScreen())


async def new_chat(screen: "ChatScreen", argument: str) -> None:
    """An empty chat; the one before is kept."""
    await open_chat(screen, None)


async def open_chat(screen: "ChatScreen", chat_id: int | None) -> None:
    """Shows another chat."""
    screen.conversation = Conversation(screen.conversation.store, chat_id)
    screen.last = screen.editing = None
    screen.query_one(TreePanel).clear()
    await screen.show_conversation()


async def choose_chat(screen: "ChatScreen", words: str) -> None:
    """The list of chats."""
    from app.screens.chats import ChatsScreen

    async def chosen(chat_id: int | None) -> None:
        if chat_id is not None:
            with screen.complaints():
                await open_chat(screen, chat_id)

    screen.app.push_screen(ChatsScreen(screen.conversation.store, words), chosen)


async def regenerate(screen: "ChatScreen", argument: str) -> None:
    """Another reply to the last question."""
    await write_again(screen, screen.conversation.last_question())


async def go_on(screen: "ChatScreen", argument: str) -> None:
    """Continues the last reply."""
    await screen.answer(begun=screen.conversation.last_reply())


async def edit(screen: "ChatScreen", text: str) -> None:
    """Asks the last question differently."""
    begin_editing(screen, screen.conversation.last_question())
    if text:
        await finish_editing(screen, text)


async def system(screen: "ChatScreen", text: str) -> None:
    """Sets or shows the system prompt."""
    if text:
        screen.conversation.set_system("" if text == "none" else text)
    chosen = screen.conversation.system
    if chosen is None:  # a chat that has not begun takes the setting
        chosen = screen.settings.system
    screen.notify(f"system prompt: {chosen or 'none'}", markup=False)


async def change_setting(screen: "ChatScreen", argument: str) -> None:
    """Changes a setting, or shows all."""
    if argument:
        screen.settings = with_setting(screen.settings, argument)
        if argument.startswith("theme"):
            await theme(screen, screen.settings.theme)
    screen.notify(argument or describe(screen.settings), timeout=10, markup=False)
    screen.show_status()


async def tree(screen: "ChatScreen", argument: str) -> None:
    """Shows or hides the draft tree."""
    panel = screen.query_one(TreePanel)
    panel.toggle_class("-shown")
    screen.refresh_bindings()
    panel.call_after_refresh(panel.redraw)


async def draft(screen: "ChatScreen", argument: str) -> None:
    """Switches drafting on or off from the next reply on."""
    if argument not in ("on", "off"):
        raise UsageError("drafting is on or off", "/draft on")
    screen.settings = replace(screen.settings, draft=argument == "on")
    screen.show_status()


async def model(screen: "ChatScreen", name: str) -> None:
    """Opens another model in place of this one, or shows those there are; the chat stays."""
    if not name:
        from app.screens.models import ModelsScreen

        async def chosen(spec: str | None) -> None:
            if spec:
                await screen.command(f"/model {spec}")

        screen.app.push_screen(ModelsScreen(), chosen)
        return
    screen.settings = replace(screen.settings, model=name)
    screen.model, screen.load_failed = None, False
    screen.client.start(screen.settings.engine_options())
    screen.show_status()


async def compare(screen: "ChatScreen", argument: str) -> None:
    """Writes the last reply again with drafting switched, as a version of its own, and says how the two compare."""
    last = screen.conversation.last_reply()
    await screen.answer(screen.conversation.question(last), options=other_way(last))
    screen.comparing = last


async def copy(screen: "ChatScreen", number: str) -> None:
    """Copies the last reply, or one of its code blocks."""
    text = screen.conversation.last_reply().content
    if number:
        blocks = code_blocks(text)
        if not number.isdecimal() or not 1 <= int(number) <= len(blocks):
            raise UsageError(f"the last reply has {len(blocks)} code blocks", "/copy 1")
        text = blocks[int(number) - 1]
    copy_to_clipboard(screen, text)


def copy_to_clipboard(screen: "ChatScreen", text: str) -> None:
    """Copies a text and says where it went. Raises UsageError."""
    from app.clipboard import copy as copy_text
    from app.paths import exports_dir

    try:
        said = copy_text(text, sys.__stderr__ or sys.stderr, exports_dir() / "copied.txt")
    except OSError as error:
        raise UsageError(f"cannot copy: {error}", "/save FILE") from error
    screen.notify(said, markup=False)


async def save(screen: "ChatScreen", name: str) -> None:
    """Writes the chat as Markdown, or as JSON where the file's name says so."""
    from app.export import export_json, export_markdown
    from app.paths import exports_dir

    chat = screen.conversation.stored()
    path = Path(name).expanduser() if name else exports_dir() / f"chat-{chat.id}.md"
    form = export_json if path.suffix == ".json" else export_markdown
    try:
        if not name:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(form(screen.conversation.store, chat.id), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "/save FILE") from error
    screen.notify(f"written to {path}", markup=False)


async def import_file(screen: "ChatScreen", name: str) -> None:
    """Adds a chat from a file and opens it."""
    from app.export import import_chat

    path = Path(name).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "/import FILE") from error
    await open_chat(screen, import_chat(screen.conversation.store, text))


async def branch(screen: "ChatScreen", argument: str) -> None:
    """Goes on in a new chat with all that was said; this one stays as it is."""
    await open_chat(screen, screen.conversation.fork())
    screen.notify("This is a new chat with all that was said. The one before is kept (Ctrl+O).")


async def rename(screen: "ChatScreen", title: str) -> None:
    """Gives the chat another title."""
    if not title:
        raise UsageError("which title?", "/rename TITLE")
    screen.conversation.store.rename(screen.conversation.stored().id, title)
    screen.notify(f"this chat is now called {title}", markup=False)


async def pin(screen: "ChatScreen", argument: str) -> None:
    """Keeps the chat at the top of the list, or no longer."""
    chat = screen.conversation.stored()
    screen.conversation.store.pin(chat.id, not chat.pinned)
    screen.notify("no longer at the top of the list" if chat.pinned else "kept at the top of the list")


async def theme(screen: "ChatScreen", name: str) -> None:
    """Changes the colours."""
    from app.app import DartChat

    assert isinstance(screen.app, DartChat)
    screen.app.choose_theme(name)


async def leave(screen: "ChatScreen", argument: str) -> None:
    """Ends the chat; everything is kept."""
    screen.app.exit()


RUN: dict[str, Run] = {
    "help": show_help,
    "new": new_chat,
    "chats": choose_chat,
    "search": choose_chat,
    "branch": branch,
    "rename": rename,
    "pin": pin,
    "import": import_file,
    "regen": regenerate,
    "continue": go_on,
    "edit": edit,
    "system": system,
    "set": change_setting,
    "tree": tree,
    "draft": draft,
    "model": model,
    "compare": compare,
    "copy": copy,
    "save": save,
    "theme": theme,
    "quit": leave,
}
WHILE_IDLE = ("new", "chats", "search", "import", "branch", "regen", "continue", "compare", "edit", "model")
