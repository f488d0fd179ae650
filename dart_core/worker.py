"""The engine in a process of its own, started by `EngineClient`: commands on stdin, events on stdout.

Both are streams of pickles. The main thread loads and generates; one thread reads commands, so that a stop is
seen at once; one writes events in batches, so that neither the pipe nor its reader slows the decoding down.
"""

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import BinaryIO

from dart_core.events import Event, Failed, Ready
from dart_core.opening import Prompt, open_engine
from dart_core.options import EngineOptions, GenerateOptions
from models.errors import DartError

# At 300 tokens a second every event would be a batch of its own; a screen draws 15 to 60 times a second.
BATCH_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Write:
    """Asks for a reply. `number` counts the requests of one engine, from 1."""

    number: int
    prompt: Prompt
    options: GenerateOptions


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancels request `number`, and those before it, running or waiting."""

    number: int


class Worker:
    """Serves one parent until it closes the pipe or dies."""

    def __init__(self, commands: BinaryIO, events: BinaryIO) -> None:
        self._commands = commands
        self._events = events
        self._requests: SimpleQueue[Write] = SimpleQueue()
        self._outbox: SimpleQueue[Event | None] = SimpleQueue()
        self._stopped = 0

    def run(self) -> None:
        """Opens the model that the first command names, then writes one reply after the other."""
        options: EngineOptions = pickle.load(self._commands)
        threading.Thread(target=self._read_commands, daemon=True).start()
        writer = threading.Thread(target=self._write_events)
        writer.start()
        try:
            engine = open_engine(options, self._outbox.put)
        except Exception as error:
            self._outbox.put(failure(error, exit_code=3))
            self._outbox.put(None)
            writer.join()
            return
        self._outbox.put(Ready(engine.info))
        while True:
            request = self._requests.get()
            cancelled = partial(self._is_stopped, request.number)
            try:
                for event in engine.generate(request.prompt, request.options, cancelled):
                    self._outbox.put(event)
            except Exception as error:
                self._outbox.put(failure(error, exit_code=1))

    def _is_stopped(self, number: int) -> bool:
        return self._stopped >= number

    def _read_commands(self) -> None:
        while True:
            try:
                command = pickle.load(self._commands)
            except (EOFError, pickle.UnpicklingError):
                os._exit(0)  # the parent is gone; native code may hold the main thread for seconds
            if isinstance(command, Stop):
                self._stopped = max(self._stopped, command.number)
            else:
                self._requests.put(command)

    def _write_events(self) -> None:
        while True:
            batch = [self._outbox.get()]
            while not self._outbox.empty():
                batch.append(self._outbox.get())
            try:
                pickle.dump([event for event in batch if event is not None], self._events, pickle.HIGHEST_PROTOCOL)
                self._events.flush()
            except BrokenPipeError:
                os._exit(0)
            if batch[-1] is None:
                return
            time.sleep(BATCH_SECONDS)


def failure(error: Exception, exit_code: int) -> Failed:
    """The error as an event; one that nobody foresaw leaves its traceback in the log."""
    if isinstance(error, DartError):
        return Failed(error.cause, error.hint, error.exit_code)
    traceback.print_exception(error)
    return Failed(f"{type(error).__name__}: {error}", "", exit_code)


def main() -> None:
    """Entry point of the child process. Whatever prints goes to stderr, which is the log file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    commands, events = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    Worker(commands, events).run()
    sys.stdout.flush()
