"""Points of a task's life at which it tells that it is there, and stays while it is held. Standard library only.

A gate is two files in the scenario's folder: `at-POINT` is written by who comes there (JSON: its process, which try), and as
long as `hold-POINT` is there it goes no further. So a point is reached by an event, and whoever is killed there is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Gates", "hold"]

#: Seconds between two looks at a gate.
_LOOK = 0.05


class Gates:
    """The gates of one scenario as the task sees them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def at(self, point: str, **told: Any) -> None:
        """Tell that the point is reached, and stay while it is held. Blocks on purpose: nothing goes on meanwhile."""
        path = self._folder / f"at-{point}"
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps({"pid": os.getpid(), **told}))
        temporary.replace(path)
        while (self._folder / f"hold-{point}").exists():
            time.sleep(_LOOK)


@contextlib.contextmanager
def hold(folder: Path, point: str) -> Iterator[None]:
    """Hold whoever comes to the point while the context lasts."""
    path = folder / f"hold-{point}"
    path.touch()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
