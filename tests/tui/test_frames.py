"""Every screen and state, compared with how it looked when it was looked at.

A change that is wanted is written with `DART_UPDATE_FRAMES=1 python -m pytest tests/tui/test_frames.py`; look at the
difference, and at the pictures of `python -m tests.tui.screenshots FOLDER`.
"""

import os
from pathlib import Path

import pytest
from textual.color import Color

from tests.tui.states import SIZES, STATES, frame, rows, state

FRAMES = Path(__file__).parents[1] / "data" / "frames"
LEAST_CONTRAST = 2.9  # of text on its ground, as WCAG 2 counts it: 3 is asked of large text
THEMES = ("dark", "light", "contrast")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", STATES)
async def test_frame(tmp_path: Path, name: str, size: str):
    async with state(tmp_path, name, SIZES[size]) as pilot:
        found = frame(pilot.app)
    path = FRAMES / f"{name}-{size}.txt"
    if os.environ.get("DART_UPDATE_FRAMES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def ratio(one: Color, other: Color) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2.2, relative luminance)."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: Color) -> float:
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_ratio():
    assert ratio(Color.parse("white"), Color.parse("black")) == pytest.approx(21)
    assert ratio(Color.parse("#777"), Color.parse("white")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["reply", "tree", "message", "commands", "failed"])
async def test_text_can_be_read(tmp_path: Path, name: str, theme: str):
    async with state(tmp_path, name, SIZES["80x24"], theme) as pilot:
        segments = [segment for row in rows(pilot.app) for segment in row]
    faint = {}
    for segment in segments:
        letters = "".join(letter for letter in segment.text if letter.isalnum())
        if letters and segment.style and segment.style.color and segment.style.bgcolor:
            ink, ground = map(Color.from_rich_color, (segment.style.color, segment.style.bgcolor))
            if ratio(ink, ground) < LEAST_CONTRAST:
                faint[letters] = round(ratio(ink, ground), 1)
    assert not faint
