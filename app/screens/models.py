"""The models on this machine: choose one, or type where it is."""

from asyncio import to_thread
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from app.model_list import LocalModel, fit, free_memory, local_models

KEYS = "Enter opens the marked one, or what was typed where none fits · Esc closes"


class ModelsScreen(ModalScreen[str | None]):
    """Gives what /model takes, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close"),
        Binding("up", "move('cursor_up')", "Up", show=False),
        Binding("down", "move('cursor_down')", "Down", show=False),
        Binding("pageup", "move('page_up')", "Page up", show=False),
        Binding("pagedown", "move('page_down')", "Page down", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._all: list[LocalModel] = []
        self._found: list[LocalModel] = []

    def compose(self) -> ComposeResult:
        """A line to type in above the list. The line keeps the keys."""
        with Vertical():
            yield Input(placeholder="Part of a name, or a directory, a .gguf file, ORG/NAME")
            models = OptionList()
            models.can_focus = False
            yield models
            yield Label(KEYS)

    async def on_mount(self) -> None:
        """Looks around; folders may be slow."""
        self.query_one(OptionList).loading = True
        self._all = await to_thread(local_models)
        self.query_one(OptionList).loading = False
        self._fill(self.query_one(Input).value)

    @on(Input.Changed)
    def search(self, event: Input.Changed) -> None:
        """Narrows the list while one types."""
        self._fill(event.value)

    @on(Input.Submitted)
    def open_marked(self, event: Input.Submitted) -> None:
        """Opens the marked model, or the one whose place was typed."""
        if self._found:
            self.query_one(OptionList).action_select()
        elif event.value.strip():
            self.dismiss(event.value.strip())

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        """Opens a model."""
        self.dismiss(self._found[event.option_index].spec)

    def action_move(self, action: str) -> None:
        """Moves the mark."""
        getattr(self.query_one(OptionList), f"action_{action}")()

    def _fill(self, typed: str) -> None:
        free = free_memory()
        words = typed.lower().split()
        self._found = [model for model in self._all if all(word in model.spec.lower() for word in words)]
        models = self.query_one(OptionList)
        models.clear_options()
        models.add_options(Option(_line(model, free)) for model in self._found)
        models.highlighted = 0 if self._found else None


def _line(model: LocalModel, free: int | None) -> Content:
    """Name, kind and size, and where it lies below."""
    about = " · ".join(filter(None, [model.kind, fit(model.memory, free)]))
    line = Content.assemble(f"{model.name}  ", (about, "$foreground 60%"))
    if model.spec not in ("default", model.name):
        line = Content.assemble(line, (f"\n   {model.spec}", "$foreground 60%"))
    return line
