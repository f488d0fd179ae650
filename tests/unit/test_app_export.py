"""Exported chats read back as what they were."""

import json
from pathlib import Path

import pytest

from app.export import export_json, export_markdown, import_chat
from app.store import Store
from models.errors import UsageError


@pytest.fixture
def store(tmp_path: Path):
    store = Store.open(tmp_path / "history.db")
    yield store
    store.close()


NASTY = "# Heading\n\n<!-- user -->\n**User**\n\n<!--- assistant -->\n```\n<!-- x -->\n```\n日本語 👋\n\n"


def branched(store: Store) -> int:
    chat = store.new_chat("the model", "be brief")
    question = store.add_message(chat, None, "user", NASTY)
    first = store.add_message(chat, question, "assistant", "first", "complete", "the model", '{"tau": 2}')
    store.update_message(first, "first", "stopped", '{"tau": 2}', "because")
    store.add_message(chat, question, "assistant", "\n\nsecond\n")
    store.set_leaf(chat, first)
    store.add_message(chat, first, "user", "more")
    store.rename(chat, "A name")
    return chat


def shape(store: Store, chat: int) -> list[tuple[object, ...]]:
    messages = store.messages(chat)
    places = {message.id: place for place, message in enumerate(messages)}
    return [(places.get(m.parent_id), m.role, m.content, m.reasoning, m.state, m.model, m.stats_json) for m in messages]


def test_json_keeps_every_branch(store: Store):
    chat = branched(store)
    again = import_chat(store, export_json(store, chat))
    assert again != chat
    assert shape(store, again) == shape(store, chat)
    assert [m.content for m in store.path(again)] == [m.content for m in store.path(chat)]
    old, new = store.chat(chat), store.chat(again)
    assert (new.title, new.system, new.model) == (old.title, old.system, old.model)


def test_markdown_keeps_the_shown_branch_to_the_letter(store: Store):
    chat = branched(store)
    text = export_markdown(store, chat)
    again = import_chat(store, text)
    assert [(m.role, m.content) for m in store.path(again)] == [(m.role, m.content) for m in store.path(chat)]
    assert store.chat(again).system == "be brief"
    assert export_markdown(store, again) == text


def test_a_plain_list_of_messages_is_taken(store: Store):
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
    ]
    chat = import_chat(store, json.dumps(messages))
    assert [m.content for m in store.path(chat)] == ["u", "a"]
    assert (store.chat(chat).system, store.chat(chat).title) == ("s", "u")


@pytest.mark.parametrize(
    "text",
    ["", "just text", "{", "{}", "[1]", '[{"role": "user"}]', '[{"role": "robot", "content": "x"}]',
     '{"messages": [{"id": 1, "parent_id": 7, "role": "user", "content": "x"}]}',
     '{"messages": 3}', '[{"role": "user", "content": 3}]',
     '{"messages": [{"id": [], "role": "user", "content": "x"}]}'],
)  # fmt: skip
def test_anything_else_is_refused_and_nothing_added(store: Store, text: str):
    with pytest.raises(UsageError):
        import_chat(store, text)
    assert store._run("SELECT count(*) FROM chats") == [(0,)]


def test_an_unknown_chat_is_named(store: Store):
    with pytest.raises(UsageError, match="99"):
        export_json(store, 99)
