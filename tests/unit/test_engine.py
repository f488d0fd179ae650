"""The engine over a tiny random model: turns, stops, limits, errors."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dart_core.engine import Engine, common_prefix
from dart_core.events import Delta, Event, Failed, Finished, Prefill, Reasoning, Step
from dart_core.options import EngineOptions, GenerateOptions
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("model") / "tiny", seed=3)


@pytest.fixture
def engine(path: Path) -> Engine:
    return Engine.open(EngineOptions(model=str(path), context=400))


def run(engine: Engine, prompt: str | list[dict[str, str]], cancelled: Callable[[], bool] = lambda: False,
        **options: object) -> list[Event]:  # fmt: skip
    return list(engine.generate(prompt, GenerateOptions(**options), cancelled))  # type: ignore[arg-type]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta))


def end_of(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished), events[-1]
    return events[-1]


def test_events_come_in_order_and_add_up(engine: Engine) -> None:
    events = run(engine, "hello", max_new_tokens=30)
    kinds = [type(event) for event in events]
    assert kinds[0] is Prefill
    assert kinds[-1] is Finished
    assert kinds.index(Step) > max(i for i, kind in enumerate(kinds) if kind is Prefill)
    steps = [event for event in events if isinstance(event, Step)]
    written = [token for step in steps for token in step.token_ids]
    usage = end_of(events).usage
    assert usage.completion_tokens == len(written) == 30
    assert usage.steps == len(steps)
    assert usage.accepted_tokens == sum(len(step.token_ids) - 1 for step in steps)
    assert text_of(events) == engine.tokenizer.decode(written, skip_special_tokens=True)
    assert end_of(events).reason == "length"
    assert end_of(events).context == usage.prompt_tokens + 30 == steps[-1].context


def test_text_is_the_same_at_every_tree_size_and_sampled(engine: Engine) -> None:
    for settings in (
        {},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 0.8, "top_k": 9, "repetition_penalty": 1.2},
    ):
        texts = {
            text_of(run(engine, "one two one two", max_new_tokens=80, tree_size=size, **settings))
            for size in (1, 4, 16, 64)
        }
        assert len(texts) == 1


def test_a_second_turn_reads_only_what_is_new(engine: Engine) -> None:
    first = run(engine, "hello there", max_new_tokens=20)
    turns = [
        {"role": "user", "content": "hello there"},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "and then?"},
    ]
    second = run(engine, turns, max_new_tokens=20)
    prefill = [event for event in second if isinstance(event, Prefill)]
    assert prefill[0].reused >= end_of(first).usage.prompt_tokens - 1
    engine.close()
    assert text_of(run(engine, turns, max_new_tokens=20)) == text_of(second)
    longer = [*turns[:-1], {"role": "user", "content": "and now?"}]
    assert text_of(run(engine, longer, max_new_tokens=5)) != ""


def test_stop_strings_end_the_text_and_the_next_turn_starts_there(engine: Engine) -> None:
    whole = text_of(run(engine, "stop me", max_new_tokens=60))
    stop = whole[20:23]
    for size in (1, 16, 64):
        events = run(engine, "stop me", max_new_tokens=60, stop=(stop,), tree_size=size)
        assert text_of(events) == whole[: whole.index(stop)]
        assert end_of(events).reason == "stop"
    turns = [
        {"role": "user", "content": "stop me"},
        {"role": "assistant", "content": whole[: whole.index(stop)]},
        {"role": "user", "content": "go on"},
    ]
    after_stop = text_of(run(engine, turns, max_new_tokens=20))
    engine.close()
    assert text_of(run(engine, turns, max_new_tokens=20)) == after_stop


def test_the_context_ends_a_reply_at_its_last_token(path: Path) -> None:
    engine = Engine.open(EngineOptions(model=str(path), context=100))
    for size in (1, 64):
        events = run(engine, "a a a a a a a a", tree_size=size)
        assert end_of(events).reason == "context"
        assert end_of(events).context == 100


def test_cancelling_keeps_the_text_and_the_engine(engine: Engine) -> None:
    whole = text_of(run(engine, "cancel", max_new_tokens=60, tree_size=1))
    asked = iter([False] * 10 + [True] * 100)
    events = run(engine, "cancel", lambda: next(asked), max_new_tokens=60, tree_size=1)
    assert end_of(events).reason == "cancelled"
    assert whole.startswith(text_of(events))
    assert 0 < end_of(events).usage.completion_tokens < 60
    assert text_of(run(engine, "cancel", max_new_tokens=60)) == whole


def test_closing_the_iterator_leaves_a_usable_engine(engine: Engine) -> None:
    whole = text_of(run(engine, "close", max_new_tokens=40))
    running = engine.generate("close", GenerateOptions(max_new_tokens=40, tree_size=1))
    for _ in range(12):
        next(running)
    running.close()  # type: ignore[attr-defined]
    assert text_of(run(engine, "close", max_new_tokens=40)) == whole


@pytest.mark.parametrize(("prompt", "cause"), [
    ("", "empty"), ("   \n", "empty"), ([], "empty"), ([{"role": "user", "content": " "}], "empty"),
    ([{"role": "robot", "content": "x"}], "not a message"), ("long " * 200, "tokens long"),
])  # fmt: skip
def test_wrong_prompts_fail_with_the_cause(engine: Engine, prompt: str | list[dict[str, str]], cause: str) -> None:
    events = run(engine, prompt)
    failed = events[-1]
    assert isinstance(failed, Failed)
    assert cause in failed.error
    assert failed.exit_code == 2
    assert failed.hint


def test_the_oldest_turns_make_room(engine: Engine) -> None:
    turns = [{"role": "system", "content": "Be brief."}]
    for i in range(8):
        turns += [
            {"role": "user", "content": f"question {i} " * 4},
            {"role": "assistant", "content": "answer"},
        ]
    turns.append({"role": "user", "content": "last question"})
    events = run(engine, turns, max_new_tokens=5)
    assert isinstance(events[0], Prefill)
    assert events[0].dropped > 0
    assert events[0].dropped % 2 == 0  # whole turns
    assert end_of(events).usage.prompt_tokens <= 300


def test_an_assistant_message_at_the_end_is_continued(engine: Engine) -> None:
    turns = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one two"}]
    assert end_of(run(engine, turns, max_new_tokens=10)).usage.completion_tokens == 10


def test_trees_are_shown_when_asked_for(engine: Engine) -> None:
    events = run(engine, "ab ab ab ab", max_new_tokens=40, show_tree=True)
    steps = [event for event in events if isinstance(event, Step)]
    for step in steps:
        assert step.tree is not None
        assert step.tree.parents[0] == -1
        assert len(step.tree.texts) == len(step.tree.token_ids) <= step.tree_size
        for above, node, token in zip(step.accepted, step.accepted[1:], step.token_ids, strict=False):
            assert step.tree.parents[node] == above
            assert step.tree.token_ids[node] == token
    assert any(len(step.accepted) > 1 for step in steps)
    assert not any(isinstance(event, Reasoning) for event in events)


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2, 3]) == 2
