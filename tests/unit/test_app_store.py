"""The store: branches, search, and what happens to the file when things go wrong."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app import database
from app import store as store_module
from app.migrations import STEPS
from app.store import Store, StoreError, make_title

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "history.db"


@pytest.fixture
def store(path: Path):
    store = Store.open(path)
    yield store
    store.close()


def contents(store: Store, chat: int) -> list[str]:
    return [message.content for message in store.path(chat)]


def test_a_chat_is_read_back_by_another_connection(store: Store, path: Path):
    chat = store.new_chat("m", "be brief")
    question = store.add_message(chat, None, "user", "Hello")
    reply = store.add_message(chat, question, "assistant", "", "streaming", "m")
    store.update_message(reply, "Hi", "streaming")
    store.update_message(reply, "Hi there", "complete", '{"tau": 2}', "thinking")
    other = Store.open(path)
    first, second = other.path(chat)
    other.close()
    assert (first.role, first.content, first.parent_id, first.state) == ("user", "Hello", None, "complete")
    assert (second.content, second.reasoning, second.state) == ("Hi there", "thinking", "complete")
    assert (second.parent_id, second.model, second.stats_json) == (first.id, "m", '{"tau": 2}')


def test_regenerating_adds_a_sibling_and_branches_can_be_walked(store: Store):
    chat = store.new_chat("m")
    question = store.add_message(chat, None, "user", "q")
    first = store.add_message(chat, question, "assistant", "first")
    store.add_message(chat, first, "user", "follow-up")
    second = store.add_message(chat, question, "assistant", "second")
    assert contents(store, chat) == ["q", "second"]
    assert [message.id for message in store.siblings(first)] == [first, second]
    store.set_leaf(chat, first)
    assert contents(store, chat) == ["q", "first", "follow-up"]
    store.set_leaf(chat, second)
    assert contents(store, chat) == ["q", "second"]
    assert [message.content for message in store.path(chat, first)] == ["q", "first"]


def test_editing_the_first_message_makes_a_second_beginning(store: Store):
    chat, other = store.new_chat("m"), store.new_chat("m")
    store.add_message(other, None, "user", "elsewhere")
    first = store.add_message(chat, None, "user", "one")
    second = store.add_message(chat, None, "user", "two")
    assert [message.id for message in store.siblings(second)] == [first, second]


def test_a_leaf_of_another_chat_is_not_taken(store: Store):
    chat, other = store.new_chat("m"), store.new_chat("m")
    store.add_message(chat, None, "user", "mine")
    foreign = store.add_message(other, None, "user", "theirs")
    store.set_leaf(chat, foreign)
    assert contents(store, chat) == ["mine"]
    assert store.path(chat, foreign) == []


def test_search_finds_parts_of_words_in_any_script_on_any_branch(store: Store):
    chat = store.new_chat("m")
    question = store.add_message(chat, None, "user", "Tell me about Übersetzung und 日本語の文法")
    store.add_message(chat, question, "assistant", 'vector<int> costs 100% of "nothing"')
    store.add_message(chat, question, "assistant", "the branch that is shown")
    other = store.new_chat("m")
    store.add_message(other, None, "user", "unrelated")
    for query in (
        "übersetz",
        "日本語",
        "文法",
        "vector<int>",
        "about me",
        "100%",
        '"nothing"',
        "costs nothing",
    ):
        assert [found.id for found in store.chats(query)] == [chat], query
    assert store.chats("costs branch") == []  # no single message holds both


@pytest.mark.parametrize(
    "query", ['"', "*", "NEAR(", "z OR", "NOT", "col:", "^", "-", "(", "'; DROP", "\0x", "%%%", "__"]
)
def test_search_has_no_syntax(store: Store, query: str):
    chat = store.new_chat("m")
    store.add_message(chat, None, "user", "ordinary words")
    assert store.chats(query) == []
    assert len(store.chats()) == 1


def test_search_finds_renamed_titles_and_shows_the_place(store: Store):
    chat = store.new_chat("m")
    store.add_message(chat, None, "user", "filler " * 100 + "needle at the end")
    assert "needle" in store.chats("needle")[0].snippet
    store.rename(chat, "Tax return")
    assert [found.title for found in store.chats("tax ret")] == ["Tax return"]


def test_lists_are_pinned_first_then_newest_and_without_empty_chats(store: Store):
    first, second, third = (store.new_chat("m") for _ in range(3))
    store.new_chat("m")
    for chat in (first, second, third):
        store.add_message(chat, None, "user", f"chat {chat}")
    store.pin(first)
    assert [chat.id for chat in store.chats()] == [first, third, second]
    store.pin(first, False)
    assert [chat.id for chat in store.chats()] == [third, second, first]
    assert store.latest() == third


def test_deleting_can_be_undone_until_a_week_has_passed(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch):
    chat = store.new_chat("m")
    store.add_message(chat, None, "user", "secret plans")
    store.delete(chat)
    assert (store.chats(), store.chats("secret"), store.latest()) == ([], [], None)
    store.undelete(chat)
    assert len(store.chats("secret")) == 1
    store.delete(chat)
    Store.open(path).close()
    assert store.chat(chat) is not None
    monkeypatch.setattr(store_module, "KEEP_DELETED_SECONDS", -1)
    Store.open(path).close()
    assert store.chat(chat) is None
    assert store._run("SELECT count(*) FROM texts") == [(0,)]


def test_titles_come_from_the_first_user_message(store: Store):
    chat = store.new_chat("m")
    store.add_message(chat, None, "user", "\n  First line \nsecond")
    store.add_message(chat, None, "user", "later")
    assert store.chats()[0].title == "First line"
    assert make_title("word " * 40).endswith("word…")
    assert len(make_title("x" * 200)) == 60
    assert make_title("\x1b[31mred") == "[31mred"


def test_a_failed_transaction_leaves_nothing(store: Store):
    chat = store.new_chat("m")

    def write_two() -> None:
        with store.transaction():
            store.add_message(chat, None, "user", "kept?")
            store.add_message(chat, 12345, "user", "no such parent")

    with pytest.raises(sqlite3.IntegrityError):
        write_two()
    assert store.path(chat) == []
    store.add_message(chat, None, "user", "afterwards")
    assert contents(store, chat) == ["afterwards"]


WRITER = """
import sys
from pathlib import Path
from app.store import Store
store = Store.open(Path(sys.argv[1]))
chat = store.new_chat("m")
question = store.add_message(chat, None, "user", "count")
reply = store.add_message(chat, question, "assistant", "", "streaming")
number = 0
while True:
    number += 1
    store.update_message(reply, "x" * number, "streaming")
    print(number, flush=True)
