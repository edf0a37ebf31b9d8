"""The agent's part in the rounds' stores, without processes."""

from __future__ import annotations

import errno

import pytest

from rallypoint.agent.errors import StoreError
from rallypoint.agent.workers.store import StoreKeeper
from tests.agent.fakes import StuckSpawner


async def test_a_store_that_cannot_be_started_costs_a_round() -> None:
    """A machine short of processes says so in words of the house, and the same store may be given again."""
    lost: list[str] = []
    spawner = StuckSpawner(OSError(errno.EAGAIN, "Resource temporarily unavailable"))
    stores = StoreKeeper("127.0.0.1", spawner, lost.append)
    await stores.prepare()
    offer = stores.offer

    with pytest.raises(StoreError, match=r"the round's store cannot be started: .*temporarily unavailable"):
        await stores.assigned(offer)

    assert (stores.offer, lost) == (offer, [])
    stores.close()
