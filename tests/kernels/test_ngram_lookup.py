"""The forms of the n-gram look-up against one another and against plain Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dart_core.ngram.build import build_ngram
from dart_core.ngram.model import load_ngram
from kernels import native
from kernels.ngram_lookup import NgramTable, ngram_lookup, ngram_lookup_reference
from tests.unit.test_ngram_build import counted, documents


@pytest.fixture(scope="module", params=[2, 3, 4, 5])
def order(request: pytest.FixtureRequest) -> int:
    order: int = request.param
    return order


@pytest.fixture(scope="module")
def table(order: int, tmp_path_factory: pytest.TempPathFactory) -> NgramTable:
    path = tmp_path_factory.mktemp("ngram") / "a.ngram"
    build_ngram(documents(40), order, path)
    return load_ngram(path)


def queries() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    contexts = torch.randint(-1, 12, (64, 4), generator=random).square().div(4).long()
    contexts[:5, 0] = -1
    return contexts, torch.randint(40, (64, 25), generator=random)


def test_reference_is_the_longest_seen_context(order: int, table: NgramTable) -> None:
    grams = counted(documents(40), order)
    contexts, tokens = queries()
    probability, matched = ngram_lookup_reference(table, contexts, tokens)
    for b, context in enumerate(contexts.tolist()):
        for k, token in enumerate(tokens[b].tolist()):
            length = next((n for n in range(order - 1, 0, -1) if (*context[-n:], token) in grams), 0)
            assert int(matched[b, k]) == length
            before = tuple(context[len(context) - length :])
            expected = grams[(*before, token)] / grams[before] if length else 0
            assert float(probability[b, k]) == pytest.approx(expected, rel=1e-6)


def test_native_is_the_reference(table: NgramTable) -> None:
    if not native.load():
        pytest.skip(native.status().reason)
    for one, other in zip(ngram_lookup(table, *queries()), ngram_lookup_reference(table, *queries()), strict=True):
        assert torch.equal(one, other)


def test_native_refuses_what_is_no_table(table: NgramTable) -> None:
    if not native.load():
        pytest.skip(native.status().reason)
    with pytest.raises(RuntimeError, match="six arrays"):
        torch.ops.dart.ngram_lookup(table.arrays[:5], 3, table.bits, *queries())
    with pytest.raises(RuntimeError, match="bucket must be"):
        torch.ops.dart.ngram_lookup(table.arrays, 3, table.bits + 1, *queries())


TRITON = """
import sys, torch
from dart_core.ngram.model import load_ngram
from kernels.ngram_lookup import ngram_lookup_reference
from kernels.ngram_lookup_triton import ngram_lookup_triton
from tests.kernels.test_ngram_lookup import queries
from pathlib import Path
table = load_ngram(Path(sys.argv[1]))
for one, other in zip(ngram_lookup_triton(table, *queries()), ngram_lookup_reference(table, *queries())):
    assert torch.equal(one, other)
"""


def test_triton_is_the_reference(tmp_path: Path) -> None:
    """In Triton's interpreter, which must be chosen before Triton is imported."""
    pytest.importorskip("triton")
    build_ngram(documents(40), 5, tmp_path / "a.ngram")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    arguments = [sys.executable, "-c", TRITON, str(tmp_path / "a.ngram")]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
