"""SIGTERM in a task that supervises its job itself: from the signal's handler into the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

__all__ = ["Bell"]


class Bell:
    """Rung by a signal's handler, heard in the event loop that the signal interrupted, or in the next one that listens."""

    def __init__(self) -> None:
        self._rung = False
        self._wake: Callable[[], object] | None = None

    def ring(self) -> None:
        """Wake who listens; returns at once."""
        self._rung = True
        if self._wake is not None:
            self._wake()

    @contextlib.contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """Give an event of the running loop that is set when the bell rings, or if it rang before."""
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(heard.set)
        if self._rung:
            heard.set()
        try:
            yield heard
        finally:
            self._wake = None
