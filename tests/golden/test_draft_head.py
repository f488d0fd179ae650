"""The draft head against five rounds written by the paper's code."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dart_core.draft_head import DraftHead, draft_logits, new_head_cache, prefill_head
from dart_core.head_file import load_head
from models.decoder import DecoderConfig, Linear, Target

HEAD = Path(__file__).parents[1] / "data/golden/head"
VECTORS = load_file(HEAD / "vectors.safetensors")
EMBED = VECTORS["embed_tokens.weight"]


def target() -> Target:
    config = DecoderConfig("llama", 64, 96, 12, 4, 2, 16, 512, 1e-6, 256, None, None)
    return Target(config, EMBED, (), torch.ones(64), Linear(EMBED), torch.ones(8), 1.0)


@pytest.fixture(scope="module")
def head() -> DraftHead:
    return load_head(HEAD, target())


def rounds() -> list[tuple[Tensor, Tensor, Tensor]]:
    """(tokens [M], taps [M, 192], logits [8, 128]) of each round."""
    names = ("token_ids", "aux_hidden", "logits")
    return [tuple(VECTORS[f"step{i}.{name}"][0] for name in names) for i in range(5)]  # type: ignore[misc]


def padded(rows: Tensor, size: int, fill: float) -> Tensor:
    """`rows` in the first places of a tensor of `size` rows, rubbish after them."""
    return torch.cat((rows, rows.new_full((size - len(rows), *rows.shape[1:]), fill)))


@pytest.mark.parametrize("size", [13, 16, 64])
def test_five_rounds(head: DraftHead, size: int) -> None:
    cache, length = new_head_cache(head, 64), 0
    for tokens, taps, expected in rounds():
        logits = draft_logits(
            head, cache, EMBED, padded(tokens, size, 511), padded(taps, size, torch.nan),
            torch.tensor([len(tokens)]), torch.tensor([length]),
        )  # fmt: skip
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        length += len(tokens)


def test_prompt_in_chunks(head: DraftHead) -> None:
    """A prompt taken in five rows at a time, its last chunk drafted from, gives the first round."""
    tokens, taps, expected = rounds()[0]
    cache = new_head_cache(head, 64)
    for start in (0, 5):
        rows = slice(start, start + 5)
        prefill_head(head, cache, EMBED, tokens[rows], taps[rows], torch.tensor([5]), torch.tensor([start]))
    logits = draft_logits(head, cache, EMBED, tokens[10:], taps[10:], torch.tensor([3]), torch.tensor([10]))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
