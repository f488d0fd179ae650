"""An engine in a child process, spoken to without ever waiting for it.

A process of its own keeps screen and decoding off each other's interpreter lock, native output off the
screen, and a crash of native code away from the chat. The child is a fresh interpreter with this package on
its path: it imports neither the parent's main module nor textual.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import IO, Any

from dart_core.events import Event, Failed, Finished, Ready
from dart_core.opening import Prompt
from dart_core.options import EngineOptions, GenerateOptions
from dart_core.worker import Stop, Write
from kernels.cache import cache_dir

LOG_BYTES = 1_000_000  # a log longer than this makes room for a new one when an engine starts
CLOSE_SECONDS = 1.0


class EngineClient:
    """Starts an engine, sends it conversations and hands out its events.

    `log_path` takes what the child prints (default: engine.log in the cache directory).
    """

    def __init__(self, log_path: Path | None = None) -> None:
        self.log_path = log_path or cache_dir() / "engine.log"
        self._child: Child | None = None
        self._number = 0
        self._busy = False

    @property
    def busy(self) -> bool:
        """A reply was asked for, and its `Finished` or `Failed` has not been polled yet."""
        return self._busy

    @property
    def pid(self) -> int | None:
        """The child's process id while one is held."""
        return self._child.process.pid if self._child else None

    def start(self, options: EngineOptions) -> None:
        """Begins to load a model, in place of the one before, and returns at once.

        `poll` then gives `Loading…` and `Ready`, or `Failed`.
        """
        self.close()
        self._number = 0
        self._child = Child(options, self.log_path)

    def poll(self) -> list[Event]:
        """Everything that has happened since the last call. Never waits."""
        events = self._child.take() if self._child else []
        if any(isinstance(event, Finished | Failed) for event in events):
            self._busy = False
        return events

    def send(self, messages: Prompt, options: GenerateOptions) -> None:
        """Asks for a reply; one asked for while the model loads waits for it.

        Raises RuntimeError before `start`, and while a reply is being written.
        """
        if self._child is None:
            raise RuntimeError("start an engine first")
        if self._busy:
            raise RuntimeError("a reply is being written; stop it first")
        self._busy = True
        self._number += 1
        self._child.put(Write(self._number, messages, options))

    def stop(self) -> None:
        """Stops the reply before its next step; `Finished(reason="cancelled")` says that it has."""
        if self._child and self._busy:
            self._child.put(Stop(self._number))

    def close(self) -> None:
        """Ends the child, whatever it does. `start` may follow."""
        if self._child:
            self._child.close()
        self._child = None
        self._busy = False


class Child:
    """The process, its pipes, and the thread that takes events out of the pipe so that it never fills."""

    def __init__(self, options: EngineOptions, log_path: Path) -> None:
        self._log_path = log_path
        self._events: deque[Event] = deque()
        self._end: Failed | None = None  # why there is no engine any more
        self._closing = False
        package_root = str(Path(__file__).parents[1])
        paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with open_log(log_path) as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from dart_core.worker import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C in the terminal is the parent's to decide
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.put(options)

    def put(self, command: Any) -> None:
        """Sends a command; an engine that is no more answers with what ended it."""
        assert self.process.stdin is not None
        if self._end is not None:
            self._events.append(self._end)
            return
        with contextlib.suppress(BrokenPipeError):  # `_read` reports the death
            pickle.dump(command, self.process.stdin, pickle.HIGHEST_PROTOCOL)
            self.process.stdin.flush()

    def take(self) -> list[Event]:
        """What has been read since the last call."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def close(self) -> None:
        """Closing its stdin ends the child; one that hangs is killed."""
        self._closing = True
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        ready = False
        try:
            while True:
                for event in pickle.load(self.process.stdout):
                    ready |= isinstance(event, Ready)
                    if isinstance(event, Failed) and not event.hint:
                        event = Failed(event.error, f"read {self._log_path}", event.exit_code)
                    if isinstance(event, Failed) and not ready:
                        self._end = event
                    self._events.append(event)
        except (EOFError, pickle.UnpicklingError):
            pass  # the child has ended, perhaps in the middle of a batch
        code = self.process.wait()
        if self._end is None and not self._closing:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self._end = Failed(f"the engine has ended ({how})", f"read {self._log_path}", 1 if ready else 3)
            self._events.append(self._end)


def open_log(path: Path) -> IO[bytes]:
    """The log, to append to; a long one is kept as `.1` and a new one begun."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    return path.open("ab")
