"""The database file: opened only where it is sound and of a form this program knows, else left as it is."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from app.migrations import STEPS
from models.errors import DartError

BUSY_SECONDS = 1.0  # the chat stands still for as long


class StoreError(DartError):
    """The database cannot be used. It is left as it is."""


def open_database(path: Path) -> sqlite3.Connection:
    """Opens the file, made or brought to the newest form where needed. Raises StoreError."""
    with database_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_file(path)
        path.touch(mode=0o600)  # SQLite gives its other files the same mode
        database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA foreign_keys = ON")
            migrate(database)
        except BaseException:
            database.close()
            raise
        return database


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turns what SQLite and the file system raise into StoreError."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise StoreError(
            f"cannot use {path}: {error}", "check its permissions and the disk's space, or set DART_HOME"
        ) from error
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:
            raise  # a broken constraint or a wrong call says nothing about the file
        raise damaged(path, error) from error


def check_file(path: Path) -> None:
    """Raises StoreError or sqlite3.DatabaseError where a file is not one to write to. Only reads."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=BUSY_SECONDS, uri=True)) as database:
        version, tables = database.execute(
            "SELECT user_version, (SELECT count(*) FROM sqlite_master) FROM pragma_user_version"
        ).fetchone()
        if version > len(STEPS):
            raise StoreError(
                f"{path} is from a newer dart-chat (form {version}, this one knows {len(STEPS)})",
                "update dart-chat, or set DART_HOME to another directory",
            )
        if version == 0 and tables:
            raise StoreError(f"{path} belongs to another program", "set DART_HOME to another directory")
        problem = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise damaged(path, problem)


def migrate(database: sqlite3.Connection) -> None:
    """Brings the database to the newest form, all steps or none."""
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version >= len(STEPS):
        return
    database.execute("BEGIN IMMEDIATE")
    # Another process may have migrated while this one waited for the lock.
    version = database.execute("PRAGMA user_version").fetchone()[0]
    for step in STEPS[version:]:
        for statement in step:
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {len(STEPS)}")
    database.execute("COMMIT")


def damaged(path: Path, problem: object) -> StoreError:
    """The error for a file that SQLite cannot make sense of."""
    return StoreError(
        f"{path} is damaged or no chat database, and was left as it is: {problem}",
        f"move it away (mv {path} {path}.damaged) to begin a new one",
    )
