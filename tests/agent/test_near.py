"""An agent and its coordinator in one process."""

from __future__ import annotations

import asyncio

import pytest

from rallypoint.agent.errors import UnreachableError
from rallypoint.agent.transport.near import NearExchange
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import AgentReport, Regroup, Reply
from rallypoint.wire.status import JobStatus
from tests.agent.fakes import report as made

REPORT = made()
REPLY = Regroup(fence=Fence(attempt=1), reason="it is over")
HERE = Endpoint(attempt=1, term=1, host="127.0.0.1", port=0)


class Service:
    """Answers when it is told to, and remembers who stopped waiting."""

    def __init__(self) -> None:
        self.may_answer, self.asked, self.forgotten = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def report(self, report: AgentReport) -> Reply:
        self.asked.set()
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.forgotten.set()
            raise
        assert report == REPORT
        return REPLY

    def hung_up(self, agent: str) -> None:
        raise AssertionError(agent)

    def status(self) -> JobStatus:
        raise AssertionError


async def test_a_report_is_answered() -> None:
    """With the coordinator's own answer."""
    service = Service()
    service.may_answer.set()

    assert await NearExchange(service).exchange(HERE, REPORT, timeout=60.0) == REPLY


async def test_who_does_not_wait_any_more_is_forgotten() -> None:
    """A cancelled question is taken back from the coordinator."""
    service = Service()
    asking = asyncio.create_task(NearExchange(service).exchange(HERE, REPORT, timeout=60.0))
    await service.asked.wait()
    asking.cancel()

    await service.forgotten.wait()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_an_answer_that_does_not_come() -> None:
    """Is waited for as long as was said."""
    service = Service()

    with pytest.raises(UnreachableError, match="no answer within 0 s"):
        await NearExchange(service).exchange(HERE, REPORT, timeout=0.01)
    await service.forgotten.wait()


async def test_closing_ends_what_is_under_way() -> None:
    """As a closed connection does."""
    service = Service()
    exchange = NearExchange(service)
    asking = asyncio.create_task(exchange.exchange(HERE, REPORT, timeout=60.0))
    await service.asked.wait()
    await exchange.close()

    with pytest.raises(UnreachableError, match="closed"):
        await asking
