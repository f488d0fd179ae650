"""A target of random weights, made in milliseconds, and a bare decode loop over it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dart_core.drafter import Drafter
from dart_core.sampling import SamplingSettings, sampling_tensors
from dart_core.state import State, new_state, rewind
from dart_core.step import prefill, resume, step
from dart_core.tree import MAX_NODES, DraftTree, first_nodes, root_tree
from kernels.linear4 import pack
from kernels.weight4 import quantise_affine
from models.decoder import DecoderConfig, Layer, Linear, Target, one_operator


def random_target(vocab: int = 64, layers: int = 4, seed: int = 0, four_bit: bool = False, **changes: object) -> Target:
    """A Llama-like decoder, hidden 64, 4 query and 2 key heads of 16, fp32.

    `four_bit`: quantised, and its layers as one operator where that fits (head_dim 32 does).
    """
    values: dict[str, object] = {
        "family": "llama", "hidden_size": 64, "intermediate_size": 96, "layers": layers, "heads": 4, "kv_heads": 2,
        "head_dim": 16, "vocab_size": vocab, "norm_eps": 1e-6, "max_context": 512, "sliding_window": None,
        "source": None, **changes,
    }  # fmt: skip
    config = DecoderConfig(**values)  # type: ignore[arg-type]
    noise = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> Linear:
        weight = torch.randn(rows, columns, generator=noise) * 2 / columns**0.5
        return Linear(pack(quantise_affine(weight)) if four_bit else weight)

    dim = config.head_dim

    def layer() -> Layer:
        return Layer(
            torch.ones(64), matrix(8 * dim, 64), None, None, matrix(64, 4 * dim),
            torch.ones(64), matrix(192, 64), matrix(64, 96),
        )  # fmt: skip

    target = Target(
        config, torch.randn(vocab, 64, generator=noise), tuple(layer() for _ in range(layers)), torch.ones(64),
        matrix(vocab, 64), 10000.0 ** -(torch.arange(0, dim, 2) / dim), 1.0,
    )  # fmt: skip
    return one_operator(target)


@dataclass
class Written:
    """What a loop wrote, how many tokens each step gave, and the state it left."""

    tokens: list[int]
    counts: list[int]
    state: State


def write(
    target: Target, prompt: list[int], new_tokens: int, drafter: Drafter, nodes: int,
    settings: SamplingSettings | None = None, eos: frozenset[int] = frozenset(),
) -> Written:  # fmt: skip
    """Decodes up to `new_tokens` tokens after `prompt`; stops at `eos`."""
    state = new_state(target.config, 256, torch.device("cpu"))
    rewind(state, prompt, 0)
    for start in range(0, len(prompt) - 1, MAX_NODES):
        chunk = torch.tensor(prompt[start : min(start + MAX_NODES, len(prompt) - 1)])
        if len(chunk):
            prefill(target, state, chunk, drafter)
    sampling = sampling_tensors(settings or SamplingSettings(), eos)
    tree = resume(state, drafter, nodes)
    result = Written([], [], state)
    while len(result.tokens) < new_tokens:
        sampling.limit.fill_(new_tokens - len(result.tokens))
        accepted, tree = step(target, state, first_nodes(tree), sampling, drafter, nodes)
        count = int(accepted.count)
        result.counts.append(count)
        result.tokens += accepted.written[:count].tolist()
        if result.tokens[-1] in eos:
            break
    return result


@dataclass(frozen=True)
class RandomDrafter:
    """Random trees: mostly wrong, now and then right in a small vocabulary."""

    noise: torch.Generator
    vocab: int
    name: str = "random"

    def rewind(self, kept: int) -> None:
        """Nothing to forget."""

    def catch_up(self, state: State) -> None:
        """Nothing to read."""

    def observe(self, state: State, taps: Tensor, count: Tensor) -> None:
        """Nothing to learn."""

    def draft(self, state: State, nodes: int) -> DraftTree:
        """A random tree of `nodes` nodes with distinct siblings."""
        return tree_of(state, nodes, self._edges(nodes))

    def _edges(self, nodes: int) -> list[tuple[int, int]]:
        edges: list[tuple[int, int]] = []
        while len(edges) < nodes - 1:
            parent = int(torch.randint(len(edges) + 1, (1,), generator=self.noise))
            token = int(torch.randint(self.vocab, (1,), generator=self.noise))
            if (parent, token) not in edges:
                edges.append((parent, token))
        return edges


@dataclass(frozen=True)
class OracleDrafter:
    """Drafts the text it is told, as a chain of `depth` tokens with wrong siblings before each right one."""

    text: list[int]  # prompt and its continuation
    depth: int
    vocab: int
    name: str = "oracle"

    def rewind(self, kept: int) -> None:
        """Nothing to forget."""

    def catch_up(self, state: State) -> None:
        """Nothing to read."""

    def observe(self, state: State, taps: Tensor, count: Tensor) -> None:
        """Nothing to learn."""

    def draft(self, state: State, nodes: int) -> DraftTree:
        """The next `depth` tokens of the text."""
        root, parent = int(state.length), 0
        edges: list[tuple[int, int]] = []
        for token in self.text[root + 1 : root + 1 + self.depth]:
            edges += [(parent, (token + 1) % self.vocab), (parent, token)]
            parent = len(edges)
        return tree_of(state, nodes, edges)


def tree_of(state: State, nodes: int, edges: list[tuple[int, int]]) -> DraftTree:
    """The draft tree below the state's root with the given (parent, token) nodes, in order."""
    tree = root_tree(state.history[state.length], nodes)
    for node, (parent, token) in enumerate(edges, start=1):
        tree.tokens[node], tree.parent[node] = token, parent
        tree.depth[node] = tree.depth[parent] + 1
        tree.ancestor[node] |= tree.ancestor[parent]
    tree.count.fill_(len(edges) + 1)
    return tree
