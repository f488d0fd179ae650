"""A crash of the chat tells a person on the terminal what happened and where to read on."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
CRASHING = """
import sys
from app.screens.chat import ChatScreen
from app import cli

def broken(self):
    raise RuntimeError("the sky fell")

ChatScreen.on_resize = lambda self, event: broken(self)
sys.exit(cli.run(["--model", "fake:?rate=0"]))
"""


def test_a_crash_is_told_on_the_terminal(tmp_path: Path):
    here, there = pty.openpty()
    environment = {**os.environ, "DART_HOME": str(tmp_path), "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-c", CRASHING],
        stdin=there,
        stdout=there,
        stderr=there,
        env=environment,
        start_new_session=True,
    )
    os.close(there)
    output, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([here], [], [], 0.1)[0]:
            try:
                output += os.read(here, 65536)
            except OSError:
                break  # the other end is closed
    code = child.wait(10)
    os.close(here)
    told = output.decode(errors="replace").rsplit("\x1b[?1049l", 1)[-1]  # after the screen is gone
    assert code == 1
    assert "RuntimeError: the sky fell" in told
    assert f"read {tmp_path / 'state' / 'dart-chat.log'}" in told
    assert "the sky fell" in (tmp_path / "state" / "dart-chat.log").read_text()
