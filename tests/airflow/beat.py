"""A deferred task that has nothing to do with any training: its trigger writes a line each second, wherever it runs."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

__all__ = ["BeatTrigger", "Beats"]

#: Seconds between two lines.
PERIOD = 0.5


class BeatTrigger(BaseTrigger):
    """Writes lines until the file `enough` is in its folder: the time, the process, CPU seconds of its loop and of all."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return this class's path and its argument."""
        return "tests.airflow.beat.BeatTrigger", {"folder": self.folder}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Beat."""
        folder = Path(self.folder)
        late = _Late(folder / "late")
        while not (folder / "enough").exists():
            with (folder / "beats").open("a") as file:
                told = {"at": time.monotonic(), "pid": os.getpid(), "loop": time.thread_time(), "process": time.process_time()}
                file.write(json.dumps(told) + "\n")
            late.beat()
            await asyncio.sleep(PERIOD)
        late.end()
        yield TriggerEvent("enough")


class _Late:
    """Writes what the event loop does, as the stack of its thread, when a beat is late: once for each."""

    def __init__(self, path: Path) -> None:
        self._path, self._thread, self._last = path, threading.get_ident(), time.monotonic()
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="beats", daemon=True).start()

    def beat(self) -> None:
        """Note that there was one."""
        self._last = time.monotonic()

    def end(self) -> None:
        """Expect none any more."""
        self._ended.set()

    def _watch(self) -> None:
        written = 0.0
        while not self._ended.wait(PERIOD / 10):
            last = self._last
            if last != written and time.monotonic() - last > 2 * PERIOD:
                stack = "".join(traceback.format_stack(sys._current_frames().get(self._thread)))
                with self._path.open("a") as file:
                    file.write(f"{time.monotonic() - last:.2f} s after a beat\n{stack}\n")
                written = last


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
