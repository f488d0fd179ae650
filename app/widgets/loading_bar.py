"""One line that says what is being loaded or read, and how far it is."""

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widgets import Label, ProgressBar

from dart_core.events import Loading, Prefill


class LoadingBar(Horizontal):
    """Shown while the model loads, and while it reads a long prompt; one can type meanwhile."""

    def compose(self) -> ComposeResult:
        """The stage and its bar."""
        yield Label("starting the engine", id="stage")
        yield ProgressBar(total=None, show_eta=False)

    def show(self, event: Loading | Prefill) -> None:
        """Shows a stage; without a fraction the bar only says that something is going on."""
        if isinstance(event, Loading):
            stage, fraction = event.stage, event.fraction
        else:
            stage, fraction = f"reading {event.total - event.reused} tokens", event.done / event.total
        self.query_one("#stage", Label).update(stage)
        bar = self.query_one(ProgressBar)
        bar.update(total=None if fraction is None else 1.0, progress=fraction or 0.0)
        self.display = True
