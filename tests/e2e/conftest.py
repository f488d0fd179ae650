"""The default model, opened once for all end-to-end tests."""

import pytest

from dart_core.engine import Engine
from dart_core.options import EngineOptions


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The real default model in 4 bits."""
    return Engine.open(EngineOptions(context=2048))
