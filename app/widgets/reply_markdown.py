"""Markdown that streams: HTML-like text stays, and a code fence is coloured only once it is whole."""

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from app.widgets.code_fence import CodeFence


def parser() -> MarkdownIt:
    """GitHub's Markdown without HTML, which Textual would delete: `List<String>` must stay as written.

    A line break in a paragraph stays one: models write verses and addresses so.
    """
    markdown = MarkdownIt("gfm-like", {"html": False})
    markdown.core.ruler.push("keep_breaks", keep_breaks)
    return markdown


def keep_breaks(state: StateCore) -> None:
    """Makes soft line breaks hard ones."""
    for block in state.tokens:
        for token in block.children or ():
            if token.type == "softbreak":
                token.type = "hardbreak"


class ReplyMarkdown(Markdown):
    """A reply. While `streaming`, text is appended; `finish` shows the whole once more, in colour."""

    def __init__(self, text: str = "", streaming: bool = False) -> None:
        super().__init__(text or None, parser_factory=parser, open_links=False)
        self.streaming = streaming
        self._stream = Markdown.get_stream(self) if streaming else None

    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        """Fences of our own, cheap while they grow."""
        if block_name in ("fence", "code_block"):
            return CodeFence
        return super().get_block_class(block_name)

    async def write(self, text: str) -> None:
        """Appends to the text."""
        if self._stream is not None:
            await self._stream.write(text)

    async def finish(self, text: str) -> None:
        """Ends the stream with the whole text."""
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None
        self.streaming = False
        await self.update(text)
