"""The engine in its child process: order of events, stopping, and every way in which one side may die."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dart_core.client import LOG_BYTES, EngineClient
from dart_core.events import Delta, Event, Failed, Finished, Loading, Prefill, Ready, Step
from dart_core.opening import open_engine
from dart_core.options import EngineOptions, GenerateOptions
from dart_core.worker import failure
from models.errors import UsageError

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0  # seconds; reached only where something hangs


@pytest.fixture
def client(tmp_path: Path) -> Iterator[EngineClient]:
    client = EngineClient(tmp_path / "logs" / "engine.log")
    yield client
    client.close()


def until(client: EngineClient, enough: Callable[[Event], bool]) -> list[Event]:
    """Polls until an event is enough; returns all events up to then."""
    events: list[Event] = []
    end = time.monotonic() + PATIENCE
    while not any(map(enough, events)):
        assert time.monotonic() < end, events[-3:]
        time.sleep(0.005)
        events += client.poll()
    return events


def is_end(event: Event) -> bool:
    return isinstance(event, Finished | Failed)


def is_a(kind: type) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, kind)


def test_events_come_in_order_and_as_the_engine_made_them(client: EngineClient):
    client.start(EngineOptions("fake:?rate=0"))
    loading = until(client, is_a(Ready))
    assert all(isinstance(event, Loading) for event in loading[:-1])
    assert loading[-1].info.name == "fake demo"
    client.send("hi", GenerateOptions(show_tree=True, tree_size=64))
    assert client.busy
    events = until(client, is_end)
    assert not client.busy
    wanted = list(
        open_engine(EngineOptions("fake:?rate=0")).generate("hi", GenerateOptions(show_tree=True, tree_size=64))
    )
    steady = (Prefill, Delta)
    assert [e for e in events if isinstance(e, steady)] == [e for e in wanted if isinstance(e, steady)]
    assert [e.tree for e in events if isinstance(e, Step)] == [e.tree for e in wanted if isinstance(e, Step)]
    assert isinstance(events[-1], Finished)
    assert client.poll() == []


def test_a_message_sent_while_loading_waits(client: EngineClient):
    client.start(EngineOptions("fake:?rate=0&load=0.2"))
    client.send("hi", GenerateOptions(max_new_tokens=3))
    kinds = [type(event) for event in until(client, is_end)]
    assert kinds.index(Ready) < kinds.index(Prefill)
    assert kinds[-1] is Finished


def test_stopping_takes_at_most_one_step_and_the_next_reply_follows(client: EngineClient):
    client.start(EngineOptions("fake:?rate=1"))  # a step takes seconds
    client.send("hi", GenerateOptions())
    until(client, is_a(Step))
    client.stop()
    events = until(client, is_end)
    assert sum(isinstance(event, Step) for event in events) <= 1
    assert events[-1].reason == "cancelled"
    client.stop()  # nothing runs: nothing happens
    client.send("again", GenerateOptions(max_new_tokens=1))
    assert until(client, is_end)[-1].reason == "length"


def test_a_message_stopped_while_loading_is_acknowledged(client: EngineClient):
    client.start(EngineOptions("fake:?rate=1&load=0.2"))
    client.send("hi", GenerateOptions())
    client.stop()
    assert until(client, is_end)[-1].reason == "cancelled"


def test_one_reply_at_a_time(client: EngineClient):
    with pytest.raises(RuntimeError, match="start"):
        client.send("hi", GenerateOptions())
    client.start(EngineOptions("fake:?rate=1"))
    client.send("hi", GenerateOptions())
    with pytest.raises(RuntimeError, match="stop"):
        client.send("hi", GenerateOptions())


def test_a_failed_prompt_leaves_the_engine_usable(client: EngineClient):
    client.start(EngineOptions("fake:?rate=0"))
    client.send("", GenerateOptions())
    failed = until(client, is_end)[-1]
    assert isinstance(failed, Failed)
    assert failed.exit_code == 2
    client.send("hi", GenerateOptions(max_new_tokens=2))
    assert isinstance(until(client, is_end)[-1], Finished)


def test_a_model_that_cannot_be_loaded(client: EngineClient):
    client.start(EngineOptions("fake:/nowhere.json"))
    failed = until(client, is_end)[-1]
    assert isinstance(failed, Failed)
    assert failed.exit_code == 3
    assert "/nowhere.json" in failed.error
    client.send("hi", GenerateOptions())
    assert isinstance(until(client, is_end)[-1], Failed)
    assert not client.busy


def test_another_model_takes_the_place_of_a_busy_one(client: EngineClient):
    client.start(EngineOptions("fake:?rate=1"))
    client.send("hi", GenerateOptions())
    until(client, is_a(Step))
    first = client.pid
    client.start(EngineOptions("fake:?rate=0"))
    assert not client.busy
    assert is_gone(first)
    events = until(client, is_a(Ready))
    assert not any(isinstance(event, Step | Finished) for event in events)


@pytest.mark.parametrize("ready", [True, False])
def test_a_killed_child_is_a_failure_that_names_the_log(client: EngineClient, ready: bool):
    client.start(EngineOptions("fake:?rate=1" if ready else "fake:?load=60"))
    client.send("hi", GenerateOptions())
    until(client, is_a(Step if ready else Loading))
    os.kill(client.pid, signal.SIGKILL)
    failed = until(client, is_end)[-1]
    assert isinstance(failed, Failed)
    assert "SIGKILL" in failed.error
    assert str(client.log_path) in failed.hint
    assert failed.exit_code == (1 if ready else 3)
    assert not client.busy
    client.start(EngineOptions("fake:?rate=0"))
    until(client, is_a(Ready))


def test_the_child_ignores_ctrl_c(client: EngineClient):
    client.start(EngineOptions("fake:?rate=0"))
    until(client, is_a(Ready))
    os.kill(client.pid, signal.SIGINT)
    client.send("hi", GenerateOptions(max_new_tokens=2))
    assert isinstance(until(client, is_end)[-1], Finished)


PARENT = """
import sys, time
from pathlib import Path
from dart_core.client import EngineClient
from dart_core.options import EngineOptions, GenerateOptions
if __name__ == "__main__":
    client = EngineClient(Path(sys.argv[1]))
    client.start(EngineOptions(sys.argv[2]))
    client.send("hi", GenerateOptions())
    while not client.poll():
        time.sleep(0.01)
    print(client.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("model", ["fake:?rate=1", "fake:?load=600"])
def test_the_child_ends_when_its_parent_is_killed(tmp_path: Path, model: str):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log"), model],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert not is_gone(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + PATIENCE
    while not is_gone(child):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_child_begins_without_torch_textual_or_the_parents_program():
    code = "import sys, dart_core.worker; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert {"torch", "transformers", "textual", "app"}.isdisjoint(modules.stdout.split())


def test_modules_in_the_working_directory_are_not_imported(
    client: EngineClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "random.py").write_text("raise SystemExit('imported from the working directory')")
    monkeypatch.chdir(tmp_path)
    client.start(EngineOptions("fake:?rate=0"))
    assert isinstance(until(client, lambda event: isinstance(event, Ready | Failed))[-1], Ready)


def test_a_long_log_makes_room(client: EngineClient):
    client.log_path.parent.mkdir()
    client.log_path.write_bytes(b"x" * (LOG_BYTES + 1))
    client.start(EngineOptions("fake:"))
    assert client.log_path.stat().st_size == 0
    assert client.log_path.with_name("engine.log.1").stat().st_size == LOG_BYTES + 1


def test_an_error_nobody_foresaw_leaves_its_traceback(capsys: pytest.CaptureFixture[str]):
    assert failure(UsageError("cause", "hint"), 1) == Failed("cause", "hint", 2)
    assert failure(ZeroDivisionError("by nought"), 3) == Failed("ZeroDivisionError: by nought", "", 3)
    assert "by nought" in capsys.readouterr().err


def is_gone(process: int) -> bool:
    """Whether a process has ended; one that nobody has waited for counts."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"
