"""Takes the pictures of the tab that docs/guides/ui.md shows: every scene, wide and narrow, light and dark; and one in Airflow.

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
from tests.plugin.signed_in import DRAWN, AirflowPages, airflow_with_a_run, sign_in

WIDTHS = {"wide": 1440, "narrow": 390}
THEMES = ("light", "dark")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images"
    program = chromium()
    if program is None:
        raise SystemExit("there is no chromium on PATH")
    with tempfile.TemporaryDirectory() as scratch, serving(Path(scratch) / "airflow") as root:
        asyncio.run(take(program, Path(scratch) / "profile", root, folder))
    with tempfile.TemporaryDirectory() as scratch, airflow_with_a_run(Path(scratch)) as pages:
        asyncio.run(take_in_airflow(program, Path(scratch) / "profile", pages, folder / "ui-in-airflow.png"))


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


async def take_in_airflow(program: str, profile: Path, pages: AirflowPages, path: Path) -> None:
    """Write what a viewer of a real Airflow has in the window."""
    async with open_browser(program, profile) as browser:
        tab = await browser.tab()
        await tab.resize(width=1440, height=1000)
        await sign_in(tab, pages.task("train"))
        await tab.wait_for(DRAWN, why="the tab is drawn")
        await tab.picture(path)
        slim(path)
        print("in Airflow", *tab.errors)
        await tab.close()


def slim(path: Path) -> None:
    """Write a picture again with a palette of its own: flat colours need no more."""
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main()
