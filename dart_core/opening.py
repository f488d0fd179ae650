"""Opens the engine that a model's name asks for. Torch is imported only for a real one."""

from collections.abc import Callable, Iterator
from typing import Protocol

from dart_core.events import Event, Loading, ModelInfo
from dart_core.options import EngineOptions, GenerateOptions

Prompt = str | list[dict[str, str]]


class EngineLike(Protocol):
    """What the chat, the command line, the server and the tests need of an engine."""

    info: ModelInfo

    def generate(
        self, prompt: Prompt, options: GenerateOptions, cancelled: Callable[[], bool] = ...
    ) -> Iterator[Event]:
        """Events of one reply; `cancelled` is asked before every step."""

    def close(self) -> None:
        """Frees what the engine holds."""


def open_engine(options: EngineOptions, progress: Callable[[Loading], None] = lambda _: None) -> EngineLike:
    """The engine for `options.model`: one that plays a script for "fake:…", else the real one.

    Raises ModelError or UsageError (`models.errors`).
    """
    if options.model.startswith("fake:"):
        from dart_core.fake import FakeEngine

        return FakeEngine.open(options, progress)
    from dart_core.engine import Engine

    return Engine.open(options, progress)
