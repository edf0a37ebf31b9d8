"""A network that is cut between agents and their coordinator: whoever goes on, there is never a second world that trains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.exits import Exit
from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobState
from tests.live.agent_processes import SCRIPTS, Agents, agents, alive, said
from tests.live.cut import Wire, wire
from tests.waiting import eventually

TOGETHER = SCRIPTS / "together.py"
BEHIND = "behind.json"


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


def done(job: Agents) -> list[tuple[int, int, int]]:
    """Return the steps that were done, in the order in which they were: round, rank, step."""
    path = job.work / "done"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(r), int(k), int(s)) for r, k, s in (line.split() for line in lines)]


def trains(job: Agents, round_: int, more: int = 5) -> None:
    """Wait until a round has done some steps, beyond those that it has done already."""
    before = len([one for one in done(job) if one[0] == round_])
    eventually(lambda: len([one for one in done(job) if one[0] == round_]) >= before + more, why=f"round {round_} trains")


def behind(job: Agents, wire: Wire) -> None:
    """Write where the coordinator seems to listen for those behind the wire."""
    known = codec.loads(Endpoint, (job.folder / "endpoint.json").read_text())
    seems = Endpoint(attempt=known.attempt, term=known.term, host="127.0.0.1", port=wire.port)
    (job.folder / BEHIND).write_text(codec.dumps(seems))


def port_of(job: Agents) -> int:
    """Wait for the coordinator and return its port."""
    path = job.folder / "endpoint.json"
    eventually(path.exists, why="a coordinator")
    return codec.loads(Endpoint, path.read_text()).port


def in_order(job: Agents) -> bool:
    """Return whether no step of an earlier world was done after one of a later world."""
    rounds = [round_ for round_, _, _ in done(job)]
    return rounds == sorted(rounds)


def test_a_node_that_is_cut_off_trains_no_more(job: Agents) -> None:
    """The rest shrinks and goes on. The node that is cut off has live workers, and can do no step; mended, it is taken in."""
    job.write_plan(min_nodes=1, max_nodes=2, nproc_per_node=1, entrypoint=str(TOGETHER), node_lease=3.0, fence_timeout=600.0)
    coordinator = job.coordinator()
    with wire(port_of(job)) as cable:
        behind(job, cable)
        nodes = [job.node(0), job.node(1, endpoint=BEHIND)]
        workers = job.running(1, 2)
        trains(job, 1)
        cable.cut()
        job.running(2, 1)
        trains(job, 2)
        assert alive(workers[1]), "nobody could tell it to stop"
        assert not alive(workers[0])
        assert in_order(job)
        cable.mend()
        job.running(3, 2)
        trains(job, 3)
        job.finish()
        assert [said(process)[0] for process in (coordinator, *nodes)] == [Exit.OK] * 3

    assert in_order(job)
    status = job.status()
    assert status is not None
    assert [incident.cause for incident in status.incidents] == [Cause.NODE, Cause.SCALE]


@pytest.mark.extended
def test_a_world_without_anybody_of_the_last_waits_until_that_is_over(job: Agents) -> None:
    """Everybody is cut off at once, and trains on: a node that comes now is given no round before they have stopped."""
    job.write_plan(min_nodes=1, max_nodes=2, nproc_per_node=1, entrypoint=str(TOGETHER), node_lease=3.0, fence_timeout=6.0)
    coordinator = job.coordinator()
    with wire(port_of(job)) as cable:
        behind(job, cable)
        lost = [job.node(node, endpoint=BEHIND) for node in (0, 1)]
        workers = job.running(1, 2)
        trains(job, 1)
        cable.cut()
        newcomer = job.node(2)
        status = eventually(lambda: job.status() if _fenced(job) else None, why="the new world waits")
        assert (status.state, status.fence.round) == (JobState.FORMING, 1)
        job.running(2, 1)
        assert not any(map(alive, workers.values()))
        trains(job, 2)
        assert in_order(job)
        assert [said(process)[0] for process in lost] == [Exit.LOST_CONTACT] * 2
        job.finish()
        assert [said(process)[0] for process in (coordinator, newcomer)] == [Exit.OK] * 2


def _fenced(job: Agents) -> bool:
    status = job.status()
    return status is not None and any(event.kind == "fenced" for event in status.events)
