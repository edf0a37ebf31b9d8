"""The default process group of a worker that may live through rounds: joined, freed by another thread, left, joined again."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but torch lists it by dir()
from torch.distributed.distributed_c10d import PrefixStore, Store

from rallypoint.training.context import environment_int
from rallypoint.training.reconfigurable import BACKEND, ReconfigurableGroup, Rehearsal, form, register
from rallypoint.training.sockets import Opened
from rallypoint.training.startup import peers
from rallypoint.wire import env

__all__ = ["Rounds", "current_rounds", "lives_through_rounds"]

_log = logging.getLogger(__name__)

#: Who waits for a peer is freed by its agent when that peer is lost; a time-out of its own only costs a slow start of another.
_STORE_TIMEOUT = timedelta(hours=1)

#: torch's own, for both backends together.
_DEFAULT_TIMEOUT = timedelta(minutes=30)


class Rounds:
    """The group of this process. Only `free` and `stuck` may be used in another thread."""

    def __init__(self, backend: str, timeout: timedelta | None) -> None:
        self.backend, self._timeout = backend, timeout or _DEFAULT_TIMEOUT
        self._opened, self._lock = Opened(), threading.Lock()
        self._store: Store | None = None
        self._groups, self._freed, self._turns = 0, False, 0
        self.group: ReconfigurableGroup | None = None

    @property
    def rehearses(self) -> bool:
        """Whether this process is not in its world yet."""
        return self.group is not None and isinstance(self.group.inner, Rehearsal)

    @property
    def store(self) -> Store:
        """The store of the world that this process is in; it has what its ranks have in common."""
        assert self._store is not None
        return self._store

    @property
    def subgroups(self) -> int:
        """How many groups the script has made beside the default one; they cannot be replaced."""
        return self._groups - 1

    def join(self) -> None:
        """Make this torch's default group; where others live on in the world, as a rehearsal."""
        rank, size = _place(os.environ)
        register(self._inner)
        store: Store
        if environment_int(os.environ, env.KEPT, default=0):
            store = dist.HashStore()  # type: ignore[attr-defined]  # as TCPStore
            dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size, timeout=self._timeout)
        else:
            with self._opened.watching():
                before = peers.connections()
                store = self._connect()
                peers.check(before)
                dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size, timeout=self._timeout)
        self._store, self._turns = store, 0
        made = dist.group.WORLD
        assert isinstance(made, ReconfigurableGroup)
        self.group = made

    def turn(self) -> int:
        """Count what the ranks of this world do together over its store, each as often: 0 the first time."""
        self._turns += 1
        return self._turns - 1

    def prepare(self) -> None:
        """Have been freed from nothing yet: what `free` is called for from now on ends the next `rejoin`."""
        self._freed = False

    def rejoin(self) -> None:
        """Meet the others on the store that the environment names; a collective of the new world."""
        group = self.group
        assert group is not None
        rank, size = _place(os.environ)
        with self._opened.watching():
            if self._freed:
                raise ConnectionAbortedError("the rendezvous round ended before this worker joined its process group")
            before = peers.connections()
            self._store, self._turns = PrefixStore("regrouped", self._connect()), 0
            inner = form(self.backend, self._store, rank, size, self._timeout)
            peers.check(before)
        group.replace(rank, size, inner)
        _tell_torch(group, self._store, size)

    def free(self) -> None:
        """Let whoever waits in the group fail, at once; in any thread."""
        with self._lock:
            self._freed = True
            ended = self._opened.shut_down()
        group = self.group
        if group is not None and "nccl" in self.backend:
            with contextlib.suppress(Exception):  # a communicator that was never used, or one that has failed already
                group.abort()
        _log.debug("the round of this worker ended; the worker closed %d connections of the process group of this round", ended)

    @property
    def stuck(self) -> bool:
        """Whether a collective goes on; some time after `free` it never ends. In any thread."""
        return self.group is not None and self.group.stuck()

    def leave(self) -> None:
        """Have no part in any world; the others notice."""
        self.free()
        if self.group is not None:
            self.group.drop()
        self._store = None

    def _inner(self, store: Store, rank: int, size: int) -> Any:
        self._groups += 1
        if environment_int(os.environ, env.KEPT, default=0) and self.group is None:
            return Rehearsal(rank, size, _devices(self.backend))
        return form(self.backend, store, rank, size, self._timeout)

    def _connect(self) -> Store:
        address, port = os.environ["MASTER_ADDR"], environment_int(os.environ, "MASTER_PORT")
        return TCPStore(address, port, is_master=False, timeout=_STORE_TIMEOUT)


_current: Rounds | None = None


def current_rounds() -> Rounds | None:
    """Return the group that this process has, None where it has none of this kind."""
    return _current if _current is not None and _current.group is not None and dist.is_initialized() else None


def lives_through_rounds(backend: str, timeout: timedelta | None) -> bool:
    """Join such a group where an agent speaks with this worker, and torch can; return whether it was joined."""
    global _current  # noqa: PLW0603  torch has one default group for each process
    if not os.environ.get(env.LINE) or "RANK" not in os.environ:
        return False
    if any(part.rpartition(":")[2] not in ("gloo", "nccl") for part in backend.split(",")):
        return False
    rounds = Rounds(backend, timeout)
    rounds.join()
    _current = rounds
    return True


def _place(environ: Mapping[str, str]) -> tuple[int, int]:
    return environment_int(environ, "RANK"), environment_int(environ, "WORLD_SIZE")


def _devices(backend: str) -> list[torch.device]:
    gpu = [torch.device("cuda")] if "nccl" in backend else []
    return [*gpu, *([torch.device("cpu")] if "gloo" in backend else [])]


def _tell_torch(group: ReconfigurableGroup, store: Store, size: int) -> None:
    """Let torch's own tables tell the truth of the new world."""
    world = dist.distributed_c10d._world  # noqa: SLF001  torch offers no other way
    world.pg_map[group] = (BACKEND, store)
    world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
