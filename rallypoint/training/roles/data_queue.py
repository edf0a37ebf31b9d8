"""Queues between the roles of a job: one process holds the items, all others put and get them by calls."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rallypoint.training.roles.context import identity
from rallypoint.training.roles.errors import QueueEmptyError, QueueFullError, RemoteError, RolesError
from rallypoint.training.roles.network import DEFAULT_TIMEOUT, Network, Target, require_timeout, this_network
from rallypoint.training.roles.peers import spec_of
from rallypoint.training.roles.server import Caller, Outcome
from rallypoint.training.roles.service import Service, this_service
from rallypoint.wire.roles import QUEUE, entry_name, is_queue_name

__all__ = ["DataQueue", "QueueStore"]

#: Seconds between two looks whether a caller that waits still exists.
_LOOK = 0.25

#: Seconds on top of the time that an operation may wait, for the call itself.
_SLACK = 15.0

_MOST_ITEMS = 1 << 20


class QueueStore:
    """The items of a queue, in the process that owns it; safe in any thread."""

    def __init__(self, name: str, maxsize: int) -> None:
        self._name, self._maxsize = name, maxsize
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        with self._changed:
            return len(self._items)

    def put(self, item: Any, until: float, waits: Callable[[], bool]) -> None:
        """Append an item; raises `QueueFullError` if there is no place until then, or the caller no longer waits."""
        with self._changed:
            self._wait(lambda: len(self._items) < self._maxsize, until, waits, self._full)
            self._items.append(item)
            self._changed.notify_all()

    def get(self, most: int, until: float, waits: Callable[[], bool]) -> list[Any]:
        """Remove the oldest items, at least one; raises `QueueEmptyError` if there is none until then."""
        with self._changed:
            self._wait(lambda: bool(self._items), until, waits, self._empty)
            found = [self._items.popleft() for _ in range(min(most, len(self._items)))]
            self._changed.notify_all()
            return found

    def undo(self, items: Sequence[Any]) -> None:
        """Return items to the front of the queue, in their order: their receiver never confirmed them."""
        with self._changed:
            self._items.extendleft(reversed(items))
            self._changed.notify_all()

    def _full(self) -> RolesError:
        return QueueFullError(
            f"queue {self._name}: the queue is full ({self._maxsize} items) and had no free place within the timeout"
        )

    def _empty(self) -> RolesError:
        return QueueEmptyError(f"queue {self._name}: no item arrived within the timeout")

    def _wait(self, good: Callable[[], bool], until: float, waits: Callable[[], bool], error: Callable[[], RolesError]) -> None:
        waited = False
        while not good():
            left = until - time.monotonic()
            if left <= 0 or (waited and not waits()):
                raise error()
            self._changed.wait(min(left, _LOOK))
            waited = True
        if waited and not waits():
            raise error()


class DataQueue:
    """A first-in, first-out queue that all roles of a job can use by its name.

    The instance of role `owner` with rank 0 holds the items in its memory; every process, the owner too, makes the same
    `DataQueue(name, owner)`. If the owner is restarted, its items are lost, and the next operation of each other process
    raises `Restarted`. `get` removes an item; if the connection breaks before the receiver has the item, the item returns to
    the front of the queue. Items are values as in calls (`rpc`).

    Args:
        name: 1 to 63 letters, digits, `-` and `_`.
        owner: name of the role whose rank 0 holds the items.
        maxsize: number of items from which `put` waits; that of the owner counts.
        timeout: seconds that operations wait, where they get no timeout of their own.

    """

    def __init__(
        self,
        name: str,
        owner: str,
        *,
        maxsize: int = 1000,
        timeout: float = DEFAULT_TIMEOUT,
        network: Network | None = None,
        service: Service | None = None,
    ) -> None:
        if not is_queue_name(name):
            raise RolesError(f"name: {name!r} is not allowed; expected 1 to 63 letters, digits, '-' and '_'")
        if type(maxsize) is not int or not 1 <= maxsize <= _MOST_ITEMS:
            raise RolesError(f"maxsize: {maxsize!r} is not allowed; expected 1 to {_MOST_ITEMS} items")
        spec_of(owner)
        self.name, self.owner, self.timeout = name, owner, require_timeout(timeout)
        network = this_network() if network is None else network
        self._target = Target(network, entry_name(QUEUE, name), f"queue {name} of {owner}", any_rank=True)
        self._store = QueueStore(name, maxsize)
        if identity()[0] == owner:
            self._offer(this_service() if service is None else service)

    def put(self, item: Any, timeout: float | None = None) -> None:
        """Append an item; wait for a free place.

        Raises:
            QueueFullError: there was no free place within the timeout; it is also a `queue.Full`.
            Restarted: the owner was restarted, and the earlier items are lost.
            UnreachableError: the owner does not run, and no successor has started.
            CallTimeoutError: the owner does not answer; whether the item was appended is unknown.

        """
        seconds = self._seconds(timeout)
        if self._owned():
            self._store.put(item, time.monotonic() + seconds, _always)
        else:
            self._call("put", [item, seconds], seconds)

    def put_nowait(self, item: Any) -> None:
        """Append an item; raises `QueueFullError` at once if there is no free place."""
        self.put(item, 0)

    def get(self, timeout: float | None = None) -> Any:
        """Remove and return the oldest item; wait for one.

        Raises:
            QueueEmptyError: no item arrived within the timeout; it is also a `queue.Empty`.
            Restarted, UnreachableError, CallTimeoutError: as `put`.

        """
        return self.get_batch(1, timeout)[0]

    def get_nowait(self) -> Any:
        """Remove and return the oldest item; raises `QueueEmptyError` at once if there is none."""
        return self.get(0)

    def get_batch(self, most: int, timeout: float | None = None) -> list[Any]:
        """Remove and return the oldest items, at least one and at most `most`; wait for the first one. Raises as `get`."""
        if type(most) is not int or not 1 <= most <= _MOST_ITEMS:
            raise RolesError(f"most: {most!r} is not allowed; expected 1 to {_MOST_ITEMS} items")
        seconds = self._seconds(timeout)
        if self._owned():
            return self._store.get(most, time.monotonic() + seconds, _always)
        return list(self._call("get", [most, seconds], seconds))

    def qsize(self) -> int:
        """Return the number of items; raises as `get`."""
        return len(self._store) if self._owned() else int(self._call("size", [], self.timeout))

    def _seconds(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else require_timeout(timeout)

    def _owned(self) -> bool:
        """Return whether this process holds the items; the rank of an elastic worker may change."""
        role, rank, _ = identity()
        return role == self.owner and rank == 0

    def _offer(self, service: Service) -> None:
        """Execute the operations of other processes."""

        def put(args: list[Any], caller: Caller) -> Outcome:
            item, seconds = args
            self._store.put(item, _until(seconds, caller), caller.waits)
            return Outcome(value=None)

        def get(args: list[Any], caller: Caller) -> Outcome:
            most, seconds = args
            found = self._store.get(int(most), _until(seconds, caller), caller.waits)
            return Outcome(value=found, lost=lambda: self._store.undo(found))

        prefix = f"queue.{self.name}"
        if f"{prefix}.put" in service.operations:
            raise RolesError(f"name: this process has a queue {self.name!r} already; expected another name")
        service.operations |= {
            f"{prefix}.put": put,
            f"{prefix}.get": get,
            f"{prefix}.size": lambda _args, _caller: Outcome(value=len(self._store)),
        }
        service.start()
        service.add_queue(self.name, self._owned)

    def _call(self, operation: str, args: list[Any], seconds: float) -> Any:
        try:
            return self._target.call(f"queue.{self.name}.{operation}", args, {}, seconds + _SLACK)
        except RemoteError as error:
            kind = _OWN.get(error.type_name)
            if kind is None:
                raise
            raise kind(error.message) from None


#: Errors of the owner that its callers raise as their own.
_OWN = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in (QueueEmptyError, QueueFullError)}


def _always() -> bool:
    return True


def _until(seconds: Any, caller: Caller) -> float:
    return min(time.monotonic() + require_timeout(seconds), caller.until)
