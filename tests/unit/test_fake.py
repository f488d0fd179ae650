"""The scripted engine keeps the promises of a real one: the same text whatever the draft, sound trees."""

import json
from pathlib import Path

import pytest

from dart_core.events import Delta, Event, Failed, Finished, Loading, Prefill, Reasoning, Step
from dart_core.fake import FakeEngine
from dart_core.opening import open_engine
from dart_core.options import EngineOptions, GenerateOptions
from models.errors import ModelError, UsageError


def engine(name: str = "fake:?rate=0", context: int | None = None) -> FakeEngine:
    opened = open_engine(EngineOptions(name, context))
    assert isinstance(opened, FakeEngine)
    return opened


def play(prompt: str | list[dict[str, str]] = "hi", **options: object) -> list[Event]:
    return list(engine().generate(prompt, GenerateOptions(**options)))


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def thought(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Reasoning))


def last(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


WHOLE = play()


@pytest.mark.parametrize(
    "options", [{"draft": False}, {"tree_size": 1}, {"tree_size": 4}, {"tree_size": 64, "seed": 9}]
)
def test_the_text_does_not_depend_on_the_draft(options: dict[str, object]):
    events = play(**options)
    assert (text(events), thought(events)) == (text(WHOLE), thought(WHOLE))
    assert last(events).usage.completion_tokens == last(WHOLE).usage.completion_tokens


def test_the_demo_shows_what_a_chat_must_draw():
    for part in ("```python", "|---|", "日本語", "👋", "List<String>", "<details>"):
        assert part in text(WHOLE)
    assert thought(WHOLE)
    kinds = [type(event) for event in WHOLE]
    assert kinds[0] is Prefill
    assert kinds.index(Reasoning) < kinds.index(Delta)
    assert last(WHOLE).usage.tau > 1.5
    assert last(play(draft=False)).usage.tau == 1


@pytest.mark.parametrize("size", [4, 16, 64])
def test_trees_hold_together(size: int):
    steps = [event for event in play(show_tree=True, tree_size=size) if isinstance(event, Step)]
    assert any(len(step.accepted) > 1 for step in steps)
    assert any(len(step.tree.parents) > len(step.accepted) for step in steps)
    before = None
    for step in steps:
        tree = step.tree
        assert len(tree.parents) <= size
        assert before is None or tree.token_ids[0] == before
        before = step.token_ids[-1]
        assert tree.parents[0] == -1
        for node in range(1, len(tree.parents)):
            assert tree.parents[node] < node
            assert tree.depths[node] == tree.depths[tree.parents[node]] + 1
            assert 0 <= tree.scores[node] <= 1
        for node in range(len(tree.parents)):
            tokens = [tree.token_ids[child] for child in tree.children(node)]
            assert len(set(tokens)) == len(tokens)
        assert step.accepted[0] == 0
        for parent, child in zip(step.accepted, step.accepted[1:], strict=False):
            assert tree.parents[child] == parent
        assert step.token_ids[:-1] == tuple(tree.token_ids[node] for node in step.accepted[1:])
        assert step.token_ids[-1] not in [tree.token_ids[child] for child in tree.children(step.accepted[-1])]


def test_trees_are_shown_only_when_asked_for():
    assert all(event.tree is None for event in WHOLE if isinstance(event, Step))


def test_every_token_is_counted_once():
    steps = [event for event in WHOLE if isinstance(event, Step)]
    usage = last(WHOLE).usage
    assert sum(len(step.token_ids) for step in steps) == usage.completion_tokens
    shown = [event.token_ids for event in WHOLE if isinstance(event, Delta | Reasoning)]
    assert sum(map(len, shown)) == usage.completion_tokens
    assert usage.accepted_tokens == sum(len(step.accepted) - 1 for step in steps)
    assert usage.steps == len(steps)


@pytest.mark.parametrize("limit", [1, 2, 7, 50])
def test_max_new_tokens(limit: int):
    events = play(max_new_tokens=limit)
    assert last(events).reason == "length"
    assert last(events).usage.completion_tokens == limit
    assert (thought(WHOLE) + text(WHOLE)).startswith(thought(events) + text(events))


def test_stop_string_is_cut_off():
    events = play(stop=("## Code",))
    assert last(events).reason == "stop"
    assert text(events) == text(WHOLE).partition("## Code")[0]


def test_the_context_ends():
    opened = engine(context=30)
    events = list(opened.generate("hi", GenerateOptions()))
    assert last(events).reason == "context"
    assert last(events).context == 30
    (failed,) = opened.generate("word " * 40, GenerateOptions())
    assert isinstance(failed, Failed)
    assert failed.exit_code == 2


def test_a_second_turn_gets_the_second_reply_and_reuses_the_first():
    opened = engine()
    first = list(opened.generate("one", GenerateOptions()))
    turns = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": text(first)},
        {"role": "user", "content": "two"},
    ]
    second = list(opened.generate(turns, GenerateOptions()))
    assert text(second) != text(first)
    assert isinstance(second[0], Prefill)
    assert second[0].reused > 0


def test_a_begun_reply_is_continued():
    begun = text(WHOLE)[:40]
    events = play([{"role": "user", "content": "hi"}, {"role": "assistant", "content": begun}])
    assert begun + text(events) == text(WHOLE)


def test_it_stops_before_the_next_step():
    asked = iter([False, False, True])
    events = list(engine().generate("hi", GenerateOptions(), lambda: next(asked)))
    assert last(events).reason == "cancelled"
    assert sum(isinstance(event, Step) for event in events) == 2


def test_a_script_of_ones_own(tmp_path: Path):
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"name": "mine", "replies": ["plain", {"text": "so far", "fail": "broken"}]}))
    opened = engine(f"fake:{path}?rate=0")
    assert opened.info.name == "mine"
    assert text(list(opened.generate("a", GenerateOptions()))) == "plain"
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    events = list(opened.generate(turns, GenerateOptions()))
    assert text(events) == "so far"
    assert events[-1] == Failed("broken", "this failure is part of the script")


@pytest.mark.parametrize(
    "script", ["", "[]", "{}", '{"replies": []}', '{"replies": [{"txt": "x"}]}', '{"replies": [{"text": 3}]}']
)
def test_a_wrong_script_is_a_model_that_cannot_be_loaded(tmp_path: Path, script: str):
    path = tmp_path / "script.json"
    path.write_text(script)
    with pytest.raises(ModelError, match=r"script\.json"):
        engine(f"fake:{path}")
    with pytest.raises(ModelError, match="nowhere"):
        engine("fake:nowhere")


@pytest.mark.parametrize("query", ["rate=x", "rate=-1", "rate=inf", "speed=1", "rate"])
def test_a_wrong_option_is_named(query: str):
    with pytest.raises(UsageError, match=query.partition("=")[0]):
        engine(f"fake:?{query}")


@pytest.mark.parametrize("prompt", ["", "  ", [], [{"role": "user", "content": ""}]])
def test_an_empty_prompt_fails(prompt: str | list[dict[str, str]]):
    (failed,) = play(prompt)
    assert isinstance(failed, Failed)
    assert failed.exit_code == 2


def test_loading_reports_progress():
    stages: list[Loading] = []
    open_engine(EngineOptions("fake:"), stages.append)
    fractions = [stage.fraction for stage in stages if stage.stage == "weights"]
    assert fractions == sorted(fractions)
    assert stages[-1] == Loading("ready", 1.0)
