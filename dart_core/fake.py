"""An engine that plays a script: for tests, screenshots and a look at the chat without a model.

`fake:` plays the built-in demo, `fake:PATH` a JSON file:

    {"name": "shown as the model's name",
     "replies": ["plain text", {"reasoning": "…", "text": "…"}, {"text": "so far", "fail": "then this"}]}

The number of user messages in the conversation chooses the reply, starting over after the last. After `?`
come `rate`, tokens a second (default 150, 0 is as fast as possible; half of it where drafting is off), and
`load`, seconds of pretended loading: `fake:?rate=300&load=2`. What it says of its speed follows from the rate, which
counts as the default one where it is 0, so that a script always shows the same.
"""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl
from zlib import crc32

from dart_core.events import (
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    Loading,
    ModelInfo,
    Prefill,
    Reasoning,
    Step,
    Timings,
    TreeView,
    Usage,
)
from dart_core.options import EngineOptions, GenerateOptions
from dart_core.prompt import check_messages
from dart_core.text import StopStrings
from models.errors import DartError, ModelError, UsageError

DEMO = Path(__file__).with_name("demo.json")
DEFAULT_RATE = 150.0
DEFAULT_CONTEXT = 8192
VOCABULARY = 50_000
PIECE = re.compile(r" ?[A-Za-z]{1,7}| ?[0-9]+|\n+| {2,}| ?[^\sA-Za-z0-9]|\s")
# How many drafts a step gets right, as often as they stand here: τ is about 2.3.
ACCEPTED = (0, 0, 1, 1, 1, 2, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One reply: its reasoning, its text, and the error that ends it, if any."""

    reasoning: str = ""
    text: str = ""
    fail: str = ""


@dataclass
class FakeEngine:
    """Plays `replies` as an engine would. Make it with `FakeEngine.open`."""

    info: ModelInfo
    replies: tuple[ScriptedReply, ...]
    rate: float
    cached: int = field(default=0)  # tokens of the conversation so far, as if in a KV cache

    @classmethod
    def open(cls, options: EngineOptions, progress: Callable[[Loading], None] = lambda _: None) -> "FakeEngine":
        """Reads the script that `options.model` names. Raises ModelError or UsageError."""
        path, rate, load = parse_name(options.model)
        name, replies = read_script(path)
        for hundredth in range(0, 101, 2):
            progress(Loading("weights", hundredth / 100))
            time.sleep(load / 51)
        progress(Loading("ready", 1.0))
        context = options.context or DEFAULT_CONTEXT
        info = ModelInfo(name, str(path), context, 0, ("a script, not a model",))
        return cls(info, replies, rate)

    def generate(
        self,
        prompt: str | list[dict[str, str]],
        options: GenerateOptions | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[Event]:
        """Events of the reply whose turn it is. A last message by the assistant is continued."""
        options = options or GenerateOptions()
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            check_messages(messages)
            prompt_tokens = sum(len(PIECE.findall(message["content"])) + 4 for message in messages)
            limit = self.info.context_limit
            if prompt_tokens >= limit:
                raise UsageError(
                    f"the prompt is {prompt_tokens} tokens long and the context holds {limit}",
                    "shorten it, or raise --context if the model allows",
                )
        except DartError as error:
            yield Failed(error.cause, error.hint, error.exit_code)
            return
        turns = sum(message["role"] == "user" for message in messages)
        reply = self.replies[(turns - 1) % len(self.replies)]
        if messages[-1]["role"] == "assistant":
            begun = messages[-1]["content"]
            rest = reply.text[len(begun) :] if reply.text.startswith(begun) else reply.text
            reply = ScriptedReply("", rest, reply.fail)
        yield from self._play(reply, prompt_tokens, options, cancelled)

    def _play(
        self,
        reply: ScriptedReply,
        prompt_tokens: int,
        options: GenerateOptions,
        cancelled: Callable[[], bool],
    ) -> Iterator[Event]:
        reused = min(self.cached, prompt_tokens)
        yield Prefill(reused, prompt_tokens, reused)
        yield Prefill(prompt_tokens, prompt_tokens, reused)
        begun = time.perf_counter()
        thought = PIECE.findall(reply.reasoning)
        pieces = thought + PIECE.findall(reply.text)
        ids = [token_id(piece) for piece in pieces]
        room = self.info.context_limit - prompt_tokens
        if options.max_new_tokens is not None:
            room = min(room, options.max_new_tokens)
        draft = options.draft and options.tree_size > 1
        rate = self.rate if draft else self.rate / 2
        told = rate or (DEFAULT_RATE if draft else DEFAULT_RATE / 2)
        stops = StopStrings(options.stop)
        written = steps = drafted = 0
        reason: FinishReason | None = None
        while reason is None:
            if written >= len(pieces):
                reason = "eos"
            elif written >= room:
                reason = "context" if prompt_tokens + written >= self.info.context_limit else "length"
            elif not wait(begun + written / rate if rate else 0.0, cancelled):
                reason = "cancelled"
            if reason is not None:
                break
            guess = random.Random(written).choice(ACCEPTED) if draft else 0
            size = options.tree_size if draft else 1
            right = min(guess, size - 1, len(pieces) - written - 1, room - written - 1)
            end = written + right + 1
            tree = draw_tree(pieces, written, right, size)
            steps += 1
            drafted += len(tree.parents) - 1
            written, start = end, written
            ms = 1e3 * (right + 1) / told
            yield Step(
                size,
                tuple(range(right + 1)),
                tuple(ids[start:end]),
                pieces[end - 1],
                ms,
                prompt_tokens + written,
                tree if options.show_tree else None,
            )
            middle = min(max(start, len(thought)), end)
            if middle > start:
                yield Reasoning("".join(pieces[start:middle]), tuple(ids[start:middle]))
            shown = stops.push("".join(pieces[middle:end]))
            if shown:
                yield Delta(shown, tuple(ids[middle:end]), min(right, end - middle))
            if stops.hit:
                reason = "stop"
        if reply.fail and reason == "eos":
            yield Failed(reply.fail, "this failure is part of the script")
            return
        if rest := stops.flush():
            yield Delta(rest, ())
        self.cached = prompt_tokens + written
        usage = Usage(prompt_tokens, written, drafted, written - steps, steps)
        yield Finished(
            reason,
            usage,
            timings(usage, reused, told),
            self.cached,
            self.info.context_limit,
            "" if options.draft else "drafting is switched off",
        )

    def close(self) -> None:
        """Forgets the conversation."""
        self.cached = 0


def parse_name(model: str) -> tuple[Path, float, float]:
    """Script, tokens a second and seconds of loading of "fake:PATH?rate=…&load=…". Raises UsageError."""
    name, _, query = model.removeprefix("fake:").partition("?")
    values = {"rate": DEFAULT_RATE, "load": 0.0}
    for key, text in parse_qsl(query, keep_blank_values=True):
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if key not in values or not 0 <= value < float("inf"):
            raise UsageError(f"not an option of the fake model: {key}={text}", "write fake:?rate=300&load=2")
        values[key] = value
    return Path(name).expanduser() if name else DEMO, values["rate"], values["load"]


def read_script(path: Path) -> tuple[str, tuple[ScriptedReply, ...]]:
    """Name and replies of a script. Raises ModelError where it cannot be read."""
    try:
        script = json.loads(path.read_text(encoding="utf-8"))
        replies = tuple(
            ScriptedReply(text=reply) if isinstance(reply, str) else ScriptedReply(**reply)
            for reply in script["replies"]
        )
        if not replies or not all(isinstance(part, str) for r in replies for part in (r.reasoning, r.text, r.fail)):
            raise TypeError("replies must be texts, at least one")
        return str(script.get("name", path.stem)), replies
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{path} is not a script: {error}", "its form is in the docstring of dart_core.fake"
        ) from error


def token_id(piece: str) -> int:
    """A stable made-up id for a piece of text."""
    return crc32(piece.encode()) % VOCABULARY


def draw_tree(pieces: list[str], at: int, right: int, size: int) -> TreeView:
    """A tree of at most `size` nodes whose nodes 1…`right` are the right guesses for `pieces[at:]`.

    Every other node is a wrong guess: siblings of the right ones, and what might have followed them.
    """
    chance = random.Random(at)
    texts = [pieces[at - 1] if at else "", *pieces[at : at + right]]
    parents = list(range(-1, right))
    depths = list(range(right + 1))
    scores = [1.0, *(round(chance.uniform(0.45, 0.97), 4) for _ in range(right))]
    sources = ["root", *(chance.choice(("ngram", "head")) for _ in range(right))]
    wanted = min(size, right + 1 + chance.randrange(3, 12))
    follows = {node: {pieces[at + node]} for node in range(right + 1)}  # what a wrong guess must not be
    for _ in range(4 * wanted):
        if len(texts) >= wanted:
            break
        parent = chance.randrange(len(texts))
        text = pieces[chance.randrange(len(pieces))]
        used = follows.setdefault(parent, set())
        if text in used or depths[parent] >= 7 or any(token_id(text) == token_id(other) for other in used):
            continue
        used.add(text)
        texts.append(text)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        scores.append(round(chance.uniform(0.02, 0.4) * scores[parent], 4))
        sources.append(chance.choice(("ngram", "head")))
    ids = tuple(token_id(text) for text in texts)
    return TreeView(ids, tuple(texts), tuple(parents), tuple(depths), tuple(scores), tuple(sources))


def wait(until: float, cancelled: Callable[[], bool]) -> bool:
    """Sleeps until the `perf_counter` says `until`; False as soon as `cancelled` does."""
    while not cancelled():
        left = until - time.perf_counter()
        if left <= 0:
            return True
        time.sleep(min(left, 0.01))
    return False


def timings(usage: Usage, reused: int, rate: float) -> Timings:
    """Figures that fit `rate` tokens a second, and a prompt read ten times as fast."""
    fresh = usage.prompt_tokens - reused
    return Timings(
        reused,
        fresh,
        1e2 * fresh / rate,
        10 * rate,
        usage.completion_tokens,
        1e3 * usage.completion_tokens / rate,
        rate,
        usage.drafted_tokens,
        usage.accepted_tokens,
    )
