"""The suite's own handle on a job: it waits for what an agent has not reported yet."""

from __future__ import annotations

import dataclasses
from typing import cast

from rallypoint.backends.contract import Backend
from rallypoint.wire.fence import Fence
from rallypoint.wire.status import JobState, JobStatus, RankStatus
from tests.cluster.jobs import Job
from tests.cluster.sites import Site


class Reported:
    """A backend that has no status at first, then one without ranks, then each rank in its turn."""

    def __init__(self, status: JobStatus) -> None:
        ranks = status.ranks
        self._statuses = [None, *(dataclasses.replace(status, ranks=ranks[:count]) for count in range(len(ranks) + 1))]

    async def status(self, _name: str) -> JobStatus | None:
        return self._statuses.pop(0)


class Heard:
    """A site that notes what its workers are told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str]] = []

    async def tell(self, _job: str, worker: RankStatus, word: str) -> None:
        self.told.append((worker.rank, word))


async def test_a_rank_is_killed_once_it_is_reported() -> None:
    """A worker prints before its agent reports it, so the status may lack it."""
    site = Heard()
    ranks = tuple(RankStatus(rank=rank, node=0, local_rank=rank, pid=100 + rank) for rank in range(2))
    eyes = Reported(JobStatus(job="counter", uid="u1", fence=Fence(attempt=1), state=JobState.RUNNING, ranks=ranks))

    await Job(cast("Site", site), "counter", cast("Backend", eyes)).kill(rank=1)

    assert site.told == [(1, "die")]
