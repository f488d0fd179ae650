"""One model, one conversation at a time: open a model, then turn prompts into events."""

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from dart_core.drafter import Drafter
from dart_core.events import Event, Failed, FinishReason, Loading, ModelInfo, Prefill
from dart_core.open_drafter import open_drafter
from dart_core.options import EngineOptions, GenerateOptions
from dart_core.prompt import Message, fit_context
from dart_core.reply import Reply
from dart_core.sampling import resolve_sampling, sampling_tensors
from dart_core.state import State, new_state, rewind
from dart_core.step import prefill, resume, step
from dart_core.tree import MAX_NODES, first_nodes
from kernels import native
from models.decoder import Target
from models.errors import DartError, UsageError
from models.resolve import resolve_model
from models.tokenizer import eos_ids, generation_defaults, load_tokenizer
from models.weights import load_target, size_in_bytes

DEFAULT_CONTEXT = 8192


@dataclass
class Engine:
    """A loaded target with its conversation's cache. Make it with `Engine.open`."""

    target: Target
    tokenizer: Any
    eos: frozenset[int]
    defaults: dict[str, float]
    state: State
    drafter: Drafter
    info: ModelInfo
    cached: list[int] = field(default_factory=list)  # the tokens whose keys and values are in the cache

    @classmethod
    def open(cls, options: EngineOptions, progress: Callable[[Loading], None] = lambda _: None) -> "Engine":
        """Loads the model. Raises ModelError or UsageError (`models.errors`), with what to do next."""
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        if options.device not in ("auto", "cpu"):
            raise UsageError(f"no engine for device {options.device!r} yet", "use --device cpu")
        files = resolve_model(options.model, lambda stage, fraction: progress(Loading(stage, fraction)))
        progress(Loading("tokenizer"))
        tokenizer = load_tokenizer(files.directory)
        if not native.is_built():
            progress(Loading("compiling the CPU kernels, once"))
        target = load_target(
            files,
            options.weights,
            torch.device("cpu"),
            lambda stage, fraction: progress(Loading(stage, fraction)),
        )
        longest = target.config.max_context
        if options.context is not None and options.context > longest:
            raise UsageError(f"the model reads at most {longest} tokens, not {options.context}", "lower --context")
        context = options.context or min(longest, DEFAULT_CONTEXT)
        eos = eos_ids(files.directory, tokenizer)
        drafter, notes = open_drafter(options, files, target, eos, context)
        kernels = f"CPU kernels: {native.status().path}"
        info = ModelInfo(files.name, str(files.weights), context, size_in_bytes(target), (kernels, *notes))
        progress(Loading("ready", 1.0))
        defaults = generation_defaults(files.directory)
        state = new_state(target.config, context, torch.device("cpu"))
        return cls(target, tokenizer, eos, defaults, state, drafter, info)

    def generate(
        self,
        prompt: str | list[Message],
        options: GenerateOptions | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Iterator[Event]:
        """Writes one reply: `Prefill…`, then `Step`, `Delta` and `Reasoning`, then `Finished` or `Failed`.

        A string is one user message. What the cache holds of an earlier turn is kept. `cancelled` is asked
        before every step; closing the iterator stops as well.
        """
        options = options or GenerateOptions()
        try:
            yield from self._generate(prompt, options, cancelled)
        except DartError as error:
            yield Failed(error.cause, error.hint, error.exit_code)

    def _generate(
        self, prompt: str | list[Message], options: GenerateOptions, cancelled: Callable[[], bool]
    ) -> Iterator[Event]:
        started = time.perf_counter()
        limit = self.info.context_limit
        ids, dropped = fit_context(self.tokenizer, prompt, options.raw, limit)
        nodes = options.tree_size if options.draft else 1
        reused = yield from self._prefill(ids, dropped, cancelled)
        reply = Reply(self.tokenizer, ids, options, self.eos, limit, started, reused, len(self.cached) - reused)
        sampling = sampling_tensors(resolve_sampling(options, self.defaults), self.eos)
        tree = resume(self.state, self.drafter, nodes)
        reason: FinishReason | None = "cancelled" if len(self.cached) < len(ids) - 1 else None
        while reason is None:
            if cancelled():
                reason = "cancelled"
                break
            begun = time.perf_counter()
            sampling.limit.fill_(reply.room)
            tree = first_nodes(tree)
            accepted, following = step(self.target, self.state, tree, sampling, self.drafter, nodes)
            count = int(accepted.count)
            path, written = accepted.path[:count].tolist(), accepted.written[:count].tolist()
            self.cached += [int(tree.tokens[0]), *written[:-1]]
            ms = (time.perf_counter() - begun) * 1e3
            reason = yield from reply.take(tree, path, written, ms, self.drafter.name)
            tree = following
        yield from reply.finish(reason)

    def _prefill(self, ids: list[int], dropped: int, cancelled: Callable[[], bool]) -> Generator[Event, None, int]:
        """Reads all but the last prompt token, which is the first tree's root; returns how many were reused."""
        reused = common_prefix(self.cached, ids[:-1])
        rewind(self.state, ids, reused)
        self.drafter.rewind(reused)
        self.cached = ids[:reused]
        yield Prefill(reused, len(ids), reused, dropped)
        for start in range(reused, len(ids) - 1, MAX_NODES):
            if cancelled():
                break
            chunk = ids[start : min(start + MAX_NODES, len(ids) - 1)]
            prefill(self.target, self.state, torch.tensor(chunk), self.drafter)
            self.cached += chunk
            yield Prefill(start + len(chunk), len(ids), reused, dropped)
        return reused

    def close(self) -> None:
        """Forgets the conversation."""
        self.cached = []


def common_prefix(first: list[int], second: list[int]) -> int:
    """How many tokens two texts begin with in common."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
