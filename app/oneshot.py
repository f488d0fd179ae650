"""One question, one answer on stdout, without a screen: `cat file | dart-chat "sum up"`."""

import sys
import time
from collections.abc import Callable, Iterable

from app.settings import Settings
from app.store import Store
from app.tree_text import tree_lines
from dart_core.events import Delta, Event, Failed, Finished, Reasoning, Step
from dart_core.opening import EngineLike, open_engine
from dart_core.stream import EXIT_FAILED, EXIT_OK, figures, report, show_loading
from models.errors import DartError

SAVE_SECONDS = 0.5


def answer(settings: Settings, prompt: str, store: Store | None = None, chat_id: int | None = None) -> int:
    """Writes the reply to stdout as it comes and returns the exit code.

    With a store, the question continues `chat_id`, or begins a chat, and both are kept.
    """
    try:
        engine = open_engine(settings.engine_options(), show_loading)
    except DartError as error:
        report(Failed(error.cause, error.hint, error.exit_code))
        return error.exit_code
    system, earlier = settings.system, []
    if store and chat_id is not None:
        chat = store.chat(chat_id)
        system = system or (chat.system if chat else "")
        earlier = store.path(chat_id)
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": message.role, "content": message.content} for message in earlier if message.content]
    messages.append({"role": "user", "content": prompt})
    events = engine.generate(messages, settings.generate_options())
    if store is None:
        return write(events)
    if chat_id is None:
        chat_id = store.new_chat(engine.info.name, settings.system)
    return write_and_keep(events, store, chat_id, prompt, engine)


def write(events: Iterable[Event], keep: Callable[[Event], None] = lambda _: None) -> int:
    """The reply to stdout; reasoning, trees and errors to stderr. Returns the exit code."""
    with_trees = False
    code, end = EXIT_FAILED, ""
    for event in events:
        keep(event)
        match event:
            case Delta():
                print(event.text, end="", flush=True)
                end = event.text[-1:] or end
            case Reasoning() if sys.stderr.isatty():
                print(event.text, end="", file=sys.stderr, flush=True)
            case Step(tree=tree) if tree is not None:
                if with_trees or end not in ("", "\n"):
                    print(file=sys.stderr)
                print("\n".join(tree_lines(event)), file=sys.stderr, flush=True)
                with_trees = True
            case Failed():
                if end:
                    print(flush=True)
                report(event)
                code = event.exit_code
            case Finished():
                if end != "\n":
                    print(flush=True)
                if with_trees:
                    print(figures(event), file=sys.stderr)
                code = EXIT_OK
    return code


def write_and_keep(events: Iterable[Event], store: Store, chat_id: int, prompt: str, engine: EngineLike) -> int:
    """As `write`; question and reply are in the store before they are complete."""
    path = store.path(chat_id)
    question = store.add_message(chat_id, path[-1].id if path else None, "user", prompt)
    reply = store.add_message(chat_id, question, "assistant", "", "streaming", engine.info.name)
    text, reasoning, state, saved = "", "", "stopped", time.monotonic()

    def keep(event: Event) -> None:
        nonlocal text, reasoning, state, saved
        match event:
            case Delta():
                text += event.text
            case Reasoning():
                reasoning += event.text
            case Finished():
                state = "complete"
            case Failed():
                state = "failed"
        if time.monotonic() - saved > SAVE_SECONDS:
            saved = time.monotonic()
            store.update_message(reply, text, "streaming", reasoning=reasoning)

    try:
        return write(events, keep)
    finally:
        store.update_message(reply, text, state, reasoning=reasoning)
