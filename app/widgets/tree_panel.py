"""The draft tree of a step: what was guessed, what was accepted, what the target wrote instead."""

import re

from textual.app import ComposeResult
from textual.containers import ScrollableContainer, Vertical
from textual.content import Content
from textual.widgets import Sparkline, Static

from app.tree_text import ACCEPTED, OWN, REJECTED, acceptance_bars, acceptance_by_depth, pieces, tree_lines
from dart_core.events import Step

STYLES = {ACCEPTED: "$text-success bold", OWN: "$text-warning bold", REJECTED: "$foreground 60%"}
NEWLINES = re.compile(r"\n+")
DRAFTED = "$text-success underline"
WRITTEN_CHARACTERS = 300  # of the reply, up to the step that is looked at
LEGEND = f"{ACCEPTED} accepted  {REJECTED} rejected  {OWN} the model's own"


class TreePanel(Vertical):
    """Follows the newest step, or stands still at one that a person has gone back to."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[Step] = []
        self._place: int | None = None  # None follows the newest
        self._blind = False  # the reply is being written without its trees

    def compose(self) -> ComposeResult:
        """Heading, accepted lengths, tree, and where there is room the text it led to."""
        yield Static(id="tree-head")
        yield Sparkline([], summary_function=max)
        with ScrollableContainer(id="tree-scroll"):
            yield Static(id="tree-lines")
        yield Static(id="tree-foot")

    def on_mount(self) -> None:
        """Says what will be seen here."""
        self.redraw()

    def on_resize(self) -> None:
        """More or less room."""
        self.redraw()

    def clear(self) -> None:
        """A new reply begins."""
        self._steps, self._place, self._blind = [], None, False
        self.redraw()

    def add(self, steps: list[Step]) -> None:
        """Steps that were just made."""
        self._steps += [step for step in steps if step.tree is not None]
        self._blind = not self._steps and (self._blind or bool(steps))
        if self._place is None:
            self.redraw()

    def move(self, by: int) -> None:
        """Goes back (−1) or forward (+1) through the reply's steps; past the newest it follows again."""
        if not self._steps:
            return
        place = (len(self._steps) - 1 if self._place is None else self._place) + by
        self._place = None if place >= len(self._steps) else max(place, 0)
        self.redraw()

    def redraw(self) -> None:
        """Draws the step that is looked at."""
        if not self.display:
            return
        head, lines = self.query_one("#tree-head", Static), self.query_one("#tree-lines", Static)
        self.query_one(Sparkline).data = [len(step.token_ids) for step in self._steps[-60:]]
        foot = self.query_one("#tree-foot", Static)
        if not self._steps:
            foot.update()
            head.update(Content("Draft tree"))
            when = "from the next reply on" if self._blind else "while the next reply is written"
            lines.update(Content(f"{LEGEND}\n\nThe tree of each step shows here\n{when}."))
            return
        place = len(self._steps) - 1 if self._place is None else self._place
        step = self._steps[place]
        first, *tree = tree_lines(step)
        held = "" if self._place is None else " (held)"
        head.update(Content(f"Step {place + 1} of {len(self._steps)}{held}: {first}"))
        roomy = foot.display
        below = f"\n{LEGEND}\n{'' if roomy else acceptance_by_depth(self._steps)}".rstrip()
        lines.update(Content("\n").join([*(_styled(line) for line in tree), Content(below)]))
        if roomy:
            foot.update(Content("\n\n").join([acceptance_bars(self._steps), _written(self._steps[: place + 1])]))


def _written(steps: list[Step]) -> Content:
    """The end of the text that steps wrote, drafted tokens underlined."""
    newest: list[tuple[str, bool]] = []
    length = 0
    for step in reversed(steps):
        newest[:0] = pieces(step)
        length += sum(len(text) for text, _ in pieces(step))
        if length > WRITTEN_CHARACTERS:
            break
    lines = [(NEWLINES.sub("⏎", text), DRAFTED if drafted else "") for text, drafted in newest]
    return Content.assemble("Written, drafted tokens underlined\n", *lines)


def _styled(line: str) -> Content:
    mark = next((mark for mark in line.lstrip("│└├─ ")[:1] if mark in STYLES), "")
    return Content.styled(line, STYLES[mark]) if mark else Content(line)
