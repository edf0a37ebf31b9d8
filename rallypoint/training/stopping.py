"""Saving before the end: a worker is asked to stop by SIGTERM and has its job's stop grace until it is killed."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from rallypoint.training import orders
from rallypoint.training.context import environment_int, own_slot
from rallypoint.training.errors import CheckpointError
from rallypoint.training.line import Line, current_line
from rallypoint.wire import env
from rallypoint.wire import line as wire
from rallypoint.wire.boundary import BoundaryAgreement, BoundaryFile, Visit, perform

__all__ = ["Boundaries", "StopRequest", "current_world", "stop_requested", "world_of_node"]

#: Seconds that a rank which was asked to end waits for the others, and between two looks at them.
_ENDS_WITHIN, _LOOK = 5.0, 0.005


class _GoOn(Exception):  # noqa: N818  it never leaves this module
    """Nobody will say that the pause is over."""


def current_world() -> orders.World:
    """Return the ranks that share step boundaries with this one: its process group, without one those of its node or job."""
    dist = sys.modules.get("torch.distributed")  # a script without it shall not import it here
    if dist is not None and dist.is_available() and dist.is_initialized():
        size, store = dist.get_world_size(), dist.distributed_c10d._get_default_store()  # noqa: SLF001  torch has no other name
        return orders.World(
            rank=dist.get_rank(), size=size, boundaries=lambda number: orders.StoreBoundaries(store, size, number)
        )
    node = world_of_node("order")
    size = environment_int(os.environ, "WORLD_SIZE", default=1)
    if size == node.size or (shared := _store_of_round()) is None:
        return node
    rank = environment_int(os.environ, "RANK", default=0)
    return orders.World(rank=rank, size=size, boundaries=lambda number: orders.StoreBoundaries(shared, size, number))


def world_of_node(kind: str) -> orders.World:
    """Return the ranks of this node, which share files beside the socket of their agent; this rank alone without an agent."""
    size, line = environment_int(os.environ, "LOCAL_WORLD_SIZE", default=1), os.environ.get(env.LINE)
    if line is None:
        size = 1
    prefix = f"{line}.{environment_int(os.environ, env.ROUND, default=0)}-{kind}"
    return orders.World(
        rank=own_slot(os.environ) if size > 1 else 0,
        size=size,
        boundaries=lambda number: BoundaryFile(Path(f"{prefix}-{number}"), size),
    )


def _store_of_round() -> orders.Store | None:
    """Connect to the store of the round, for ranks of several nodes without a process group; None without torch."""
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415  only where it is needed
    except ImportError:
        return None
    store: orders.Store = TCPStore(os.environ["MASTER_ADDR"], environment_int(os.environ, "MASTER_PORT"), is_master=False)
    return store


class Boundaries:
    """The boundaries of this process. `ended` says that the script was asked to end: then no pause lasts."""

    def __init__(self, ended: Callable[[], bool]) -> None:
        self._ended = ended
        self._heard: queue.SimpleQueue[wire.Order] = queue.SimpleQueue()
        self._orders = orders.Orders(self._heard, self)
        self._number, self._closed = 0, False
        self._line: Line | None = None
        self._world: orders.World | None = None
        self._ending: BoundaryAgreement | None = None

    def reach(self) -> None:
        """Stand still here if that is asked for."""
        if self._number == 0 and not orders.taken():
            self._begin()
        self._number += 1
        if not self._orders.open:
            return
        self._world = self._world or current_world()
        try:
            self._orders.boundary(self._number, self._world)
        except _GoOn:
            self._orders.forget()

    def ends_here(self) -> bool:
        """Return whether a rank without a process group, which was asked to end, ends at this boundary.

        All ranks of the node are asked to end, at slightly different times, and agree on one boundary. A rank that waits
        too long for the others, because it alone was asked to, ends by itself.
        """
        world = world_of_node("end")
        self._ending = agreement = self._ending or BoundaryAgreement(world.rank, world.size)
        until = time.monotonic() + _ENDS_WITHIN
        while True:
            visit = perform(agreement.visit(self._number), world.boundaries(0))
            if visit is not Visit.HOLD or time.monotonic() > until:
                return visit is not Visit.PASS
            time.sleep(_LOOK)

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
            why="the script does not use training.State",
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
        raise CheckpointError("no save callback registered (State.on_save)")

    def broken(self) -> None:
        """End a pause that nobody would end."""
        if self._ended() or self._closed:
            raise _GoOn


def stop_requested() -> bool:
    """Return whether this worker, or any other of its process group, was asked to stop: save now, and end with 143.

    Call it once per step, on every rank, at the same place of the loop: with a process group it is a collective (one number is
    reduced), so that every rank stops at the same step and can take part in the checkpoint. Without one, the ranks of a node
    that were all asked to stop agree on a step. From the first call on SIGTERM no longer ends the process by itself; a handler
    that the script had before is still called.

    It is a step boundary, too: a job whose workers are asked to pause stands still in it, on all ranks after the same step.

    A rank that is blocked in a broken collective cannot answer; it is killed when the stop grace is over.

    Raises:
        RuntimeError: when the first call is not made in the main thread, which alone may handle signals.

    """
    _request.listen()
    _boundaries.reach()
    if _grouped():
        return _any_rank(_request.made)
    return _request.made and _boundaries.ends_here()


class StopRequest:
    """Whether SIGTERM came; `listen` before it can be known."""

    def __init__(self) -> None:
        self.made = False
        self._listens = False
        self._before: Callable[[int, FrameType | None], Any] | int | None = None

    def listen(self) -> None:
        """Handle SIGTERM from now on. Does nothing the second time."""
        if self._listens:
            return
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(
                "stop_requested: make the first call in the main thread, because Python handles signals only there"
            )
        self._before = signal.signal(signal.SIGTERM, self._note)
        self._listens = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.made = True
        if callable(self._before):
            self._before(number, frame)


_request = StopRequest()
_boundaries = Boundaries(lambda: _request.made)


def _grouped() -> bool:
    # A process group without torch there cannot be: a script that does without it shall not import it here.
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _any_rank(here: bool) -> bool:  # noqa: FBT001  one flag, and nothing to confuse it with
    import torch  # noqa: PLC0415  as above
    from torch import distributed as dist  # noqa: PLC0415

    devices = {device.type for device in dist.group.WORLD._device_types}  # type: ignore[union-attr]  # noqa: SLF001  the backend's name may be of another
    device = "cpu" if "cpu" in devices else "cuda"
    flag = torch.tensor([int(here)], dtype=torch.int32, device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())
