"""What the README shows, run as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.e2e
def test_the_library_example_runs() -> None:
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example is not None
    done = subprocess.run([sys.executable, "-c", example[1]], capture_output=True, text=True, timeout=120, check=True)
    assert "tokens/s, τ = " in done.stdout
    assert len(done.stdout.split("\n")[0]) > 10
