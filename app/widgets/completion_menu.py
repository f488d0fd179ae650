"""What the slash command above the input may become. The input keeps the focus and moves the mark."""

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.completion import Completion


class CompletionMenu(OptionList, can_focus=False):
    """Shown while there is something to choose."""

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self._found: list[Completion] = []

    @property
    def chosen(self) -> Completion | None:
        """The marked completion while the menu is open."""
        return self._found[self.highlighted] if self.display and self.highlighted is not None else None

    def offer(self, found: list[Completion]) -> None:
        """Shows these, or closes the menu."""
        if found != self._found:
            self._found = found
            width = max((len(completion.label) for completion in found), default=0)
            self.clear_options()
            self.add_options(
                Option(Content.assemble(f"{completion.label:{width}}  ", (completion.help, "$text-muted")))
                for completion in found
            )
        self.highlighted = 0 if found else None
        self.display = bool(found)

    def move(self, by: int) -> None:
        """Marks the next (1) or last (−1) one, around the ends."""
        self.highlighted = ((self.highlighted or 0) + by) % len(self._found)
