"""The worker's side of pause, resume, save and stop: every rank carries out a request at the same step boundary.

The ranks agree on that boundary by the rule of `rallypoint.wire.boundary`, which `Events` of `launch_agent` follow as well.
What they share lies in the round's store; in a file of the agent where they have no process group and run on one node.

Where nothing is requested nothing is looked up, so it costs a script nothing.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rallypoint.wire import line as wire
from rallypoint.wire.boundary import BoundaryAgreement, BoundaryStore, Visit, perform

__all__ = ["Orders", "Store", "StoreBoundaries", "Words", "World", "take", "taken"]

_log = logging.getLogger(__name__)

#: Seconds between two looks of a paused rank at whether its world is broken, and of one that holds at its agreement.
_LOOK, _HELD_LOOK = 0.2, 0.005


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

    def set(self, key: str, value: str, /) -> None:
        """Set a key."""
        ...

    def get(self, key: str, /) -> bytes:
        """Return what a key holds that is there."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Return whether the keys are there."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a key that is not there when `expected` is empty; return what it holds then."""
        ...


class StoreBoundaries:
    """A `BoundaryStore` in the round's store, for the request `number`."""

    def __init__(self, store: Store, size: int, number: int) -> None:
        self._store, self._size, self._key = store, size, f"rallypoint/order/{number}"

    def mark(self, rank: int, boundary: int) -> None:
        """Publish the highest boundary that a rank may have passed."""
        self._store.set(f"{self._key}/mark/{rank}", str(boundary))

    def join(self, _rank: int) -> int:
        """Add a rank; return how many are missing."""
        return self._size - self._store.add(f"{self._key}/joined", 1)

    def missing(self) -> int:
        """Return how many ranks have not joined."""
        return self._size - self._store.add(f"{self._key}/joined", 0)

    def read_mark(self, rank: int) -> int | None:
        """Return the mark of a rank."""
        return self._read(f"{self._key}/mark/{rank}")

    def decision(self) -> int | None:
        """Return the agreed boundary."""
        return self._read(f"{self._key}/agreed")

    def decide(self, boundary: int) -> int:
        """Set the agreed boundary unless it is set."""
        return int(self._store.compare_set(f"{self._key}/agreed", "", str(boundary)))

    def _read(self, key: str) -> int | None:
        return int(self._store.get(key)) if self._store.check([key]) else None


@dataclass(frozen=True, kw_only=True)
class World:
    """The ranks that carry out requests together; `boundaries` opens what they share about the request of a number."""

    rank: int
    size: int
    boundaries: Callable[[int], BoundaryStore]


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
        self._agreements: dict[int, BoundaryAgreement] = {}

    @property
    def open(self) -> bool:
        """There is something that is not done yet."""
        return bool(self._open) or not self._heard.empty()

    def forget(self) -> None:
        """Begin anew in another world: a request that still matters is sent again."""
        self._open.clear()
        self._agreements.clear()
        while not self._heard.empty():
            self._heard.get()

    def boundary(self, number: int, world: World) -> None:
        """Carry out what is due at boundary `number`, which is the same number on all ranks; hold here where that is needed.

        Raises `SystemExit` with code 0 when the script is to stop, and whatever `Words.broken` raises while it waits.
        """
        began = time.monotonic()
        self._take_heard()
        while self._visit(number, world, time.monotonic() - began):
            self._words.broken()
            time.sleep(_HELD_LOOK)
            self._take_heard()

    def _take_heard(self) -> None:
        while not self._heard.empty():
            order = self._heard.get()
            if order.verb is not wire.Verb.RESUME or any(map(self._will_pause, self._open)):
                self._open.append(order)
            else:
                # Ranks that have heard of a pause by now do not agree on it any more.
                self._open = [one for one in self._open if one.verb is not wire.Verb.PAUSE]
                self._words.done(order)

    def _will_pause(self, order: wire.Order) -> bool:
        agreement = self._agreements.get(order.number)
        return order.verb is wire.Verb.PAUSE and agreement is not None and agreement.agreed is not None

    def _visit(self, number: int, world: World, held: float) -> bool:
        """Visit the boundary for each open order, the oldest first; return whether this rank holds here.

        Only the newest is held for: an agent that receives two requests at once forwards the second alone, so some ranks
        may never join the first.
        """
        holds = False
        orders = [order for order in self._open if order.verb is not wire.Verb.RESUME]  # that is for a pause to deal with
        for order in orders:
            if order not in self._open:
                continue  # a pause has dealt with it
            agreement = self._agreements.setdefault(order.number, BoundaryAgreement(world.rank, world.size))
            patient = order is orders[-1] and held < agreement.patience
            visit = perform(agreement.visit(number, patient=patient), world.boundaries(order.number))
            if visit is Visit.ACT:
                self._open.remove(order)
                self._drop_incomplete(order, world)
                self._do(order)
            holds = visit is Visit.HOLD
        return holds

    def _drop_incomplete(self, done: wire.Order, world: World) -> None:
        """Drop older orders that a rank is missing from: by now all have heard of `done`, so none will join them."""
        self._open = [
            order for order in self._open if order.number > done.number or not world.boundaries(order.number).missing()
        ]

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
            # All ranks are paused at the same boundary, so what else is requested is carried out here, without an agreement.
            newer = next((one for one in self._open if one.number > order.number), None)
            if newer is not None:
                self._open.remove(newer)
            try:
                word = newer or self._heard.get(timeout=_LOOK)
            except queue.Empty:
                self._words.broken()
                continue
            if word.verb is wire.Verb.RESUME:
                self._words.done(word)
                _log.info("resumed")
                return
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
            _log.exception(
                "this worker could not save the requested checkpoint after step %s; the traceback follows", self._words.step
            )
            self._words.done(order, f"{type(error).__name__}: {error}")
        else:
            self._words.done(order)

    def _stop(self, order: wire.Order) -> None:
        self._save(order)
        _log.info("a stop was requested; this worker exits after step %s", self._words.step)
        raise SystemExit(0)
