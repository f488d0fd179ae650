"""One line that says what is being loaded, and how far it is."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Label, ProgressBar

from dart_core.events import Loading


class LoadingBar(Horizontal):
    """Shown while the model loads; one can type meanwhile."""

    def compose(self) -> ComposeResult:
        """The stage and its bar."""
        yield Label("starting the engine", id="stage")
        yield ProgressBar(total=None, show_eta=False)

    def show(self, event: Loading) -> None:
        """Shows a stage; without a fraction the bar only says that something is going on."""
        self.query_one("#stage", Label).update(event.stage)
        bar = self.query_one(ProgressBar)
        bar.update(total=None if event.fraction is None else 1.0, progress=event.fraction or 0.0)
