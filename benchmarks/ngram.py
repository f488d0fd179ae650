"""N-gram import, look-up and pruning, measured: `python -m benchmarks.ngram --help`.

Writes a synthetic order-3 `.trie` with Zipf tokens, imports it in a process of its own, looks up 500 pairs at
a time, and prunes full 8 × 25 × 20 searches.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dart_core.ngram.model import load_ngram
from dart_core.ngram.trie import import_trie
from dart_core.prune import (
    Candidates,
    PruneConfig,
    build_tree,
    build_tree_reference,
    mixed_frequency,
    top_candidates,
)
from kernels import native
from kernels.ngram_lookup import NgramTable, key_context, ngram_lookup, ngram_lookup_reference

VOCAB_SIZE = 49_152
LOOKUPS = 500
BATCHES = 400
RECORD = np.dtype([("token", "<i4"), ("parent", "<u8"), ("frequency", "<i4"), ("children", "<u8")])
CHILD = np.dtype([("token", "<i4"), ("node", "<u8")])


def write_synthetic_trie(path: Path, nodes: int) -> None:
    """A trie of about `nodes` nodes: every token, then pairs (a fifth) and triples drawn by Zipf's law."""
    random = np.random.default_rng(0)

    def distinct(count: int, parents: int) -> np.ndarray:
        """`count` distinct (parent, token) as parent · V + token, ascending."""
        drawn = np.empty(0, np.int64)
        while len(drawn) < count:
            parent = (parents ** random.random(count) - 1).astype(np.int64)  # density 1 / x
            token = (VOCAB_SIZE ** random.random(count) - 1).astype(np.int64)
            drawn = np.unique(np.concatenate((drawn, parent * VOCAB_SIZE + token)))
        return np.sort(random.permutation(drawn)[:count])

    pairs = distinct((nodes - VOCAB_SIZE) // 5, VOCAB_SIZE)
    triples = distinct(nodes - 1 - VOCAB_SIZE - len(pairs), len(pairs))
    token = np.concatenate(([0], np.arange(VOCAB_SIZE), pairs % VOCAB_SIZE, triples % VOCAB_SIZE))
    parent = np.concatenate(
        (np.zeros(1 + VOCAB_SIZE, np.int64), 1 + pairs // VOCAB_SIZE, 1 + VOCAB_SIZE + triples // VOCAB_SIZE)
    )
    children = np.bincount(parent[1:], minlength=len(token))
    frequency = np.ones(len(token), np.int64)
    for start, end in (
        (1 + VOCAB_SIZE + len(pairs), len(token)),
        (1 + VOCAB_SIZE, 1 + VOCAB_SIZE + len(pairs)),
    ):
        frequency += np.bincount(parent[start:end], frequency[start:end], len(token)).astype(np.int64)
    first = 1 + np.cumsum(children) - children  # children lie side by side, in their parents' order
    with path.open("wb") as file:
        np.array([3, len(token)], "<u8").tofile(file)
        inner = int(np.flatnonzero(children)[-1]) + 1
        for node in range(inner):
            record = np.array((token[node], parent[node], frequency[node], children[node]), RECORD)
            own = np.empty(children[node], CHILD)
            own["node"] = np.arange(first[node], first[node] + children[node])
            own["token"] = token[own["node"]]
            file.write(record.tobytes() + own.tobytes())
        leaves = np.zeros(len(token) - inner, RECORD)
        leaves["token"], leaves["parent"], leaves["frequency"] = (
            token[inner:],
            parent[inner:],
            frequency[inner:],
        )
        leaves.tofile(file)


def least(function: Callable[[], object], repeats: int = 100) -> float:
    """The least time of a call in microseconds."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e6 * min(times)


def peak_mb() -> float:
    """The most memory this process has held, MB, its share of the page cache included."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def measure_import(source: Path, path: Path) -> None:
    """In a process of its own, so that the peak is the import's."""
    native.load()
    before, start, cpu = peak_mb(), time.perf_counter(), time.process_time()
    import_trie(source, path)
    seconds = f"{time.perf_counter() - start:.1f} s, {time.process_time() - cpu:.1f} of one core's"
    print(f"import: {seconds}, peak {peak_mb():.0f} MB, of which {before:.0f} before it began", flush=True)


def sample_queries() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of 20 contexts of two tokens with 25 candidates each, as pruning asks for."""
    drawn = VOCAB_SIZE ** np.random.default_rng(1).random((BATCHES, LOOKUPS // 25, 2 + 25)) - 1
    return [(batch[:, :2].contiguous(), batch[:, 2:].contiguous()) for batch in torch.from_numpy(drawn).long()]


def measure_lookups(table: NgramTable) -> None:
    queries = sample_queries()
    known = sum(int((ngram_lookup(table, *query)[1] > 0).sum()) for query in queries)
    print(f"{100 * known / BATCHES / LOOKUPS:.0f} % of the pairs looked up are in the table")
    for name, form in (("C++", ngram_lookup), ("tensors, eager", ngram_lookup_reference)):
        report_lookups(name, lambda query, form=form: form(table, *query), queries)  # type: ignore[misc]


def report_lookups(name: str, look_up: Callable[[Any], object], queries: list[Any]) -> None:
    """Mean over the batches, each at other places of the table, of the least time in five rounds."""
    least_of = np.full(len(queries), np.inf)
    for _ in range(5):
        for i, query in enumerate(queries):
            start = time.perf_counter()
            look_up(query)
            least_of[i] = min(least_of[i], time.perf_counter() - start)
    print(f"{LOOKUPS} look-ups, {name}: {1e6 * least_of.mean():.0f} µs")


def measure_pruning(table: NgramTable, compiled: bool) -> None:
    random = torch.Generator().manual_seed(0)
    config, eos, context = PruneConfig(), torch.tensor([2]), torch.arange(8)
    logits, ids = torch.randn(8, 6144, generator=random) * 3, torch.arange(6144)
    given = top_candidates(logits, ids, config)
    print(f"top 25 of 8 × 6,144 logits: {least(lambda: top_candidates(logits, ids, config)):.0f} µs")
    print(f"pruning, C++: {least(lambda: build_tree(given, context, eos, config, 64, table)):.0f} µs")

    def as_tensors(candidates: Candidates) -> object:
        q = mixed_frequency(table, None, 0)
        return build_tree_reference(candidates, context, eos, config, 64, q)

    print(f"pruning, tensors, eager: {least(lambda: as_tensors(given)):.0f} µs")
    if compiled:
        graph = torch.compile(as_tensors, fullgraph=True)
        start = time.perf_counter()
        graph(given)
        print(f"pruning, tensors, compiled in {time.perf_counter() - start:.0f} s: ", end="")
        print(f"{least(lambda: graph(given)):.0f} µs")


def measure_dictionaries(table: NgramTable) -> None:
    """The same pairs in a dictionary of dictionaries."""
    before, start = peak_mb(), time.perf_counter()
    model: dict[tuple[int, ...], tuple[int, dict[int, int]]] = {}
    first, total = table.first.tolist(), table.total.tolist()
    for row, key in enumerate(table.context.tolist()):
        pairs = slice(first[row], first[row + 1])
        following = dict(zip(table.token[pairs].tolist(), table.count[pairs].tolist(), strict=True))
        model[tuple(key_context(key) or ())] = total[row], following
    print(f"dictionaries: {time.perf_counter() - start:.0f} s to fill, ", end="")
    print(f"{1e6 * (peak_mb() - before) / len(table.token):.0f} bytes a pair")

    def look_up(query: tuple[list[list[int]], list[list[int]]]) -> None:
        for context, candidates in zip(*query, strict=True):
            contexts = [model.get(tuple(context[-length:])) for length in (2, 1)]
            for token in candidates:
                for found in contexts:
                    if found is not None and token in found[1]:
                        found[1][token] / found[0]
                        break

    queries = [(contexts.tolist(), tokens.tolist()) for contexts, tokens in sample_queries()]
    report_lookups("dictionaries", look_up, queries)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=20_000_000)
    parser.add_argument("--dictionaries", action="store_true", help="also as a dictionary of dictionaries")
    parser.add_argument("--compile", action="store_true", help="also the tensor form, compiled by inductor")
    parser.add_argument("--import", dest="paths", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.paths:
        measure_import(*options.paths)
        return
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as directory:
        source, path = Path(directory, "synthetic.trie"), Path(directory, "synthetic.ngram")
        write_synthetic_trie(source, options.nodes)
        print(f"trie of {options.nodes:,} nodes: {source.stat().st_size / 1e6:.0f} MB", flush=True)
        subprocess.run([sys.executable, "-m", "benchmarks.ngram", "--import", source, path], check=True)
        table = load_ngram(path)
        size = table.nbytes
        print(f"model: {size / 1e6:.0f} MB, {size / len(table.token):.1f} bytes a pair", flush=True)
        measure_lookups(table)
        measure_pruning(table, options.compile)
        if options.dictionaries:
            measure_dictionaries(table)


if __name__ == "__main__":
    main()
