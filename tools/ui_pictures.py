"""Takes the pictures of the tab that docs/ui.md shows: every scene, wide and narrow, light and dark.

.venv/bin/python -m tools.ui_pictures [FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.plugin.browser import chromium, open_browser
from tests.plugin.scenes import SCENES
from tests.plugin.serving import ROOT, serving

WIDTHS = {"wide": 1440, "narrow": 390}
THEMES = ("light", "dark")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    program = chromium()
    if program is None:
        raise SystemExit("there is no chromium on PATH")
    with tempfile.TemporaryDirectory() as scratch, serving(Path(scratch) / "airflow") as root:
        asyncio.run(take(program, Path(scratch) / "profile", root, folder))


async def take(program: str, profile: Path, root: str, folder: Path) -> None:
    """Write `ui-SCENE-WIDTH-THEME.png` for each."""
    async with open_browser(program, profile) as browser:
        tab = await browser.tab()
        for scene in SCENES:
            for name, width in WIDTHS.items():
                for theme in THEMES:
                    address = f"{root}/rallypoint/ti?dag_id={scene}&run_id=manual__2026-03-14&task_id=train&map_index=-1"
                    await tab.show(address, width=width, theme=theme)
                    path = folder / f"ui-{scene}-{name}-{theme}.png"
                    await tab.picture(path)
                    slim(path)
                    print(f"{scene} {name} {theme}", *tab.errors)
        await tab.close()


def slim(path: Path) -> None:
    """Write a picture again with a palette of its own: flat colours need no more."""
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main()
