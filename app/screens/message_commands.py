"""What can be done with any message of the conversation, not only with the last one."""

from dataclasses import replace
from typing import TYPE_CHECKING

from app.store import Message
from app.widgets.prompt_input import PromptInput
from app.widgets.transcript import Transcript
from models.errors import UsageError

if TYPE_CHECKING:
    from app.screens.chat import ChatScreen


async def do_with_message(screen: "ChatScreen", action: str, shown: Message) -> None:
    """Does what a key asked for on a message. Raises UsageError while a reply is being written."""
    from app.screens.chat_commands import copy_to_clipboard, open_chat

    if action == "copy":
        return copy_to_clipboard(screen, screen.conversation.message(shown.id).content)
    if screen.writing is not None:
        raise UsageError("a reply is being written", "press Esc in the input to stop it first")
    message = screen.conversation.message(shown.id)
    match action:
        case "edit":
            begin_editing(screen, message)
        case "again":
            await write_again(screen, message if message.role == "user" else screen.conversation.question(message))
        case "branch":
            await open_chat(screen, screen.conversation.fork(message.id))
            screen.notify("A new chat, up to this message. The one before is kept (Ctrl+O).")
        case "before" | "after":
            other = screen.conversation.walk(message, -1 if action == "before" else 1)
            if other is not None:
                await screen.show_conversation()
                await screen.query_one(Transcript).reveal(other.id, focus=True)


async def write_again(screen: "ChatScreen", question: Message) -> None:
    """Another reply to a question, with the next seed where the text is sampled."""
    screen.settings = replace(screen.settings, seed=screen.settings.seed + 1)
    screen.query_one(PromptInput).focus()
    await screen.answer(question)


def begin_editing(screen: "ChatScreen", message: Message) -> None:
    """Puts a message into the input, to be sent on a branch of its own."""
    screen.editing = message
    prompt = screen.query_one(PromptInput)
    prompt.border_title = f"Editing {'a question' if message.role == 'user' else 'a reply'}: Esc leaves it as it was"
    prompt.write(message.content)
    prompt.focus()
    screen.refresh_bindings()


def stop_editing(screen: "ChatScreen") -> None:
    """Leaves the message as it was."""
    screen.editing = None
    prompt = screen.query_one(PromptInput)
    prompt.border_title, prompt.text = "", ""
    screen.refresh_bindings()


async def finish_editing(screen: "ChatScreen", text: str) -> None:
    """Stores the text beside the message that was edited; a question is answered."""
    message = screen.editing
    assert message is not None
    screen.conversation.edit(message, text)
    stop_editing(screen)
    await screen.show_conversation()
    if message.role == "user":
        await screen.answer()
