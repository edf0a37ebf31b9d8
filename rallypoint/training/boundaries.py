"""The step boundaries of a script that asks `stop_requested` once a step, and has no `State`: there it can be paused, too.

It knows when all ranks are between two steps, and nothing of what the script would have to save: it can stand still and go on.
To stop is SIGTERM, which `stop_requested` tells the script.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
from collections.abc import Callable

from rallypoint.training import orders
from rallypoint.training.context import environment_int, own_slot
from rallypoint.training.errors import CheckpointError
from rallypoint.training.line import Line, current_line
from rallypoint.wire import env
from rallypoint.wire import line as wire

__all__ = ["Boundaries", "store_of_world"]


class _GoOn(Exception):  # noqa: N818  it never leaves this module
    """Nobody will say that the pause is over."""


class LocalStore:
    """What one rank by itself has in common with the others."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._words: dict[str, str] = {}

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number."""
        self._numbers[key] = self._numbers.get(key, 0) + amount
        return self._numbers[key]

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a key that is not there."""
        if self._words.get(key, "") == expected:
            self._words[key] = desired
        return self._words[key].encode()


def store_of_world() -> tuple[orders.Store, int]:
    """Return what the ranks have in common, and how many they are; ranks without a process group wait for nobody."""
    dist = sys.modules.get("torch.distributed")  # a script without it shall not import it here
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return LocalStore(), 1
    return dist.distributed_c10d._get_default_store(), dist.get_world_size()  # noqa: SLF001  torch has no other name for it


class Boundaries:
    """The boundaries of this process. `ended` says that the script was asked to end: then no pause lasts."""

    def __init__(self, ended: Callable[[], bool]) -> None:
        self._ended = ended
        self._heard: queue.SimpleQueue[wire.Order] = queue.SimpleQueue()
        self._orders = orders.Orders(self._heard, self)
        self._number, self._closed = 0, False
        self._line: Line | None = None
        self._world: tuple[orders.Store, int] | None = None

    def reach(self) -> None:
        """Stand still here if that is asked for."""
        if self._number == 0 and not orders.taken():
            self._begin()
        self._number += 1
        if not self._orders.open:
            return
        store, size = self._world = self._world or store_of_world()
        try:
            self._orders.boundary(self._number, store, size)
        except _GoOn:
            self._orders.forget()

    def _begin(self) -> None:
        line = current_line()
        if line is None:
            return
        self._line = line
        line.listen(self)
        hello = wire.Hello(
            rank=environment_int(os.environ, "RANK"),
            local_rank=own_slot(os.environ),
            round=environment_int(os.environ, env.ROUND),
            pid=os.getpid(),
            abilities=(wire.Ability.PAUSE,),
            why="the script has no training.State",
        )
        self._say(hello)

    def _say(self, word: wire.FromWorker) -> None:
        if self._line is not None:
            with contextlib.suppress(OSError):  # the agent is gone, and this worker soon
                self._line.say(word)

    # --- line.Listener, in the thread of the line ----------------------------------------------------------------------------

    def leave(self, word: wire.Leave) -> None:
        """The world is broken, and so is this worker: its agent ends it."""

    def assign(self, word: wire.Assign) -> None:
        """Nothing: it was never said that this worker lives on."""

    def order(self, word: wire.Order) -> None:
        """Note it for the next boundary."""
        self._heard.put(word)

    def closed(self) -> None:
        """Nobody will say anything more."""
        self._closed = True

    # --- orders.Words --------------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int | None:
        """Not known: the script counts for itself."""
        return None

    def done(self, order: wire.Order, error: str = "") -> None:
        """Tell the agent."""
        self._say(wire.Done(verb=order.verb, number=order.number, error=error))

    def save(self) -> None:
        """Refuse: nobody said what that would be."""
        raise CheckpointError("the script has named nothing that saves (State.on_save)")

    def broken(self) -> None:
        """End a pause that nobody would end."""
        if self._ended() or self._closed:
            raise _GoOn
