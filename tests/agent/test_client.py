"""Which coordinator an agent listens to, and for how long it looks for one."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from rallypoint.agent.errors import LostContactError, UnreachableError
from rallypoint.agent.transport.client import CoordinatorClient, EndpointSource, FileEndpoint
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import Continue, WorkerReport
from tests.agent.fakes import ListedEndpoints, ScriptedExchange, report


def says(term: int, attempt: int = 1) -> Continue:
    return Continue(fence=Fence(attempt=attempt, term=term))


def at(host: str, term: int, attempt: int = 1) -> Endpoint:
    return Endpoint(attempt=attempt, term=term, host=host, port=1)


def client(source: EndpointSource, exchange: ScriptedExchange, fence_timeout: float = 30.0) -> CoordinatorClient:
    return CoordinatorClient(source=source, exchange=exchange, fence_timeout=fence_timeout, attempt=1)


async def test_a_dead_coordinator_is_looked_up_again() -> None:
    """The endpoint names the next one, and the report is simply repeated there."""
    exchange = ScriptedExchange(new=says(2))
    asked = client(ListedEndpoints(at("old", 1), at("old", 1), at("new", 2)), exchange)

    assert await asked.ask(report()) == says(2)
    assert exchange.asked == [("old", 1), ("old", 1), ("new", 2)]


async def test_an_endpoint_that_is_not_written_yet_is_waited_for() -> None:
    """Nodes and coordinator are started together."""
    assert await client(ListedEndpoints(None, None, at("new", 1)), ScriptedExchange(new=says(1))).ask(report()) == says(1)


@pytest.mark.parametrize(
    ("endpoints", "answers"),
    [
        pytest.param([at("new", 2), at("old", 1), at("new", 2)], {"new": says(2), "old": says(1)}, id="a stale file"),
        pytest.param([at("new", 2), at("old", 3), at("new", 4)], {"new": says(4), "old": says(1)}, id="a stale answer"),
    ],
)
async def test_an_older_coordinator_is_not_listened_to(endpoints: list[Endpoint], answers: dict[str, Continue]) -> None:
    """Whoever has heard a higher fence refuses a lower one, from a file as from an answer."""
    exchange = ScriptedExchange(**answers)
    asked = client(ListedEndpoints(*endpoints), exchange)
    first = await asked.ask(report())
    exchange.answers.pop("new")
    again = asyncio.create_task(asked.ask(report()))
    await asyncio.sleep(0.1)
    assert not again.done()
    exchange.answers["new"] = says(4)

    assert (first.fence.term, (await again).fence.term) == (answers["new"].fence.term, 4)


async def test_the_coordinator_of_an_older_attempt_is_not_asked() -> None:
    """After a reset its address may still stand in the file."""
    exchange = ScriptedExchange(old=says(9, attempt=0), new=says(1))

    assert await client(ListedEndpoints(at("old", 9, attempt=0), at("new", 1)), exchange).ask(report()) == says(1)
    assert exchange.asked == [("new", 1)]


async def test_contact_is_lost_after_the_fence_time_out() -> None:
    """The error says for how long, and what the last try saw."""
    asked = client(ListedEndpoints(at("gone", 1)), ScriptedExchange(), fence_timeout=0.1)

    with pytest.raises(LostContactError, match=r"the coordinator did not respond for 0.1 s: gone:1: refused"):
        await asked.ask(report())


async def test_an_older_report_is_not_tried_again() -> None:
    """While nobody answers, only the newest report is repeated."""
    asked = client(ListedEndpoints(at("gone", 1)), ScriptedExchange(), fence_timeout=0.5)
    older = asyncio.create_task(asked.ask(report(sequence=1)))
    newer = asyncio.create_task(asked.ask(report(sequence=2)))

    with pytest.raises(UnreachableError):
        await older
    with pytest.raises(LostContactError):
        await newer


async def test_a_report_that_arrives_late_says_how_long_its_workers_have_been_quiet_by_then() -> None:
    """The coordinator that takes over must not take it for a sign of life; who says nothing of that still does not."""
    workers = (WorkerReport(local_rank=0, pid=7, quiet=1.0), WorkerReport(local_rank=1, pid=8))
    exchange, clock = ScriptedExchange(), itertools.count(0.0, 4.0)
    asked = CoordinatorClient(
        source=ListedEndpoints(at("gone", 1)), exchange=exchange, fence_timeout=30.0, attempt=1, clock=lambda: next(clock)
    )

    with pytest.raises(LostContactError):
        await asked.ask(report(workers=workers))

    first, *_, last = exchange.reports
    assert first.workers[0].quiet is not None
    assert last.workers[0].quiet is not None
    assert last.workers[0].quiet > first.workers[0].quiet + 8.0
    assert [one.workers[1].quiet for one in exchange.reports] == [None] * len(exchange.reports)


async def test_the_endpoint_file_is_read(tmp_path: Path) -> None:
    """Absent and torn count as not there: the next try reads it again."""
    path = tmp_path / "endpoint.json"
    source = FileEndpoint(path)
    absent = await source.read()
    path.write_text("{")
    torn = await source.read()
    path.write_text(codec.dumps(at("h", 3)))

    assert (absent, torn, await source.read()) == (None, None, at("h", 3))
