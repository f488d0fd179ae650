"""Chats as files: JSON holds every branch, Markdown the branch that is shown. Both can be read back."""

import json
import re
from typing import Any

from app.store import Chat, Message, Store
from models.errors import UsageError

FORM = "dart-chat 1"  # written into JSON files
ROLES = ("system", "user", "assistant")
STATES = ("complete", "stopped", "failed")
# A line of its own before each message. One that stands in a message is written with one more `-`.
MARK = re.compile(r"^<!--(-*) (system|user|assistant) -->$", re.MULTILINE)


def export_markdown(store: Store, chat_id: int) -> str:
    """The shown branch. Comments that no reader displays say whose each part is."""
    chat = wanted(store, chat_id)
    parts = [f"# {chat.title}"]
    messages = [(message.role, message.content) for message in store.path(chat_id)]
    for role, content in [("system", chat.system)] * bool(chat.system) + messages:
        shown = MARK.sub(r"<!--\1- \2 -->", content)
        parts.append(f"<!-- {role} -->\n**{role.capitalize()}**\n\n{shown}")
    return "\n\n".join(parts) + "\n"


def export_json(store: Store, chat_id: int) -> str:
    """Every message of every branch, as one object."""
    chat = wanted(store, chat_id)
    shown = store.path(chat_id)
    value = {
        "form": FORM,
        "title": chat.title,
        "system": chat.system,
        "model": chat.model,
        "shown": shown[-1].id if shown else None,
        "messages": [to_dict(message) for message in store.messages(chat_id)],
    }
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def import_chat(store: Store, text: str) -> int:
    """Adds a chat from what `export_json` or `export_markdown` wrote, or from a JSON list of messages.

    These need `role` and `content`. Returns the new chat's id. Raises UsageError, with nothing added, where
    the text is none of these.
    """
    if text.lstrip()[:1] in ("{", "["):
        return import_json(store, text)
    marks = list(MARK.finditer(text))
    marks = [mark for mark in marks if not mark[1]]
    if not marks:
        raise UsageError("this is no exported chat", "import a file that dart-chat --export wrote")
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    messages = []
    for number, (mark, end) in enumerate(zip(marks, ends, strict=True), 1):
        role = mark[2]
        content = text[mark.end() : end].removeprefix(f"\n**{role.capitalize()}**\n\n")
        content = content.removesuffix("\n\n" if end < len(text) else "\n")
        content = MARK.sub(lambda match: f"<!--{match[1][1:]} {match[2]} -->", content)
        messages.append({"id": number, "parent_id": number - 1 or None, "role": role, "content": content})
    title = re.match(r"# (.*)", text)
    return add_chat(store, {"title": title[1] if title else "", "messages": messages})


def import_json(store: Store, text: str) -> int:
    """Adds a chat from JSON. Raises UsageError."""
    try:
        value = json.loads(text)
        if isinstance(value, list):
            value = {"messages": value}
        messages = [
            {"id": number, "parent_id": number - 1 or None, **message}
            for number, message in enumerate(value["messages"], 1)
        ]
        known: set[Any] = {None}
        for message in messages:
            if message["role"] not in ROLES or not isinstance(message["content"], str):
                raise ValueError(f"not a message: {message}")
            if message["parent_id"] not in known:
                raise ValueError(f"message {message['id']} comes before the one it answers")
            known.add(message["id"])
        return add_chat(store, {**value, "messages": messages})
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"this is no exported chat: {error}", "import what dart-chat --export wrote") from error


def add_chat(store: Store, value: dict[str, Any]) -> int:
    """Writes a checked chat; a system message at the beginning becomes the chat's system prompt."""
    messages = value["messages"]
    system = str(value.get("system", ""))
    if messages and messages[0]["role"] == "system":
        system = messages[0]["content"]
        new_ids: dict[Any, int | None] = {None: None, messages[0]["id"]: None}
        messages = messages[1:]
    else:
        new_ids = {None: None}
    with store.transaction():
        chat_id = store.new_chat(str(value.get("model", "")), system)
        for message in messages:
            state = message.get("state", "complete")
            if state not in STATES:
                state = "stopped"
            content, stats = message["content"], str(message.get("stats_json", ""))
            new_ids[message["id"]] = message_id = store.add_message(
                chat_id,
                new_ids[message["parent_id"]],
                message["role"],
                content,
                state,
                str(message.get("model", "")),
                stats,
            )
            if reasoning := message.get("reasoning"):
                store.update_message(message_id, content, state, stats, str(reasoning))
        if title := value.get("title"):
            store.rename(chat_id, str(title))
        shown = new_ids.get(value.get("shown"))
        if shown is not None:
            store.set_leaf(chat_id, shown)
    return chat_id


def wanted(store: Store, chat_id: int) -> Chat:
    """The chat. Raises UsageError where there is none."""
    chat = store.chat(chat_id)
    if chat is None:
        raise UsageError(f"there is no chat {chat_id}", "see dart-chat --list")
    return chat


def to_dict(message: Message) -> dict[str, Any]:
    """A message's fields, without the chat's number, which another database gives anew."""
    return {name: getattr(message, name) for name in Message.__slots__ if name != "chat_id"}
