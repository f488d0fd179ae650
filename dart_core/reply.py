"""One reply as it grows: text, stop conditions, counts and clocks."""

import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from dart_core.events import (
    Delta,
    Event,
    Finished,
    FinishReason,
    Reasoning,
    Step,
    Timings,
    TreeView,
    Usage,
)
from dart_core.options import GenerateOptions
from dart_core.text import Detokeniser, ReasoningSplit, StopStrings
from dart_core.tree import DraftTree


class Reply:
    """Turns accepted tokens into events. `room` is how many tokens may still be written."""

    def __init__(
        self,
        tokenizer: Any,
        prompt_ids: Sequence[int],
        options: GenerateOptions,
        eos: frozenset[int],
        context_limit: int,
        started: float,
        reused: int,
        prefilled: int,
    ) -> None:
        """`started` is the `perf_counter` at which the request came; the prompt is in the cache by now."""
        self._tokenizer = tokenizer
        self._options = options
        self._eos = eos
        self._context_limit = context_limit
        self._prompt_tokens = len(prompt_ids)
        self._reused, self._prefilled = reused, prefilled
        self._detokeniser = Detokeniser(tokenizer, prompt_ids)
        self._stops = StopStrings(options.stop)
        tail = tokenizer.decode(prompt_ids[-8:]).rstrip() if len(prompt_ids) else ""
        self._reasoning = ReasoningSplit(opened=tail.endswith(ReasoningSplit.OPEN))
        self._decode_started = time.perf_counter()
        self._prompt_ms = (self._decode_started - started) * 1e3
        self._written = self._steps = self._drafted = self._accepted = 0
        self._pending: list[int] = []
        self._pending_drafted = 0
        self._pieces: dict[int, str] = {}

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together."""
        return self._prompt_tokens + self._written

    @property
    def room(self) -> int:
        """How many tokens may still be written."""
        room = self._context_limit - self.context
        if self._options.max_new_tokens is not None:
            room = min(room, self._options.max_new_tokens - self._written)
        return room

    def take(
        self, tree: DraftTree, path: list[int], written: list[int], ms: float, drafter: str
    ) -> Generator[Event, None, FinishReason | None]:
        """Adds what a step wrote; returns why the reply ends, or None."""
        view = self._view(tree, drafter) if self._options.show_tree else None
        self._steps += 1
        self._drafted += int(tree.count) - 1
        reason: FinishReason | None = None
        text = ""
        kept = 0
        for place, token in enumerate(written):
            kept += 1
            self._written += 1
            drafted = place < len(written) - 1
            self._accepted += drafted
            self._pending.append(token)
            self._pending_drafted += drafted
            if token in self._eos:
                reason = "eos"
                break
            text += self._stops.push(self._detokeniser.push(token))
            if self._stops.hit:
                reason = "stop"
                break
        if reason is None and self.room <= 0:
            reason = "length" if self._context_limit > self.context else "context"
        own = self._piece(written[kept - 1])
        yield Step(len(tree.tokens), tuple(path[:kept]), tuple(written[:kept]), own, ms, self.context, view)
        yield from self._emit(*self._reasoning.push(text))
        return reason

    def finish(self, reason: FinishReason) -> Iterator[Event]:
        """Shows what was held back, then the figures."""
        text = "" if reason == "stop" else self._stops.push(self._detokeniser.flush()) + self._stops.flush()
        first, second = self._reasoning.push(text), self._reasoning.flush()
        yield from self._emit(first[0] + second[0], first[1] + second[1])
        decode_ms = (time.perf_counter() - self._decode_started) * 1e3
        yield Finished(
            reason,
            Usage(self._prompt_tokens, self._written, self._drafted, self._accepted, self._steps),
            Timings(
                self._reused,
                self._prefilled,
                self._prompt_ms,
                self._prefilled / self._prompt_ms * 1e3 if self._prompt_ms else 0.0,
                self._written,
                decode_ms,
                self._written / decode_ms * 1e3 if decode_ms else 0.0,
                self._drafted,
                self._accepted,
            ),
            self.context,
            self._context_limit,
            "" if self._options.draft else "drafting is switched off",
        )

    def _emit(self, reasoning: str, reply: str) -> Iterator[Event]:
        """Events for new text; the tokens behind it go with the last of them."""
        if reasoning:
            yield Reasoning(reasoning, () if reply else tuple(self._pending))
        if reply:
            yield Delta(reply, tuple(self._pending), self._pending_drafted)
        if reasoning or reply:
            self._pending, self._pending_drafted = [], 0

    def _piece(self, token: int) -> str:
        """One token's text, for people to look at."""
        if token not in self._pieces:
            self._pieces[token] = self._tokenizer.decode([token])
        return self._pieces[token]

    def _view(self, tree: DraftTree, drafter: str) -> TreeView:
        nodes = slice(0, int(tree.count))
        tokens = tree.tokens[nodes].tolist()
        return TreeView(
            tuple(tokens),
            tuple(self._piece(token) for token in tokens),
            tuple(tree.parent[nodes].tolist()),
            tuple(tree.depth[nodes].tolist()),
            tuple(round(score, 4) for score in tree.score[nodes].tolist()),
            ("root", *[drafter] * (len(tokens) - 1)),
        )
