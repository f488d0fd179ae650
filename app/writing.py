"""A reply while it is being written: what has come, and what of it is on disk."""

import json
import time
from dataclasses import asdict, dataclass, field

from app.store import Message, Store
from app.widgets.message_view import MessageView
from dart_core.events import Delta, Event, Failed, Finished, Prefill, Reasoning, Step

ENDINGS = {
    "stop": "",
    "eos": "",
    "length": "stopped at the limit of new tokens",
    "context": "stopped: the context is full",
    "cancelled": "stopped",
}


@dataclass
class Writing:
    """Collects a reply's events. What is shown has been stored before."""

    store: Store
    message: Message
    view: MessageView
    content: str = ""
    reasoning: str = ""
    dropped: int = 0
    finished: Finished | None = None
    failed: Failed | None = None
    steps: list[Step] = field(default_factory=list)
    written: int = 0
    passes: int = 0
    started: float = 0.0

    @property
    def speed(self) -> float | None:
        """Tokens a second so far."""
        seconds = time.monotonic() - self.started if self.started else 0.0
        return self.written / seconds if seconds > 0.2 else None

    @property
    def tau(self) -> float | None:
        """Tokens for each pass over the weights so far."""
        return self.written / self.passes if self.passes else None

    async def take(self, events: list[Event]) -> None:
        """Stores, then shows, what has come since the last call."""
        reply = "".join(event.text for event in events if isinstance(event, Delta))
        reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
        self.steps = [event for event in events if isinstance(event, Step)]
        self.started = self.started or (time.monotonic() if self.steps else 0.0)
        self.written += sum(len(step.token_ids) for step in self.steps)
        self.passes += len(self.steps)
        for event in events:
            if isinstance(event, Prefill):
                self.dropped = event.dropped
            elif isinstance(event, Finished):
                self.finished = event
            elif isinstance(event, Failed):
                self.failed = event
        if reply or reasoning:
            self.content += reply
            self.reasoning += reasoning
            self.store.update_message(self.message.id, self.content, "streaming", reasoning=self.reasoning)
            await self.view.write(reply, reasoning)
        if self.finished or self.failed:
            await self._end()

    async def _end(self) -> None:
        if self.failed:
            state, note = "failed", f"{self.failed.error}"
            if self.failed.hint:
                note += f"\nTry: {self.failed.hint}"
        else:
            assert self.finished is not None
            state = "stopped" if self.finished.reason == "cancelled" else "complete"
            note = ENDINGS[self.finished.reason]
        if self.dropped:
            note = f"{note}\n" * bool(note) + f"the {self.dropped} oldest messages did not fit the context"
        stats = json.dumps(asdict(self.finished)) if self.finished else ""
        self.store.update_message(self.message.id, self.content, state, stats, self.reasoning)
        await self.view.finish(self.content, note, failed=self.failed is not None)
