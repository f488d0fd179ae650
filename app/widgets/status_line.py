"""The line below the input: model, speed, acceptance, context, drafting."""

from dataclasses import dataclass

from textual.content import Content
from textual.widgets import Static


@dataclass(frozen=True, slots=True)
class Status:
    """What the line shows. `speed` in tokens a second; None before the first reply."""

    model: str = "loading"
    speed: float | None = None
    tau: float | None = None
    context: int = 0
    context_limit: int = 0
    drafting: str = "on"
    waiting: int = 0


class StatusLine(Static):
    """Plain words; nothing is told by colour alone."""

    def show(self, status: Status) -> None:
        """Replaces the line."""
        parts = [status.model]
        if status.speed is not None:
            parts.append(f"{status.speed:.0f} tok/s")
        if status.tau is not None:
            parts.append(f"τ {status.tau:.2f}")
        if status.context_limit:
            parts.append(f"context {status.context}/{status.context_limit}")
        parts.append(f"draft {status.drafting}")
        if status.waiting:
            parts.append(f"{status.waiting} waiting")
        self.update(Content(" · ".join(parts)))
