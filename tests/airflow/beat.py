"""A deferred task that has nothing to do with any training: its trigger writes a line each second, wherever it runs."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

__all__ = ["BeatTrigger", "Beats"]

#: Seconds between two lines.
PERIOD = 0.5


class BeatTrigger(BaseTrigger):
    """Writes a line with the time and its process until the file `enough` is in its folder."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return this class's path and its argument."""
        return "tests.airflow.beat.BeatTrigger", {"folder": self.folder}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Beat."""
        folder = Path(self.folder)
        while not (folder / "enough").exists():
            with (folder / "beats").open("a") as file:
                file.write(json.dumps({"at": time.monotonic(), "pid": os.getpid()}) + "\n")
            await asyncio.sleep(PERIOD)
        yield TriggerEvent("enough")


class Beats(BaseOperator):
    """Defers at once, and ends when its trigger has."""

    template_fields = ("folder",)

    def __init__(self, *, folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder = folder

    def execute(self, context: Any) -> None:
        """Defer."""
        self.defer(trigger=BeatTrigger(self.folder), method_name="ended")

    def ended(self, context: Any, event: Any = None) -> str:
        """Return what the trigger said."""
        return str(event)
