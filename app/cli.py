"""The command `dart-chat`: the chat on a terminal, or one answer on stdout.

Nothing here imports torch or textual before it is needed: `--version` and `--help` answer at once, and the
model begins to load, in a process of its own, before the screen's libraries are imported.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from app.shell_completion import SHELLS, script
from dart_core.events import Failed
from dart_core.options import TREE_SIZES
from dart_core.stream import EXIT_INTERRUPTED, EXIT_OK, read_prompt, report
from models.errors import DartError, UsageError

if TYPE_CHECKING:
    from app.settings import Settings
    from app.store import Store


def build_parser() -> argparse.ArgumentParser:
    """The command line. A flag that was not typed is None, so that environment and file can speak."""
    parser = argparse.ArgumentParser(
        prog="dart-chat",
        description="Chat with a local language model. Given a prompt or text on stdin, answer on stdout.",
        epilog="exit codes: 0 ok, 1 generation failed, 2 usage or settings, 3 model cannot be loaded, 130 interrupted",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("prompt", nargs="?", help="what to ask; standard input is added after it")
    what.add_argument("--list", action="store_true", help="list the chats that were kept")
    what.add_argument("--search", metavar="TEXT", help="list the chats that hold these words")
    what.add_argument("--export", metavar="CHAT", help="write a chat to stdout: its number, or last")
    what.add_argument("--import", dest="import_file", metavar="FILE", type=Path, help="add an exported chat")
    what.add_argument("--paths", action="store_true", help="say where settings, chats, log and cache are")
    what.add_argument("--log", action="store_true", help="write the log to stdout")
    what.add_argument("--completion", choices=SHELLS, help="write the shell's completions to stdout")
    what.add_argument("--version", action="store_true", help="say which version this is")
    parser.add_argument("--format", choices=("md", "json"), help="of --export (default: md); json has all branches")
    parser.add_argument(
        "-c",
        "--continue",
        dest="resume",
        action="store_true",
        help="go on with the last chat; with a prompt, keep question and answer there",
    )
    chat = parser.add_argument_group("model and screen")
    chat.add_argument("--model", help='directory, .gguf file, cached hub id, "default", or "fake:"')
    chat.add_argument("--system", metavar="TEXT", help="system prompt")
    chat.add_argument("--context", type=int, metavar="N", help="tokens of context to keep")
    chat.add_argument("--threads", type=int, metavar="N", help="CPU threads")
    chat.add_argument("--head", metavar="PATH", help="draft head: directory or cached hub id; none: n-grams alone")
    chat.add_argument("--ngram", metavar="PATH", help="n-gram model beside the head: file, directory, cached hub id")
    chat.add_argument("--theme", metavar="NAME", help="colours of the chat")
    chat.add_argument(
        "--show-tree",
        action="store_true",
        default=None,
        help="show the draft tree of each step; without a screen, on stderr",
    )
    write = parser.add_argument_group("writing", "Defaults are the model's own (generation_config).")
    write.add_argument("--temperature", type=float, metavar="X", help="0 is greedy")
    write.add_argument("--top-k", type=int, metavar="N", help="0 is off")
    write.add_argument("--top-p", type=float, metavar="X", help="1 is off")
    write.add_argument("--min-p", type=float, metavar="X", help="0 is off")
    write.add_argument("--repetition-penalty", type=float, metavar="X", help="1 is off")
    write.add_argument("--seed", type=int, metavar="N", help="the same seed writes the same text")
    write.add_argument("--max-new-tokens", type=int, metavar="N", help="stop after this many tokens")
    write.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; may be repeated")
    write.add_argument("--draft", choices=("on", "off"), help="off decodes plainly; the text is the same")
    write.add_argument("--tree-size", type=int, metavar="N", help=f"largest draft tree: one of {TREE_SIZES}")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    """Does what the command line says; returns the exit code."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.format and arguments.export is None:
        parser.error("--format goes with --export")
    try:
        if arguments.version:
            return show_version()
        if arguments.completion:
            print(script(parser, arguments.completion), end="")
            return EXIT_OK
        if arguments.paths:
            return show_paths()
        if arguments.log:
            return show_log()
        if arguments.list or arguments.search is not None:
            return show_chats(arguments.search or "")
        if arguments.export is not None:
            return export(arguments.export, arguments.format or "md")
        if arguments.import_file is not None:
            return import_file(arguments.import_file)
        return chat_or_answer(arguments)
    except DartError as error:
        report(Failed(error.cause, error.hint))
        return error.exit_code


