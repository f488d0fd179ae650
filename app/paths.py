"""Where dart-chat keeps things: the user's directories, or below `DART_HOME`. Nothing is made here."""

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs

NAME = "dart-chat"


def config_file() -> Path:
    """Settings, in TOML."""
    return _directory("config", platformdirs.user_config_path) / "config.toml"


def history_file() -> Path:
    """The chats, in SQLite."""
    return _directory("data", platformdirs.user_data_path) / "history.db"


def exports_dir() -> Path:
    """Where the chat saves exported files."""
    return _directory("data", platformdirs.user_data_path) / "exports"


def log_file() -> Path:
    """What the engine and its libraries print."""
    return _directory("state", platformdirs.user_state_path) / "dart-chat.log"


def cache_root() -> Path:
    """Models, compiled kernels and profiles; `kernels.cache` makes it. `DART_CACHE` moves it."""
    moved = os.environ.get("DART_CACHE")
    return Path(moved) if moved else platformdirs.user_cache_path(NAME)


def _directory(part: str, default: Callable[[str], Path]) -> Path:
    home = os.environ.get("DART_HOME")
    return Path(home).expanduser() / part if home else default(NAME)
