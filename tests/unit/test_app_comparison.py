"""What `/compare` says about two replies."""

import json
from dataclasses import replace

import pytest

from app.comparison import comparison, other_way
from app.notes import figures, note, stats_json
from app.store import Message
from dart_core.events import Failed, Finished, Timings, Usage
from dart_core.options import GenerateOptions
from models.errors import UsageError


def reply(text: str, draft: bool, state: str = "complete") -> Message:
    speed = 331.0 if draft else 260.0
    end = Finished(
        "eos", Usage(10, 212, 90 * draft, 45 * draft, 167 if draft else 212),
        Timings(0, 10, 1.0, 1.0, 212, 1.0, speed, 90, 45), 222, 8192,
    )  # fmt: skip
    options = GenerateOptions(draft=draft, stop=("x",), temperature=0.5)
    return Message(1, 1, None, "assistant", text, "", state, 0.0, "fake", stats_json(end, options))


def test_equal_texts_and_both_figures():
    lines = comparison(reply("hello", True), reply("hello", False)).splitlines()
    assert lines == [
        "drafting on: 212 tokens, 45 drafted, 331 tok/s, τ 1.27",
        "drafting off: 212 tokens, 0 drafted, 260 tok/s, τ 1.00",
        "the texts are equal",
    ]
    assert comparison(reply("hello", False), reply("hello", True)).splitlines() == lines


@pytest.mark.parametrize(("other", "where"), [("help", 4), ("hello!", 6), ("", 1)])
def test_a_difference_is_placed(other: str, where: int):
    assert comparison(reply("hello", True), reply(other, False)).endswith(f"differ from character {where} on")


def test_a_stopped_reply_is_compared_as_far_as_it_goes():
    assert comparison(reply("hello", True), reply("hel", False, "stopped")).endswith("equal so far")
    assert comparison(reply("hello", True), reply("hex", False, "stopped")).endswith("character 3 on")


def test_the_options_come_back_with_drafting_switched():
    assert other_way(reply("hello", True)) == GenerateOptions(draft=False, stop=("x",), temperature=0.5)
    for broken in (reply("hello", True, "stopped"), replace(reply("hello", True), stats_json="")):
        with pytest.raises(UsageError, match="to its end"):
            other_way(broken)


def test_notes():
    done = reply("hello", True)
    assert note(done) == "212 tokens, 45 drafted, 331 tok/s, τ 1.27"
    assert note(replace(done, state="stopped")).startswith("stopped · 212 tokens")
    failed = stats_json(Failed("out of ink", "buy some"), GenerateOptions(), dropped=3)
    lines = note(replace(done, state="failed", stats_json=failed)).splitlines()
    assert lines == ["out of ink", "Try: buy some", "the 3 oldest messages did not fit the context"]
    for foreign in ("", "nonsense", "[1]", json.dumps({"usage": 3}), json.dumps({"usage": {}, "timings": {}})):
        assert note(replace(done, stats_json=foreign)) == ""
    assert figures({}) == ""