def chat_or_answer(arguments: argparse.Namespace) -> int:
    """The chat where there is a terminal and no prompt, else one answer."""
    from app.paths import config_file
    from app.settings import TYPES, load_settings

    flags = {name: getattr(arguments, name) for name in TYPES}
    if flags["draft"] is not None:
        flags["draft"] = flags["draft"] == "on"
    settings = load_settings(flags, os.environ, config_file())
    if arguments.prompt is None and is_terminal(sys.stdin):
        return chat(settings, arguments.resume)
    prompt = read_prompt(arguments.prompt).encode("utf-8", "replace").decode()
    if not prompt.strip():
        raise UsageError("the prompt is empty", 'dart-chat "a question", or dart-chat alone on a terminal')
    from app.oneshot import answer

    if not arguments.resume:
        return answer(settings, prompt)
    with closing(open_store()) as store:
        return answer(settings, prompt, store, store.latest())


def chat(settings: "Settings", resume: bool) -> int:
    """Runs the screen until the person leaves."""
    if not (is_terminal(sys.stdout) and is_terminal(sys.stderr)) or os.environ.get("TERM") == "dumb":
        raise UsageError("the chat needs a terminal", 'for one answer on stdout: dart-chat "a question"')
    from app.paths import log_file
    from dart_core.client import EngineClient

    client = EngineClient(log_file())
    with closing(open_store()) as store, closing(client):
        client.start(settings.engine_options())
        from app.app import DartChat

        screen = DartChat(settings, store, client, store.latest() if resume else None)
        screen.start(log_file())
        return screen.return_code or EXIT_OK


def open_store() -> "Store":
    """The chats, where `app.paths` has them. Raises StoreError."""
    from app.paths import history_file
    from app.store import Store

    return Store.open(history_file())


def show_version() -> int:
    """The version that is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(f"dart-chat {version('dart-chat')}")
    except PackageNotFoundError:
        print("dart-chat, not installed: run from its sources")
    return EXIT_OK


def show_paths() -> int:
    """Where everything is, one line each."""
    from app import paths

    places = {
        "settings": paths.config_file(),
        "chats": paths.history_file(),
        "exports": paths.exports_dir(),
        "log": paths.log_file(),
        "cache": paths.cache_root(),
    }
    for name, place in places.items():
        print(f"{name:9} {place}")
    return EXIT_OK


def show_log() -> int:
    """What engine and libraries have printed."""
    from app.paths import log_file

    if not log_file().exists():
        print(f"nothing has been logged yet in {log_file()}", file=sys.stderr)
        return EXIT_OK
    print(log_file().read_text(encoding="utf-8", errors="replace"), end="")
    return EXIT_OK


def show_chats(query: str) -> int:
    """Number, time and title of each chat, and the words that were searched for."""
    from datetime import datetime

    with closing(open_store()) as store:
        for chat in store.chats(query):
            when = datetime.fromtimestamp(chat.updated)
            print(f"{chat.id:5} {'*' if chat.pinned else ' '} {when:%Y-%m-%d %H:%M}  {chat.title}")
            if query:
                print(f"{'':26}{chat.snippet[:80]}")
    return EXIT_OK


def export(which: str, form: str) -> int:
    """A chat on stdout."""
    from app.export import export_json, export_markdown

    with closing(open_store()) as store:
        chat_id = store.latest() if which == "last" else int(which) if which.isdecimal() else None
        if chat_id is None:
            raise UsageError(f"there is no chat {which}", "see dart-chat --list")
        print((export_json if form == "json" else export_markdown)(store, chat_id), end="")
    return EXIT_OK


def import_file(path: Path) -> int:
    """Adds the chat that a file holds."""
    from app.export import import_chat

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "check the file's name") from error
    with closing(open_store()) as store:
        chat_id = import_chat(store, text)
        print(f"chat {chat_id} was added; open it with dart-chat --continue")
    return EXIT_OK


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is at the other end; a closed stream has none."""
    return stream is not None and stream.isatty()


def main() -> None:
    """Entry point of `dart-chat`."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = run()
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever reads has had enough. Python would complain once more when it flushes at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        code = EXIT_OK
    sys.exit(code)
