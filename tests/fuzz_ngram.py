"""Damaged draft heads, tries and n-gram models: refused in words or used, never a crash, never much memory.

`python -m tests.fuzz_ngram [--seconds 60] [--seed 0]`; the test run does a few seconds of it.
"""

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dart_core.draft_head import draft_logits, new_head_cache
from dart_core.head_file import load_head
from dart_core.ngram.build import build_ngram
from dart_core.ngram.model import load_ngram
from dart_core.ngram.trie import import_trie
from dart_core.prune import PruneConfig, build_tree, top_candidates
from kernels.ngram_lookup import ngram_lookup, ngram_lookup_reference
from models.errors import ModelError
from tests.golden.test_draft_head import EMBED, HEAD, rounds, target
from tests.golden.test_ngram import CONVERSATIONS, NGRAM

MEMORY_MB = 300  # what all damaged files together may add to the process
INTERESTING = (0, 1, 2, 127, 128, 255)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed (most often among the first, where the counts are), cut out, doubled or cut off."""
    result = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        limit = chance.choice((16, 64, 512, len(result)))
        at = chance.randrange(max(1, min(limit, len(result))))
        match chance.randrange(8):
            case 0:
                del result[at:]
            case 1:
                del result[at : at + chance.randrange(1, 64)]
            case 2:
                result[at:at] = result[at : at + chance.randrange(1, 64)]
            case 3:
                result[at : at + 8] = chance.choice((b"\xff" * 8, b"\0" * 8, (1 << 40).to_bytes(8, "little")))
            case 4 if result:
                result[min(at, len(result) - 1)] = chance.choice(INTERESTING)
            case _ if result:
                result[min(at, len(result) - 1)] ^= 1 << chance.randrange(8)
    return bytes(result)


def use_head(directory: Path) -> None:
    head = load_head(directory, target())
    tokens, taps, _ = rounds()[0]
    logits = draft_logits(head, new_head_cache(head, 32), EMBED, tokens, taps, torch.tensor([13]), torch.tensor([0]))
    candidates = top_candidates(logits, head.target_ids, PruneConfig())
    build_tree(candidates, torch.tensor([1, 2]), torch.tensor([2]), PruneConfig(), 32)


def use_trie(directory: Path) -> None:
    import_trie(directory / "file", directory / "model")
    use_ngram(directory / "model")


def use_ngram(path: Path) -> None:
    table = load_ngram(path)
    contexts, tokens = torch.randint(-1, 60, (64, 4)), torch.randint(512, (64, 25))
    for lookup in (ngram_lookup, ngram_lookup_reference):
        q, _ = lookup(table, contexts, tokens)
        assert ((q >= 0) & (q <= 1)).all()
    candidates = top_candidates(torch.randn(8, 512), torch.arange(512), PruneConfig())
    build_tree(candidates, contexts[0], torch.tensor([2]), PruneConfig(), 64, table)


def held_mb() -> float:
    """The most memory this process has held, MB."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1e3


def fuzz(seconds: float, seed: int) -> dict[str, tuple[int, int]]:
    """Damages files for `seconds`; how many of each kind were (refused, used). Any other error gets out."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        head = directory / "head"
        shutil.copytree(HEAD, head)
        build_ngram(CONVERSATIONS, 4, directory / "good")
        kinds: dict[str, tuple[Path, Path, Callable[[], None]]] = {
            "head config": (HEAD / "config.json", head / "config.json", lambda: use_head(head)),
            "head weights": (HEAD / "model.safetensors", head / "model.safetensors", lambda: use_head(head)),
            "trie": (NGRAM / "order3_reduced3.trie", directory / "file", lambda: use_trie(directory)),
            "n-gram model": (directory / "good", directory / "bad", lambda: use_ngram(directory / "bad")),
        }
        for _, _, use in (kinds["head config"], kinds["head weights"]):
            use()
        counts = dict.fromkeys(kinds, (0, 0))
        before, end = held_mb(), time.monotonic() + seconds
        while time.monotonic() < end:
            kind, (good, bad, use) = chance.choice(list(kinds.items()))
            bad.write_bytes(damaged(good.read_bytes(), chance))
            refused, used = counts[kind]
            try:
                use()
                counts[kind] = refused, used + 1
            except ModelError as error:
                if not (error.cause and error.hint):
                    raise
                counts[kind] = refused + 1, used
            finally:
                shutil.copyfile(good, bad)
        grown = held_mb() - before
        assert grown < MEMORY_MB, f"damaged files took {grown:.0f} MB"
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for kind, (refused, used) in fuzz(options.seconds, options.seed).items():
        print(f"{kind}: {refused} refused, {used} used")
