"""A few seconds of the fuzzing that `python -m tests.fuzz_ngram` does for a minute."""

from tests.fuzz_ngram import fuzz


def test_damaged_files() -> None:
    counts = fuzz(seconds=4, seed=1)
    assert all(refused + used > 0 for refused, used in counts.values()), counts
    assert sum(refused for refused, _ in counts.values()) > 0
