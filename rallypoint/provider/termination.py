"""Passing SIGTERM from the signal handler of a task to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

__all__ = ["Bell"]


class Bell:
    """An event that a signal handler sets and an event loop waits for."""

    def __init__(self) -> None:
        self._rung = False
        self._wake: Callable[[], object] | None = None

    def ring(self) -> None:
        """Set the event; returns at once."""
        self._rung = True
        if self._wake is not None:
            self._wake()

    @contextlib.contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """Return an event of the running loop that is set with this event, also if it was set before."""
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(heard.set)
        if self._rung:
            heard.set()
        try:
            yield heard
        finally:
            self._wake = None
