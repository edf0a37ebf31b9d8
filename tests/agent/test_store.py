"""The agent's part in the rounds' stores, without processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

import pytest

from rallypoint.agent.errors import StoreError
from rallypoint.agent.workers.reaper import Ended
from rallypoint.agent.workers.spawner import Command, Spawner
from rallypoint.agent.workers.store import StoreKeeper, end_crowd
from tests.agent.fakes import StuckSpawner


async def test_a_store_that_cannot_be_started_costs_a_round() -> None:
    """A machine short of processes says so in words of the house, and the same store may be given again."""
    lost: list[str] = []
    spawner = StuckSpawner(OSError(errno.EAGAIN, "Resource temporarily unavailable"))
    stores = StoreKeeper("127.0.0.1", spawner, lost.append)
    await stores.prepare()
    offer = stores.offer

    with pytest.raises(StoreError, match=r"cannot start the process of the rendezvous store .*temporarily unavailable"):
        await stores.assigned(offer)

    assert (stores.offer, lost) == (offer, [])
    stores.close()


class Host(Spawner):
    """Starts a process of the stores that only counts how often it was asked for."""

    def __init__(self) -> None:
        self.started = 0

    async def spawn(self, command: Command, ended: Ended) -> int:
        self.started += 1
        await asyncio.sleep(0)
        return 1


async def test_the_host_is_there_before_a_round_needs_it() -> None:
    """It is asked for ahead and by a round at the same time, and started once."""
    host = Host()
    stores = StoreKeeper("127.0.0.1", host, lambda _: None)
    await stores.prepare()

    stores.host_ahead()
    stores.host_ahead()
    await stores.assigned(stores.offer)
    stores.host_ahead()

    assert host.started == 1
    stores.close()


async def test_a_host_that_cannot_be_started_ahead_is_started_by_the_round() -> None:
    """Nothing needs it yet, so nothing fails."""
    stores = StoreKeeper("127.0.0.1", StuckSpawner(OSError(errno.EAGAIN, "Resource temporarily unavailable")), lambda _: None)
    await stores.prepare()

    stores.host_ahead()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    with pytest.raises(StoreError):
        await stores.assigned(stores.offer)
    stores.close()


@pytest.mark.parametrize(("waiting", "left"), [(20, 20), (400, 0)], ids=["early ranks", "a crowd"])
def test_a_crowd_that_waits_for_the_store_is_ended(waiting: int, left: int) -> None:
    """Hardly anybody was told of the port yet, and torch's server would have no descriptor left for ranks."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1000))
        for _ in range(waiting):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        end_crowd(listener)
        listener.setblocking(False)
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                stack.enter_context(listener.accept()[0])
                taken += 1

    assert taken == left
