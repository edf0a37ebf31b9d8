"""A coordinator whose standard error is a pipe that nobody reads: it answers all the same, and tells later what is missing."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from rallypoint.agent.stderr import ROOM
from rallypoint.agent.transport.http_client import HttpExchange
from rallypoint.wire import codec
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import AgentReport, AgentState, Refusal
from rallypoint.wire.repeated_lines import BURST
from tests.live.agent_processes import agents, said
from tests.waiting import PATIENCE, eventually

#: Of a report that is refused, and so of the line about it.
HOST = "h" * 30_000

#: So many of them are more than the pipe and the buffer take, and fewer than the lines of one kind that are written at once.
REFUSED = 2 * ROOM // len(HOST)
assert REFUSED < BURST


def stale(number: int) -> AgentReport:
    """Return the report of an agent of another attempt."""
    return AgentReport(
        job="job",
        fence=Fence(attempt=9),
        node=0,
        incarnation=1,
        agent=f"agent-{number}",
        host=HOST,
        local_world_size=1,
        store="h:1",
        state=AgentState.WAITING,
        round=0,
        sequence=1,
    )


async def _all_refused(endpoint: Endpoint) -> bool:
    exchange = HttpExchange("a secret")
    try:
        replies = [await exchange.exchange(endpoint, stale(number), timeout=20.0 * PATIENCE) for number in range(REFUSED)]
    finally:
        await exchange.close()
    return all(isinstance(reply, Refusal) for reply in replies)


@pytest.mark.timeout(120)
def test_a_coordinator_that_nobody_reads_answers(tmp_path: Path) -> None:
    """More is said than the pipe holds and than may wait; what was not written is counted in a line."""
    with agents(tmp_path) as job:
        job.write_plan()
        process = job.coordinator()
        found = tmp_path / "endpoint.json"
        endpoint = codec.loads(Endpoint, eventually(lambda: found.read_text() if found.exists() else None))

        assert asyncio.run(_all_refused(endpoint))

        process.terminate()
        code, output = said(process)

    assert code == 143
    written = len(re.findall(r"rejected the report of agent=agent-\d+ host=h+: ", output))
    missed = [int(number) for number in re.findall(r"rallypoint: dropped (\d+) log lines because stderr was blocked", output)]
    assert missed
    assert written + sum(missed) == REFUSED
