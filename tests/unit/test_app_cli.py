"""The command `dart-chat` without its screen: exit codes, streams, and what it imports."""

import json
import os
import pty
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from app import cli
from app.settings import Settings
from app.store import Store
from dart_core.client import EngineClient
from dart_core.options import EngineOptions

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "app"]
FAKE = ["--model", "fake:?rate=0"]
EXPECTED_START = "Hello! I am a **script**, not a model"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("DART_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DART_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "home"


def dart_chat(*arguments: str, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done
    return done


def test_one_question_one_answer(home: Path):
    done = dart_chat(*FAKE, "hello")
    assert done.stdout.startswith(EXPECTED_START)
    assert done.stdout.endswith("second reply.\n")
    assert done.stderr == ""
    assert not (home / "data").exists()  # nothing is kept unless asked for


def test_the_prompt_is_argument_and_piped_text_together():
    dart_chat(*FAKE, "-c", "summarise", stdin="the text\n")
    exported = json.loads(dart_chat("--export", "last", "--format", "json").stdout)
    assert exported["messages"][0]["content"] == "summarise\n\nthe text\n"


def test_piped_text_alone_is_a_prompt():
    assert dart_chat(*FAKE, stdin="hello").stdout.startswith(EXPECTED_START)


def test_text_that_is_not_utf8_does_no_harm():
    done = subprocess.run(
        [*COMMAND, *FAKE, "--max-new-tokens", "4"], input=b"caf\xe9", capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_options_reach_the_engine():
    short = dart_chat(*FAKE, "--stop", "## Code", "hello")
    assert short.stdout.rstrip().endswith("can draw.")
    drawn = dart_chat(*FAKE, "--max-new-tokens", "9", "--show-tree", "--tree-size", "8", "hello")
    assert "tree of 8" in drawn.stderr
    assert "→" in drawn.stderr
    assert "9 tokens" in drawn.stderr
    assert "→" not in drawn.stdout
    plain = dart_chat(*FAKE, "--max-new-tokens", "9", "--show-tree", "--draft", "off", "hello")
    assert plain.stderr.count("tree of 1\n") == 9


def test_settings_file_and_environment(home: Path, monkeypatch: pytest.MonkeyPatch):
    (home / "config").mkdir(parents=True)
    (home / "config" / "config.toml").write_text('model = "fake:/nowhere"\nmax_new_tokens = 40')
    assert "/nowhere" in dart_chat("hello", code=3).stderr
    monkeypatch.setenv("DART_MODEL", "fake:?rate=0")
    assert len(dart_chat("hello").stdout) < 100
    (home / "config" / "config.toml").write_text("temprature = 1")
    assert "temprature" in dart_chat("hello", code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([*FAKE], 2, "empty"),
        ([*FAKE, "  "], 2, "empty"),
        (["--temperature", "-1", "hi"], 2, "temperature"),
        (["--tree-size", "5", "hi"], 2, "tree_size"),
        (["--top-k", "many", "hi"], 2, "--top-k"),
        (["--no-such-flag"], 2, "--no-such-flag"),
        (["--format", "md"], 2, "--export"),
        (["--export", "7"], 2, "chat 7"),
        (["--export", "last"], 2, "chat last"),
        (["--import", "/nowhere"], 2, "/nowhere"),
        (["--list", "prompt"], 2, "not allowed"),
        (["--model", "fake:?speed=3", "hi"], 2, "speed"),
        (["--model", "fake:/nowhere", "hi"], 3, "/nowhere"),
        ([*FAKE, "--context", "5", "much too long"], 2, "context"),
    ],
)
def test_what_is_wrong_is_said_on_stderr(arguments: list[str], code: int, words: str):
    done = dart_chat(*arguments, code=code)
    assert words in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_generation_that_fails_keeps_its_text(tmp_path: Path):
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": [{"text": "so far", "fail": "out of memory"}]}))
    done = dart_chat("--model", f"fake:{script}?rate=0", "-c", "hi", code=1)
    assert done.stdout == "so far\n"
    assert "out of memory" in done.stderr
    kept = json.loads(dart_chat("--export", "last", "--format", "json").stdout)["messages"][-1]
    assert (kept["content"], kept["state"]) == ("so far", "failed")


def test_without_a_terminal_the_chat_does_not_begin():
    ours, theirs = pty.openpty()  # a terminal to type on, none to draw on
    done = subprocess.run([*COMMAND, *FAKE], stdin=theirs, capture_output=True, text=True, timeout=60, check=False)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert "terminal" in done.stderr


def test_a_reader_that_has_had_enough_is_no_error():
    process = subprocess.Popen(
        [*COMMAND, "--model", "fake:?rate=400", "hi"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(5) == b"Hello"
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


def test_ctrl_c_ends_with_130_and_keeps_what_was_written():
    process = subprocess.Popen(
        [*COMMAND, "--model", "fake:?rate=60", "-c", "hi"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A test run in the background has SIGINT ignored, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    start = process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    said = start + process.stdout.read()
    assert process.wait(60) == 130
    assert process.stderr.read() == b""
    process.stdout.close()
    process.stderr.close()
    kept = json.loads(dart_chat("--export", "last", "--format", "json").stdout)["messages"][-1]
    assert kept["state"] == "stopped"
    assert kept["content"].startswith(said.decode())


def test_chats_are_continued_listed_searched_exported_and_imported(tmp_path: Path):
    first = dart_chat(*FAKE, "-c", "first question").stdout
    second = dart_chat(*FAKE, "-c", "second question").stdout
    assert second != first
    assert "first question" in dart_chat("--list").stdout
    assert "1 " in dart_chat("--search", "draft tree").stdout
    assert dart_chat("--search", "nowhere to be found").stdout == ""
    exported = dart_chat("--export", "1")
    assert "second question" in exported.stdout
    file = tmp_path / "chat.md"
    file.write_text(exported.stdout)
    assert "chat 2" in dart_chat("--import", str(file)).stdout
    assert dart_chat("--export", "last").stdout == exported.stdout


def test_a_damaged_database_is_reported_and_left(home: Path):
    file = home / "data" / "history.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not a database, but long enough to look like one" * 20)
    before = file.read_bytes()
    done = dart_chat("--list", code=1)
    assert "damaged" in done.stderr
    assert "mv " in done.stderr
    assert file.read_bytes() == before


def test_paths_and_log(home: Path):
    places = dart_chat("--paths").stdout
    assert str(home / "config" / "config.toml") in places
    assert str(home / "data" / "history.db") in places
    assert not home.exists()  # looking makes nothing
    assert "nothing has been logged" in dart_chat("--log").stderr
    (home / "state").mkdir(parents=True)
    (home / "state" / "dart-chat.log").write_text("a line\n")
    assert dart_chat("--log").stdout == "a line\n"


@pytest.mark.parametrize("argument", ["--version", "--help", "--paths", "--list"])
def test_quick_answers_import_neither_torch_nor_textual(argument: str):
    code = f"""
import sys
from app import cli
from app.paths import log_file
try:
    cli.run([{argument!r}])
except SystemExit:
    pass
heavy = {{"torch", "transformers", "textual", "rich", "numpy", "tokenizers"}} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout or argument == "--list"


def test_the_model_loads_before_the_screen_is_imported(home: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[object] = []

    class Screen:
        return_code = None

        def __init__(self, settings: Settings, store: Store, client: EngineClient, chat_id: int | None) -> None:
            seen.extend([settings.model, client.pid is not None, store.file, chat_id])

        def start(self, log: Path) -> None:
            seen.append(log)

    class Finder:
        """Answers the import of app.app, and notes whether an engine had been started by then."""

        @staticmethod
        def find_spec(name: str, *_: object) -> ModuleSpec | None:
            if name != "app.app":
                return None
            seen.append(("imported", bool(started)))
            return spec_from_loader(name, Loader())

    class Loader:
        @staticmethod
        def create_module(spec: ModuleSpec) -> None:
            return None

        @staticmethod
        def exec_module(module: ModuleType) -> None:
            module.DartChat = Screen

    started: list[EngineOptions] = []
    start = EngineClient.start
    monkeypatch.setattr(EngineClient, "start", lambda self, o: (started.append(o), start(self, o)))
    monkeypatch.setattr(cli, "is_terminal", lambda stream: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delitem(sys.modules, "app.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert cli.run([*FAKE, "-c"]) == 0
    assert seen == [
        ("imported", True),
        FAKE[1],
        True,
        home / "data" / "history.db",
        None,
        home / "state" / "dart-chat.log",
    ]
    monkeypatch.delitem(sys.modules, "app.app")


def test_a_dumb_terminal_gets_no_chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(cli, "is_terminal", lambda stream: True)
    monkeypatch.setenv("TERM", "dumb")
    assert cli.run(FAKE) == 2
    assert "terminal" in capsys.readouterr().err
