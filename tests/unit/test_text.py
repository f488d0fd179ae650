"""Stop strings and reasoning blocks give the same text however it is cut into pieces."""

import random

import pytest

from dart_core.text import ReasoningSplit, StopStrings


def pieces(text: str, seed: int) -> list[str]:
    choose = random.Random(seed)
    cuts = sorted(choose.sample(range(len(text) + 1), min(len(text), choose.randint(1, 12))))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize(("text", "stops", "shown"), [
    ("hello STOP world", ("STOP",), "hello "),
    ("hello STO", ("STOP",), "hello STO"),
    ("aaab", ("aab",), "a"),
    ("one two three", ("three", "two"), "one "),
    ("no stop here", ("xyz",), "no stop here"),
    ("nested abcabd end", ("abd",), "nested abc"),
    ("crlf\n\nUser: hi", ("\n\nUser:",), "crlf"),
])  # fmt: skip
def test_stop_strings(text: str, stops: tuple[str, ...], shown: str) -> None:
    for seed in range(50):
        cutter = StopStrings(stops)
        out = ""
        for piece in pieces(text, seed):
            out += cutter.push(piece)
            assert shown.startswith(out), "text was shown that the stop string takes back"
            if cutter.hit:
                break
        if not cutter.hit:
            out += cutter.flush()
        assert out == shown
        assert cutter.hit == (shown != text)


@pytest.mark.parametrize(("text", "opened", "reasoning", "reply"), [
    ("<think>because</think>\n\nYes.", False, "because", "Yes."),
    ("\n<think>\nwell</think>ok", False, "\nwell", "ok"),
    ("because</think>Yes", True, "because", "Yes"),
    ("plain <think>text</think>", False, "", "plain <think>text</think>"),
    ("<thin air", False, "", "<thin air"),
    ("<think>never closed </thin", False, "never closed </thin", ""),
    ("", False, "", ""),
    ("  indented", False, "", "  indented"),
])  # fmt: skip
def test_reasoning_is_parted_from_the_reply(text: str, opened: bool, reasoning: str, reply: str) -> None:
    for seed in range(50):
        split = ReasoningSplit(opened)
        got = ["", ""]
        for pair in [*(split.push(piece) for piece in pieces(text, seed)), split.flush()]:
            got[0] += pair[0]
            got[1] += pair[1]
        assert got == [reasoning, reply]
