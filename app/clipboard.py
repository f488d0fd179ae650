"""Copying to the clipboard, and saying truly where the text went."""

import base64
import os
import shutil
import subprocess
from pathlib import Path
from typing import TextIO

OSC52_LIMIT = 74_000  # bytes of text; longer sequences are dropped by common terminals
NATIVE = (("wl-copy",), ("xclip", "-selection", "clipboard"), ("xsel", "-ib"), ("pbcopy",))


def copy(text: str, terminal: TextIO, fallback: Path) -> str:
    """Copies by the desktop's own tool, else by the terminal (OSC 52), else to a file; says which. Raises OSError."""
    if not os.environ.get("SSH_CONNECTION"):
        for command in NATIVE:
            if _usable(command[0]) and _run(command, text):
                return f"copied {len(text)} characters"
    if len(text.encode()) <= OSC52_LIMIT:
        terminal.write(_osc52(text))
        terminal.flush()
        return f"asked the terminal to copy {len(text)} characters (OSC 52; not every terminal does)"
    fallback.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fallback.write_text(text, encoding="utf-8")
    return f"too long for the terminal's clipboard: written to {fallback}"


def _usable(program: str) -> bool:
    display = {"wl-copy": "WAYLAND_DISPLAY", "xclip": "DISPLAY", "xsel": "DISPLAY"}.get(program)
    return shutil.which(program) is not None and (display is None or bool(os.environ.get(display)))


def _run(command: tuple[str, ...], text: str) -> bool:
    try:
        done = subprocess.run(
            command,
            input=text.encode(),
            timeout=2,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _osc52(text: str) -> str:
    sequence = f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a"
    if os.environ.get("TMUX"):
        # tmux passes on what is wrapped so, with its escapes doubled.
        return f"\x1bPtmux;{sequence.replace(chr(27), chr(27) * 2)}\x1b\\"
    return sequence
