"""A code fence whose cost does not grow with its length: drawn in parts, coloured outside the screen's loop."""

from asyncio import to_thread

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Label
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

PART_LINES = 50  # a widget is drawn whole: 2,000 lines in one take 150 ms at every append, the last 50 take 2


class CodeFence(MarkdownFence):
    """Plain while the reply is being written; `colour` adds the colours once it is whole."""

    DEFAULT_CSS = """
    CodeFence { padding: 0 2; }
    CodeFence > Label { padding: 0; }
    """

    @classmethod
    def highlight(cls, code: str, language: str, ansi: bool = False, dark: bool = False) -> Content:
        """The code as it is: what Textual calls here runs in the screen's loop."""
        return Content(code)

    def compose(self) -> ComposeResult:
        """The code's parts."""
        self._parts = plain_parts(self.code)
        for part in self._parts:
            yield Label(part)

    def on_mount(self) -> None:
        """Coloured at once where the text is whole."""
        if not getattr(self._markdown, "streaming", False):
            self.colour()

    def notify_style_update(self) -> None:
        """New colours with a new theme."""
        MarkdownBlock.notify_style_update(self)
        if any(part.spans for part in getattr(self, "_parts", [])):
            self.colour()

    @work(exclusive=True)
    async def colour(self) -> None:
        """Highlights the code by its language; 2,000 lines take 0.3 s, in a thread."""
        ansi, dark = self.app.native_ansi_color, self.app.current_theme.dark
        await self._show(await to_thread(coloured_parts, self.code, self.lexer, ansi, dark))

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if not isinstance(block, CodeFence):
            await super()._update_from_block(block)
            return
        self._copy_context(block)
        await self._show(plain_parts(self.code))

    async def _show(self, parts: list[Content]) -> None:
        """Draws the parts that have changed."""
        labels = list(self.query_children(Label))
        for label, old, new in zip(labels, self._parts, parts, strict=False):
            if old is not new and (old.spans or new.spans or old.plain != new.plain):
                label.update(new)
        for label in labels[len(parts) :]:
            await label.remove()
        if added := parts[len(labels) :]:
            await self.mount_all(Label(part) for part in added)
        self._parts = parts


def plain_parts(code: str) -> list[Content]:
    """The code in parts of at most `PART_LINES` lines, at least one part."""
    lines = code.split("\n")
    return [Content("\n".join(lines[at : at + PART_LINES])) for at in range(0, len(lines), PART_LINES)]


def coloured_parts(code: str, language: str, ansi: bool, dark: bool) -> list[Content]:
    """As `plain_parts`, in colours."""
    lines = MarkdownFence.highlight(code, language, ansi=ansi, dark=dark).split("\n", allow_blank=True)
    return [Content("\n").join(lines[at : at + PART_LINES]) for at in range(0, len(lines), PART_LINES)]
