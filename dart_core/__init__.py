"""One generation, from prompt to streamed tokens.

    from dart_core import Engine, GenerateOptions, Delta

`Engine` is imported on first use, so that `import dart_core` (and the screen of the chat) never waits for torch.
"""

from typing import TYPE_CHECKING, Any

from dart_core.events import (
    Delta,
    Event,
    Failed,
    Finished,
    Loading,
    Prefill,
    Reasoning,
    Step,
    Timings,
    TreeView,
    Usage,
)
from dart_core.options import EngineOptions, GenerateOptions

if TYPE_CHECKING:
    from dart_core.engine import Engine

__all__ = [
    "Delta",
    "Engine",
    "EngineOptions",
    "Event",
    "Failed",
    "Finished",
    "GenerateOptions",
    "Loading",
    "Prefill",
    "Reasoning",
    "Step",
    "Timings",
    "TreeView",
    "Usage",
]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from dart_core.engine import Engine

        return Engine
    raise AttributeError(name)
