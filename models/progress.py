"""How loading tells how far it is."""

from collections.abc import Callable

Progress = Callable[[str, float | None], None]  # what is going on, and 0…1 or None where nobody knows


def silent(stage: str, fraction: float | None) -> None:
    """Tells nobody."""