"""


def test_kill_9_while_writing_loses_nothing_that_was_written(path: Path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    said += [int(line) for line in process.stdout.read().splitlines() if line]
    process.wait()
    process.stdout.close()
    store = Store.open(path)
    question, reply = store.path(1)
    store.close()
    assert question.content == "count"
    assert reply.state == "stopped"
    assert said[-1] <= len(reply.content) <= said[-1] + 1


def test_what_a_living_process_writes_stays_streaming(path: Path):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        store = Store.open(path)
        assert store.path(1)[1].state == "streaming"
        store.close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_leftover_of_an_earlier_process_with_this_id_is_stopped(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
):
    chat = store.new_chat("m")
    store.add_message(chat, None, "assistant", "half", "streaming")
    Store.open(path).close()
    assert store.path(chat)[0].state == "streaming"
    monkeypatch.setattr(store_module, "PROCESS_STARTED", time.time() + 1)
    Store.open(path).close()
    assert store.path(chat)[0].state == "stopped"
    assert len(store.chats("half")) == 1


def refused(path: Path) -> StoreError:
    """The error of opening `path`, after checking that the file is byte for byte what it was."""
    before = path.read_bytes()
    with pytest.raises(StoreError) as error:
        Store.open(path)
    assert path.read_bytes() == before
    return error.value


def filled(path: Path) -> None:
    store = Store.open(path)
    chat = store.new_chat("m")
    for number in range(200):
        store.add_message(chat, None, "user", f"{number} " * 200)
    store.close()


def test_a_newer_database_is_left_alone(path: Path):
    filled(path)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    connection.close()
    error = refused(path)
    assert "newer" in error.cause
    assert "update dart-chat" in error.hint


@pytest.mark.parametrize("damage", ["garbage", "truncated", "page", "foreign"])
def test_a_damaged_or_foreign_file_is_left_alone(path: Path, damage: str):
    filled(path)
    whole = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(b"this is a text file\n" * 100)
    elif damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "page":
        path.write_bytes(whole[: 4096 * 9] + b"\xff" * 4096 * 4 + whole[4096 * 13 :])
    else:
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE recipes (name)")
        connection.close()
    error = refused(path)
    assert str(path) in error.cause
    assert error.hint


def test_an_older_database_is_brought_forward_with_its_chats(path: Path, monkeypatch: pytest.MonkeyPatch):
    filled(path)
    step = ("ALTER TABLE chats ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'",)
    monkeypatch.setattr(database, "STEPS", (*STEPS, step))
    store = Store.open(path)
    assert store._run("SELECT colour FROM chats") == [("blue",)]
    assert len(store.messages(1)) == 200
    assert store._run("PRAGMA user_version") == [(len(STEPS) + 1,)]
    store.close()


def test_a_step_that_fails_leaves_the_old_form(path: Path, monkeypatch: pytest.MonkeyPatch):
    filled(path)
    broken = ("CREATE TABLE halfway (x)", "CREATE TABLE chats (x)")
    monkeypatch.setattr(database, "STEPS", (*STEPS, broken))
    with pytest.raises(StoreError):
        Store.open(path)
    monkeypatch.undo()
    store = Store.open(path)
    assert store._run("SELECT count(*) FROM sqlite_master WHERE name = 'halfway'") == [(0,)]
    store.close()


def test_files_are_for_the_user_alone(store: Store, path: Path):
    store.new_chat("m")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match=str(tmp_path)):
        Store.open(tmp_path / "data" / "history.db")


def test_a_path_below_a_file_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        Store.open(tmp_path / "file" / "history.db")
