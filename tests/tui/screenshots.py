"""Pictures of the chat, to be looked at: `python -m tests.tui.screenshots FOLDER` (needs cairosvg)."""

import asyncio
import sys
import tempfile
from pathlib import Path

import cairosvg

from tests.tui.states import SIZES, STATES, state

IN_EVERY_THEME = ("tree", "reply")
THEMES = ("dark", "light", "contrast", "ansi")


async def picture(folder: Path, name: str, size: str, theme: str) -> None:
    """Writes one state as SIZE-THEME-NAME.png."""
    with tempfile.TemporaryDirectory() as home:
        async with state(Path(home), name, SIZES[size], theme) as pilot:
            svg = pilot.app.export_screenshot()
    # The fonts of the picture are not those of a terminal: DejaVu at 20.26 is as wide as Fira Code at 20.
    svg = svg.replace("Fira Code", "DejaVu Sans Mono").replace("font-size: 20px", "font-size: 20.26px")
    cairosvg.svg2png(svg.encode(), write_to=str(folder / f"{size}-{theme}-{name}.png"), scale=1.2)


async def main(folder: Path) -> None:
    """Every state in dark, some in every theme."""
    folder.mkdir(parents=True, exist_ok=True)
    for size in SIZES:
        for name in STATES:
            for theme in THEMES if name in IN_EVERY_THEME else ("dark",):
                await picture(folder, name, size, theme)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
