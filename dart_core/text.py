"""From token ids to the text a person reads: detokenising, stop strings, reasoning blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers.decoders import DecodeStream


class Detokeniser:
    """Turns tokens into text as they come; bytes of an unfinished character wait for the rest."""

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = getattr(tokenizer, "backend_tokenizer", None) or tokenizer._tokenizer
        self._ids: list[int] = []
        self._stream = DecodeStream(ids=list(prompt_ids[-8:]), skip_special_tokens=True)
        self._text = ""

    def push(self, token: int) -> str:
        """The text that `token` completes, often one piece, sometimes nothing yet."""
        self._ids.append(token)
        piece = self._stream.step(self._tokenizer, token) or ""
        self._text += piece
        return piece

    def flush(self) -> str:
        """What an unfinished character at the very end decodes to (U+FFFD), once."""
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        rest = whole[len(self._text) :] if whole.startswith(self._text) else ""
        self._text += rest
        return rest


@dataclass(slots=True)
class StopStrings:
    """Cuts the text before the first stop string; holds back what may be the beginning of one."""

    stops: tuple[str, ...]
    held: str = ""
    hit: bool = False

    def push(self, text: str) -> str:
        """The part of the text that is safe to show."""
        if not self.stops:
            return text
        self.held += text
        found = [at for at in (self.held.find(stop) for stop in self.stops) if at >= 0]
        if found:
            self.hit = True
            shown, self.held = self.held[: min(found)], ""
            return shown
        keep = max(_overlap(self.held, stop) for stop in self.stops)
        shown, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return shown

    def flush(self) -> str:
        """What was held back, when nothing more comes."""
        shown, self.held = self.held, ""
        return shown


class ReasoningSplit:
    """Parts a reply that begins with `<think>…</think>` into reasoning and reply; tags may come in pieces."""

    OPEN, CLOSE = "<think>", "</think>"

    def __init__(self, opened: bool) -> None:
        """`opened`: the chat template has written `<think>` already."""
        self._mode = "reasoning" if opened else "start"
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, reply) to append."""
        self._held += text
        reasoning = ""
        if self._mode == "start":
            begin = self._held.lstrip()
            if begin.startswith(self.OPEN):
                self._mode, self._held = "reasoning", begin[len(self.OPEN) :]
            elif not self.OPEN.startswith(begin):
                self._mode = "reply"
            else:
                return "", ""
        if self._mode == "reasoning":
            before, tag, after = self._held.partition(self.CLOSE)
            if tag:
                self._mode, reasoning, self._held = "gap", before, after
            else:
                keep = _overlap(before, self.CLOSE)
                self._held = before[len(before) - keep :]
                return before[: len(before) - keep], ""
        if self._mode == "gap":  # empty lines between the two blocks belong to neither
            self._held = self._held.lstrip("\n")
            if self._held:
                self._mode = "reply"
        reply, self._held = self._held, ""
        return reasoning, reply

    def flush(self) -> tuple[str, str]:
        """(reasoning, reply) left when nothing more comes."""
        held, self._held = self._held, ""
        return (held, "") if self._mode == "reasoning" else ("", held)


def _overlap(text: str, tag: str) -> int:
    """Characters at the end of `text` that may be the beginning of `tag`."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
