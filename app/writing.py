"""A reply while it is being written: what has come, and what of it is on disk."""

import time
from dataclasses import dataclass, field, replace

from app.notes import stats_json
from app.store import Message, Store, StoreError
from app.widgets.message_view import MessageView
from dart_core.events import Delta, Event, Failed, Finished, Prefill, Reasoning, Step
from dart_core.options import GenerateOptions

RETRY_SECONDS = 5.0  # between attempts to store; a locked database holds up the screen for one second each


@dataclass
class Writing:
    """Collects a reply's events. What is shown has been stored before, unless `unsaved` says why it could not be."""

    store: Store
    message: Message
    view: MessageView
    options: GenerateOptions
    dropped: int = 0
    finished: Finished | None = None
    failed: Failed | None = None
    unsaved: StoreError | None = None
    steps: list[Step] = field(default_factory=list)
    written: int = 0
    passes: int = 0
    started: float = 0.0
    tried: float = 0.0

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
            before = self.message
            self.message = replace(before, content=before.content + reply, reasoning=before.reasoning + reasoning)
            self.save()
            await self.view.write(reply, reasoning)
        if end := self.failed or self.finished:
            state = "failed" if self.failed else "complete"
            if self.finished and self.finished.reason == "cancelled":
                state = "stopped"
            self.message = replace(self.message, state=state, stats_json=stats_json(end, self.options, self.dropped))
            self.save(now=True)
            await self.view.finish(self.message)

    def save(self, now: bool = False) -> bool:
        """Stores the reply as it stands; after a failure again only after a while, or `now`."""
        if self.unsaved and not now and time.monotonic() - self.tried < RETRY_SECONDS:
            return False
        self.tried = time.monotonic()
        message = self.message
        try:
            self.store.update_message(message.id, message.content, message.state, message.stats_json, message.reasoning)
            self.unsaved = None
        except StoreError as error:
            self.unsaved = error
        return self.unsaved is None
