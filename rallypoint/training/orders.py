"""Doing together what an agent asks of each worker by itself: pause, go on, save, stop, at one step boundary of all ranks.

Every rank hears an order at another time. Were each to stop at its next boundary, one would wait in a collective for another
that stands still a step behind. So nothing is done before all have heard:

- A rank that has heard says so in the round's store, and looks there at every boundary from then on.
- The first that finds that all have heard, at its boundary B, writes B down. All act at the boundary after it. Nobody is
  further: a step has a collective that needs every rank, and that rank has not begun the step after B.

Where nothing is asked nothing is looked up, so it costs a script nothing.
"""

from __future__ import annotations

import logging
import queue
from typing import Protocol

from rallypoint.wire import line as wire

__all__ = ["Orders", "Store", "Words", "take", "taken"]

_log = logging.getLogger(__name__)

#: Seconds between two looks of a paused rank at whether its world is broken.
_LOOK = 0.2


_taken = False


def take() -> None:
    """Say that a `State` has this worker's boundaries: nobody else speaks with the agent about them."""
    global _taken  # noqa: PLW0603  a process has one agent
    _taken = True


def taken() -> bool:
    """Return whether a `State` has the boundaries."""
    return _taken


class Store(Protocol):
    """What all ranks of a round have in common; torch's stores are such."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number, 0 at first, and return it."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a key that is not there when `expected` is empty; return what it holds then."""
        ...


class Words(Protocol):
    """The worker's side of an order."""

    @property
    def step(self) -> int | None:
        """Steps done, for people; None where the script counts none."""
        ...

    def done(self, order: wire.Order, error: str = "") -> None:
        """Tell the agent."""

    def save(self) -> None:
        """Have the script write what it saves; raises what that raises."""

    def broken(self) -> None:
        """Raise what ends the step where the world is broken."""


class Orders:
    """The orders of one worker in one round."""

    def __init__(self, heard: queue.SimpleQueue[wire.Order], words: Words) -> None:
        self._heard, self._words = heard, words
        self._open: list[wire.Order] = []
        self._said: set[int] = set()

    @property
    def open(self) -> bool:
        """There is something that is not done yet."""
        return bool(self._open) or not self._heard.empty()

    def forget(self) -> None:
        """Begin anew in another world: whoever asked asks again, if it still matters."""
        self._open.clear()
        self._said.clear()
        while not self._heard.empty():
            self._heard.get()

    def boundary(self, number: int, store: Store, size: int) -> None:
        """Do what is due at boundary `number`, which is the same number on all `size` ranks.

        Raises `SystemExit` with code 0 when the script is to stop, and whatever `Words.broken` raises while it is paused.
        """
        while not self._heard.empty():
            self._take(self._heard.get())
        while self._open and self._due(self._open[0], number, store, size):
            self._do(self._open.pop(0))

    def _take(self, order: wire.Order) -> None:
        if order.verb is wire.Verb.RESUME:
            self._words.done(order)  # it goes on already
        else:
            self._open.append(order)

    def _due(self, order: wire.Order, number: int, store: Store, size: int) -> bool:
        key = f"rallypoint/order/{order.number}"
        if order.number not in self._said:
            self._said.add(order.number)
            store.add(f"{key}/heard", 1)
        if store.add(f"{key}/heard", 0) < size:
            return False
        return number > int(store.compare_set(f"{key}/from", "", str(number)))

    def _do(self, order: wire.Order) -> None:
        if order.verb is wire.Verb.PAUSE:
            self._pause(order)
        elif order.verb is wire.Verb.STOP:
            self._stop(order)
        else:
            self._save(order)

    def _pause(self, order: wire.Order) -> None:
        _log.info("paused after step %s", self._words.step)
        self._words.done(order)
        while True:
            try:
                word = self._heard.get(timeout=_LOOK)
            except queue.Empty:
                self._words.broken()
                continue
            if word.verb is wire.Verb.RESUME:
                self._words.done(word)
                _log.info("going on")
                return
            # All ranks stand at the same boundary, so what else is asked needs no agreement.
            if word.verb is wire.Verb.STOP:
                self._stop(word)
            elif word.verb is wire.Verb.PAUSE:
                self._words.done(word)
            else:
                self._save(word)

    def _save(self, order: wire.Order) -> None:
        try:
            self._words.save()
        except Exception as error:  # noqa: BLE001  the script's own may be anything, and training goes on
            _log.exception("what was to be saved after step %s could not be", self._words.step)
            self._words.done(order, f"{type(error).__name__}: {error}")
        else:
            self._words.done(order)

    def _stop(self, order: wire.Order) -> None:
        self._save(order)
        _log.info("stopping after step %s, as asked", self._words.step)
        raise SystemExit(0)
