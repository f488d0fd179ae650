"""The one interface between the engine and everything that shows, serves, measures or tests it.

`Engine.generate` yields these in order: `Prefill…`, then `Step` / `Delta` / `Reasoning`, then one `Finished` or
`Failed`. Loading yields `Loading…`. All are frozen, hold plain Python values and pickle, so that the engine may
live in a thread or in another process.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

FinishReason: TypeAlias = Literal["eos", "stop", "length", "context", "cancelled"]


@dataclass(frozen=True, slots=True)
class Loading:
    """A stage of loading: `fraction` in [0, 1], or None where the end is not known."""

    stage: str
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was opened: `size_bytes` of weights in memory, a context of at most `context_limit` tokens.

    `notes` say what a person should know, such as which kernels are in use and why.
    """

    name: str
    path: str
    context_limit: int
    size_bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is open and takes prompts. An engine in another process says so once."""

    info: ModelInfo


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens are in the KV cache, `reused` of them from an earlier turn.

    `dropped` of the oldest messages did not fit the context and were left out.
    """

    done: int
    total: int
    reused: int
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class TreeView:
    """A draft tree in plain values. Node 0 is the root (the last token written); parents come before children."""

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    parents: tuple[int, ...]  # -1 for the root
    depths: tuple[int, ...]
    scores: tuple[float, ...]  # the drafter's probability of the token after its parent, in [0, 1]
    sources: tuple[str, ...]  # who proposed the node: "root", "ngram" or "head"

    def children(self, node: int) -> list[int]:
        """Indices of the nodes whose parent is `node`, in tree order."""
        return [i for i, parent in enumerate(self.parents) if parent == node and i != 0]


@dataclass(frozen=True, slots=True)
class Step:
    """One pass over the target's weights.

    `accepted` are the indices of the accepted nodes, root first; `token_ids` what the step wrote: the accepted
    drafts, then the target's own next token, whose text is `own_text`. `tree` is given when asked for.
    """

    tree_size: int
    accepted: tuple[int, ...]
    token_ids: tuple[int, ...]
    own_text: str
    ms: float
    context: int  # tokens of the conversation after this step
    tree: TreeView | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Text to append to the reply, and the tokens it came from; `drafted` of them were guessed by the drafter."""

    text: str
    token_ids: tuple[int, ...]
    drafted: int = 0


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text to append to the reply's reasoning block (`<think>`…), not part of the reply itself."""

    text: str
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one generation. `accepted_tokens` counts drafts that were written."""

    prompt_tokens: int
    completion_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    steps: int

    @property
    def tau(self) -> float:
        """Acceptance length τ: tokens written for each pass over the target's weights."""
        return self.completion_tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class Timings:
    """Field names follow llama-server. Milliseconds and tokens a second; `cache_n` prompt tokens were reused."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a reply. `context` of `context_limit` tokens are in use; `note` says why drafting was off."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    context: int
    context_limit: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Generation or loading failed: what happened, and the next thing to type."""

    error: str
    hint: str = ""
    exit_code: int = 1


Event: TypeAlias = Loading | Ready | Prefill | Step | Delta | Reasoning | Finished | Failed


def to_json(event: Event) -> dict[str, Any]:
    """The event as one JSON object, `type` first (`{"type": "delta", "text": …}`)."""
    fields = asdict(event)
    if isinstance(event, Finished):
        fields["usage"]["tau"] = round(event.usage.tau, 4)
    return {"type": type(event).__name__.lower(), **fields}
