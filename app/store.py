"""Every chat, in one SQLite file, written before and while text streams.

Messages form a tree: a reply written again or a question asked differently is a sibling, and nothing is
overwritten. A chat remembers the leaf that was last shown.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.database import StoreError as StoreError
from app.database import database_errors, open_database

KEEP_DELETED_SECONDS = 7 * 24 * 3600  # a deleted chat can be brought back for this long
TITLE_LENGTH = 60
PROCESS_STARTED = time.time()

MESSAGE_FIELDS = "id, chat_id, parent_id, role, content, reasoning, state, created, model, stats_json"


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `created` is in seconds since 1970; `state` streaming, complete, stopped or failed."""

    id: int
    chat_id: int
    parent_id: int | None
    role: str
    content: str
    reasoning: str
    state: str
    created: float
    model: str
    stats_json: str


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat in a list. `snippet` is its last text, or the one that was searched for."""

    id: int
    title: str
    pinned: bool
    updated: float
    model: str
    snippet: str
    system: str


class Store:
    """The database. Make it with `Store.open`; use it in the thread that opened it."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self.file = path

    @classmethod
    def open(cls, path: Path) -> "Store":
        """Opens the file, made or brought to the newest form where needed.

        Raises StoreError, with the file untouched, where it is damaged, no database, from a newer version of
        this program, or cannot be read or written.
        """
        store = cls(open_database(path), path)
        store._settle()
        return store

    def close(self) -> None:
        """Closes the file. Everything is written already."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside is kept, or nothing of it; may be nested."""
        if self._db.in_transaction:
            yield
            return
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a full disk may have ended it already
                self._run("ROLLBACK")
            raise

    def new_chat(self, model: str, system: str = "") -> int:
        """An empty chat; lists show it once it has a message."""
        now = time.time()
        return self._insert(
            "INSERT INTO chats (model, system, created, updated) VALUES (?, ?, ?, ?)", model, system, now, now
        )

    def chat(self, chat_id: int) -> Chat | None:
        """The chat, deleted or not, or None."""
        rows = self._run("SELECT id, title, pinned, updated, model, '', system FROM chats WHERE id = ?", chat_id)
        return to_chat(rows[0]) if rows else None

    def add_message(
        self,
        chat_id: int,
        parent_id: int | None,
        role: str,
        content: str,
        state: str = "complete",
        model: str = "",
        stats_json: str = "",
    ) -> int:
        """Adds a message below `parent_id` (None begins the chat) and shows it; returns its id.

        The first user message gives the chat its title.
        """
        now = time.time()
        with self.transaction():
            message_id = self._insert(
                "INSERT INTO messages"
                " (chat_id, parent_id, role, content, state, created, model, stats_json, writer)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                *(chat_id, parent_id, role, content, state, now, model, stats_json, os.getpid()),
            )
            self._run(
                "UPDATE chats SET leaf_id = ?, updated = ?, model = iif(? = '', model, ?) WHERE id = ?",
                *(message_id, now, model, model, chat_id),
            )
            if role == "user":
                self._run("UPDATE chats SET title = ? WHERE id = ? AND title = ''", make_title(content), chat_id)
        return message_id

    def update_message(
        self, message_id: int, content: str, state: str, stats_json: str = "", reasoning: str = ""
    ) -> None:
        """Replaces what a message says: a reply while it grows, then once more when it ends."""
        self._run(
            "UPDATE messages SET content = ?, state = ?, stats_json = ?, reasoning = ?, writer = ? WHERE id = ?",
            *(content, state, stats_json, reasoning, os.getpid(), message_id),
        )

    def path(self, chat_id: int, leaf_id: int | None = None) -> list[Message]:
        """Messages from the first to `leaf_id`, or to the leaf that was shown last."""
        rows = self._run(
            f"""
            WITH RECURSIVE line (id, up, height) AS (
                SELECT id, parent_id, 0 FROM messages
                WHERE chat_id = :chat
                    AND id = coalesce(:leaf, (SELECT leaf_id FROM chats WHERE id = :chat))
                UNION ALL
                SELECT above.id, above.parent_id, height + 1
                FROM messages AS above JOIN line ON above.id = line.up
            )
            SELECT {MESSAGE_FIELDS} FROM messages JOIN line USING (id) ORDER BY height DESC
            """,
            chat=chat_id,
            leaf=leaf_id,
        )
        return [Message(*row) for row in rows]

    def siblings(self, message_id: int) -> list[Message]:
        """The message and the others at its place, oldest first."""
        rows = self._run(
            f"""
            SELECT {MESSAGE_FIELDS} FROM messages
            WHERE (chat_id, ifnull(parent_id, 0)) =
                (SELECT chat_id, ifnull(parent_id, 0) FROM messages WHERE id = ?)
            ORDER BY id
            """,
            message_id,
        )
        return [Message(*row) for row in rows]

    def messages(self, chat_id: int) -> list[Message]:
        """Every message of every branch, parents first."""
        rows = self._run(f"SELECT {MESSAGE_FIELDS} FROM messages WHERE chat_id = ? ORDER BY id", chat_id)
        return [Message(*row) for row in rows]

    def set_leaf(self, chat_id: int, message_id: int) -> None:
        """Shows the branch that goes through a message, as far as its newest continuation."""
        self._run(
            """
            WITH RECURSIVE down (id) AS (
                SELECT id FROM messages WHERE id = :message AND chat_id = :chat
                UNION ALL
                SELECT (SELECT max(below.id) FROM messages AS below WHERE below.parent_id = down.id
                        AND below.chat_id = :chat) FROM down WHERE down.id IS NOT NULL
            )
            UPDATE chats SET leaf_id = (SELECT max(id) FROM down) WHERE id = :chat
                AND EXISTS (SELECT 1 FROM down)
            """,
            chat=chat_id,
            message=message_id,
        )

    def chats(self, query: str = "") -> list[Chat]:
        """Chats with every word of `query` in one message or in the title: pinned ones, then the newest.

        Any text may be searched for, it has no syntax; capitals do not matter. Parts of words are found.
        """
        words = query.replace("\0", " ").split()
        if not words:
            rows = self._run(
                """
                SELECT chats.id, title, pinned, updated, chats.model, substr(content, 1, 200), system
                FROM chats JOIN messages ON messages.id = leaf_id
                WHERE deleted IS NULL ORDER BY pinned DESC, updated DESC
                """
            )
            return [to_chat(row) for row in rows]
        long = [word for word in words if len(word) >= 3]
        short = [word for word in words if len(word) < 3]  # the index holds groups of three characters
        in_text = ["texts MATCH ?"] * bool(long) + ["texts.content LIKE ? ESCAPE '\\'"] * len(short)
        in_title = ["title LIKE ? ESCAPE '\\'"] * len(words)
        phrases = [" AND ".join('"' + word.replace('"', '""') + '"' for word in long)] * bool(long)
        rows = self._run(
            f"""
            SELECT chats.id, title, pinned, updated, chats.model,
                substr(texts.content, max(1, instr(lower(texts.content), lower(?)) - 40), 200), system
            FROM texts JOIN messages ON messages.id = texts.rowid JOIN chats ON chats.id = chat_id
            WHERE {" AND ".join(in_text)} AND deleted IS NULL
            UNION ALL
            SELECT chats.id, title, pinned, updated, chats.model, substr(content, 1, 200), system
            FROM chats JOIN messages ON messages.id = leaf_id
            WHERE {" AND ".join(in_title)} AND deleted IS NULL
            """,
            (*long[:1], *words[:1])[0],
            *phrases,
            *map(like, short),
            *map(like, words),
        )
        found: dict[int, Chat] = {}
        for row in rows:
            found.setdefault(row[0], to_chat(row))
        return sorted(found.values(), key=lambda chat: (not chat.pinned, -chat.updated))

    def rename(self, chat_id: int, title: str) -> None:
        """Gives the chat another title."""
        self._run("UPDATE chats SET title = ? WHERE id = ?", printable(title), chat_id)

    def set_system(self, chat_id: int, system: str) -> None:
        """Gives the chat another system prompt."""
        self._run("UPDATE chats SET system = ? WHERE id = ?", system, chat_id)

    def pin(self, chat_id: int, pinned: bool = True) -> None:
        """Keeps the chat at the top of the list, or no longer."""
        self._run("UPDATE chats SET pinned = ? WHERE id = ?", int(pinned), chat_id)

    def delete(self, chat_id: int) -> None:
        """Hides the chat. It is removed for good when the store is opened after seven days."""
        self._run("UPDATE chats SET deleted = ? WHERE id = ?", time.time(), chat_id)

    def undelete(self, chat_id: int) -> None:
        """Brings a deleted chat back."""
        self._run("UPDATE chats SET deleted = NULL WHERE id = ?", chat_id)

    def latest(self) -> int | None:
        """The chat that was written to last."""
        rows = self._run(
            "SELECT id FROM chats WHERE deleted IS NULL AND leaf_id IS NOT NULL ORDER BY updated DESC LIMIT 1"
        )
        return rows[0][0] if rows else None

    def _run(self, sql: str, *values: Any, **named: Any) -> list[tuple[Any, ...]]:
        return self._execute(sql, named or values).fetchall()

    def _insert(self, sql: str, *values: Any) -> int:
        row = self._execute(sql, values).lastrowid
        assert row is not None
        return row

    def _execute(self, sql: str, values: Any) -> sqlite3.Cursor:
        with database_errors(self.file):
            return self._db.execute(sql, values)

    def _settle(self) -> None:
        """Replies that a process left unfinished are stopped ones; chats deleted long ago go."""
        for (writer,) in self._run("SELECT DISTINCT writer FROM messages WHERE state = 'streaming'"):
            # A container gives every run the same process id: then it is the time that tells.
            until = PROCESS_STARTED if writer == os.getpid() else float("inf")
            if writer == os.getpid() or not is_alive(writer):
                self._run(
                    "UPDATE messages SET state = 'stopped' WHERE state = 'streaming' AND writer = ? AND created < ?",
                    *(writer, until),
                )
        self._run("DELETE FROM chats WHERE deleted < ?", time.time() - KEEP_DELETED_SECONDS)


def is_alive(process: int) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True


def make_title(text: str) -> str:
    """The first line of a message, cut between words where it is long."""
    line = next((line.strip() for line in map(printable, text.splitlines()) if line.strip()), "")
    if len(line) <= TITLE_LENGTH:
        return line
    cut = line[: TITLE_LENGTH - 1]
    return (cut.rsplit(" ", 1)[0] if " " in cut[TITLE_LENGTH // 2 :] else cut).rstrip() + "…"


def printable(text: str) -> str:
    """The text on one line, without control characters: they would steer the terminal that lists it."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())


def like(word: str) -> str:
    """The LIKE pattern for texts that hold `word`; its own % and _ are ordinary."""
    for special in "\\%_":
        word = word.replace(special, "\\" + special)
    return f"%{word}%"


def to_chat(row: tuple[Any, ...]) -> Chat:
    """A chat from its columns."""
    chat_id, title, pinned, updated, model, text, system = row
    return Chat(chat_id, title, bool(pinned), updated, model, printable(text), system)
