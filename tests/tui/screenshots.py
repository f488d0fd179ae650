"""Pictures of the chat, to be looked at: `python -m tests.tui.screenshots FOLDER` (needs cairosvg)."""

import asyncio
import sys
import tempfile
from pathlib import Path

import cairosvg

from app.app import DartChat
from app.settings import Settings
from app.store import Store
from dart_core.client import EngineClient
from tests.tui.playing import settled

SIZES = {"80x24": (80, 24), "140x40": (140, 40)}


async def picture(folder: Path, name: str, size: tuple[int, int], settings: Settings, keys: list[str]) -> None:
    """Plays keys into a chat of the scripted engine and writes NAME.png."""
    with tempfile.TemporaryDirectory() as home:
        store, client = Store.open(Path(home) / "chats.db"), EngineClient(Path(home) / "log")
        client.start(settings.engine_options())
        app = DartChat(settings, store, client)
        async with app.run_test(size=size) as pilot:
            for key in keys:
                if key == "wait":
                    await settled(pilot)
                elif key.startswith("type "):
                    await pilot.press(*("space" if letter == " " else letter for letter in key[5:]))
                else:
                    await pilot.press(key)
            await pilot.pause(0.3)
            svg = app.export_screenshot()
        client.close()
        store.close()
    svg = svg.replace("Fira Code", "DejaVu Sans Mono").replace("font-size: 20px", "font-size: 20.26px")
    cairosvg.svg2png(svg.encode(), write_to=str(folder / f"{name}.png"), scale=1.2)


async def main(folder: Path) -> None:
    """Every state worth looking at."""
    folder.mkdir(parents=True, exist_ok=True)
    fake = Settings(model="fake:?rate=0", seed=1)
    talk = ["wait", "type Show me", "enter", "wait"]
    for name, size in SIZES.items():
        await picture(folder, f"{name}-empty", size, fake, ["wait"])
        await picture(folder, f"{name}-loading", size, Settings(model="fake:?rate=0&load=60"), ["type Hi"])
        for theme in ("dark", "light", "contrast"):
            chat = Settings(model="fake:?rate=0", theme=theme, show_tree=True)
            await picture(folder, f"{name}-{theme}-tree", size, chat, [*talk, "f3", "f3"])
        await picture(folder, f"{name}-help", size, fake, ["wait", "f1"])
        await picture(folder, f"{name}-chats", size, fake, [*talk, "ctrl+n", "ctrl+o"])
        await picture(folder, f"{name}-failed", size, Settings(model="/nowhere"), ["type Hi", "enter", "wait"])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
