"""Slash commands: what they are called, how they are typed, what they do."""

import re
from dataclasses import dataclass, replace
from typing import Any

from app.settings import TYPES, Settings, checked, from_text
from models.errors import UsageError

CHOSEN_AT_OPENING = ("model", "context", "threads", "head", "ngram")  # settings that a model is opened with


@dataclass(frozen=True, slots=True)
class Command:
    """`usage` is typed, `help` says what it does. `app.screens.chat_commands` does it."""

    usage: str
    help: str

    @property
    def name(self) -> str:
        """The word after the slash."""
        return self.usage.split()[0][1:]

    @property
    def wants_argument(self) -> bool:
        """Something must follow the name."""
        return " " in self.usage and "[" not in self.usage


COMMANDS = (
    Command("/help", "keys and commands"),
    Command("/new", "a new chat"),
    Command("/chats [WORDS]", "earlier chats, or those that hold the words"),
    Command("/search WORDS", "search in all chats"),
    Command("/regen", "write the last reply again, beside the one there is"),
    Command("/edit [TEXT]", "ask the last question differently, on a branch of its own"),
    Command("/continue", "go on with the last reply"),
    Command("/branch", "a new chat that begins with all that was said here"),
    Command("/rename TITLE", "another title for this chat"),
    Command("/pin", "keep this chat at the top of the list, or no longer"),
    Command("/system [TEXT]", "the system prompt of this chat; none takes it away"),
    Command("/set [NAME VALUE]", "a setting, such as temperature 0.7; alone: all of them"),
    Command("/tree", "show or hide the draft tree"),
    Command("/draft on|off", "drafting; the text is the same, only slower without"),
    Command("/compare", "write the last reply with and without drafting, and compare"),
    Command("/model [NAME]", "another model: default, directory, .gguf file, cached hub id; alone: a list"),
    Command("/copy [N]", "copy the last reply, or its code block N"),
    Command("/save [FILE]", "write this chat to a file: Markdown, or .json with all branches"),
    Command("/import FILE", "add a chat that was saved"),
    Command("/theme NAME", "dark, light, ansi, contrast, or one of Textual's"),
    Command("/quit", "leave; everything is kept"),
)


def is_command(text: str) -> bool:
    """Whether a text is meant as a command: `/home/me` and `//` are not."""
    return text.startswith("/") and "/" not in text.split(maxsplit=1)[0][1:]


def parse(text: str) -> tuple[Command, str]:
    """The command in `text` and its argument. Raises UsageError for one that does not exist."""
    word, argument = re.fullmatch(r"/?(\S*)\s*(.*)", text.strip(), re.DOTALL).groups()  # type: ignore[union-attr]
    matches = [command for command in COMMANDS if command.name.startswith(word)] if word else []
    exact = [command for command in matches if command.name == word]
    if not matches:
        raise UsageError(f"no such command: /{word}", "/help has them all; a space before it makes it a message")
    if len(exact or matches) != 1:
        raise UsageError(f"/{word} may be {', '.join(f'/{command.name}' for command in matches)}", "write it out")
    return (exact or matches)[0], argument


def with_setting(settings: Settings, argument: str) -> Settings:
    """The settings with "NAME VALUE" applied; "NAME none" gives it back to the model. Raises UsageError."""
    name, _, value = argument.partition(" ")
    name = name.replace("-", "_")
    if name in CHOSEN_AT_OPENING:
        raise UsageError(f"{name} is chosen when a model is opened", "use /model NAME, or start again with the flag")
    if name not in TYPES:
        raise UsageError(f"there is no setting {name!r}", f"known: {', '.join(TYPES)}")
    if value == "none":
        return replace(settings, **{name: getattr(Settings(), name)})
    parsed: Any = checked(name, from_text(value.strip(), TYPES[name], name), "/set")
    return replace(settings, **{name: parsed})


def describe(settings: Settings) -> str:
    """All settings, a line each."""
    return "\n".join(f"{name} = {getattr(settings, name)!r}" for name in TYPES)


def code_blocks(markdown: str) -> list[str]:
    """The fenced code blocks of a text, in order."""
    from markdown_it import MarkdownIt

    return [token.content for token in MarkdownIt("gfm-like").parse(markdown) if token.type == "fence"]
