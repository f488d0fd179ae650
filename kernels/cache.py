"""Where compiled kernels, converted weights and profiles live: the user's cache directory."""

import os
from pathlib import Path

import platformdirs


def cache_dir(*parts: str) -> Path:
    """The directory `parts` below the user's cache for dart-chat, made if missing. `DART_CACHE` moves the root."""
    root = os.environ.get("DART_CACHE")
    path = Path(root) if root else platformdirs.user_cache_path("dart-chat")
    path = path.joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
