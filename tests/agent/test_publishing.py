"""What a coordinator publishes where each write is a request to somebody, and where it may not write at all."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import pytest

from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.coordinator import publishing
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings
from rallypoint.wire.messages import AgentState, Assignment, Reply, WorkerReport
from rallypoint.wire.missing import Absence, Missing
from rallypoint.wire.pulse import Phase
from rallypoint.wire.status import JobState, Progress
from tests.agent.fakes import GatedSink, new_state, report
from tests.waiting import eventually_async

ONE = Settings(min_nodes=1, max_nodes=1, last_call=0.0, node_lease=1e6)

#: Longer than any test.
NEVER = 1e6


def missing(why: Absence) -> Missing:
    return Missing(node=0, why=why, since=5.0)


@contextlib.asynccontextmanager
async def serving(sink: GatedSink, progress_period: float = NEVER) -> AsyncIterator[Coordinator]:
    clock = monotone_clock()
    shell = Coordinator(new_state(ONE, now=clock()), sink=sink, clock=clock, progress_period=progress_period)
    await shell.publish_first()
    serve = asyncio.create_task(shell.serve())
    try:
        yield shell
    finally:
        shell.stop()
        await serve


async def tell(shell: Coordinator, state: AgentState = AgentState.WAITING, **more: object) -> Reply:
    return await shell.report(report(0, state, **more))


async def step(shell: Coordinator, number: int) -> None:
    worker = WorkerReport(local_rank=0, pid=1, step=number)
    await tell(shell, AgentState.RUNNING, round=1, workers=(worker,), hold=0.0, sequence=number + 1)


async def test_steps_wait_for_their_time_and_a_change_does_not() -> None:
    """Progress alone is not written before it is due; the next thing that happens is written at once, with the latest step."""
    sink = GatedSink()
    async with serving(sink) as shell:
        assert isinstance(await tell(shell), Assignment)
        await step(shell, 1)  # the first step of a round is an event of its own
        await eventually_async(lambda: sink.published[-1].progress.step == 1)
        written = len(sink.published)
        for number in range(2, 100):
            await step(shell, number)
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(sink.published) == written

        shell.note("test", "something happened")
        await eventually_async(lambda: len(sink.published) > written)

    assert (sink.published[written].progress.step, sink.published[written].events[-1].kind) == (99, "test")


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        pytest.param({"phases": {"step": 2}}, {"phases": {"evaluation": 2}}, True, id="a phase"),
        pytest.param({}, {"missing": (missing(Absence.SILENT),), "missing_count": 1}, True, id="overdue"),
        pytest.param({}, {"missing": (missing(Absence.LOST),), "missing_count": 1}, False, id="lost"),
        pytest.param({"progress": Progress(step=1)}, {"progress": Progress(step=2)}, True, id="a step"),
    ],
)
def test_what_is_written_at_once_and_what_when_it_is_due(before, after, same) -> None:
    """Each write is a request to somebody: what changes with every report waits for its time."""
    bare = rendezvous.status(new_state(ONE, now=0.0), 1.0)
    nobody = {"missing": (), "missing_count": 0}
    first, second = (publishing.gist(dataclasses.replace(bare, **{**nobody, **told})) for told in (before, after))

    assert (first == second) is same


async def test_the_phases_of_ranks_are_told_to_whoever_asks() -> None:
    """Of the round that runs, and as they are now."""
    sink = GatedSink()
    async with serving(sink) as coordinator:
        assert isinstance(await tell(coordinator), Assignment)
        for number, phase in enumerate((Phase.START_UP, Phase.CHECKPOINT)):
            worker = WorkerReport(local_rank=0, pid=1, phase=phase)
            await tell(coordinator, AgentState.RUNNING, round=1, workers=(worker,), hold=0.0, sequence=number + 1)
            assert coordinator.status().phases == {phase.value: 1}


async def test_steps_are_written_when_they_are_due() -> None:
    """Without anything else happening."""
    sink = GatedSink()
    async with serving(sink, progress_period=0.05) as shell:
        await tell(shell)
        await step(shell, 1)
        await step(shell, 7)
        assert await eventually_async(lambda: sink.published[-1].progress.step == 7)


async def test_an_answer_needs_a_durable_round_but_no_durable_step() -> None:
    """A place in a round is told only after its status was written; a report of steps is answered without any write."""
    sink = GatedSink()
    async with serving(sink) as shell:
        assert isinstance(await tell(shell), Assignment)
        assert sink.published[-1].state is JobState.RUNNING
        sink.gate.clear()
        await asyncio.wait_for(step(shell, 1), timeout=60)


async def test_what_no_other_coordinator_can_read_is_said() -> None:
    """In the status for whoever asks, and once in the story; and again when it is over."""
    sink = GatedSink()
    sink.trouble = "the status ConfigMap may not be written"
    async with serving(sink) as shell:
        assert shell.status().durable is False
        await eventually_async(lambda: len(sink.published) > 1)
        sink.trouble = "the status ConfigMap may not be written, still"
        shell.note("test", "something else")
        await eventually_async(lambda: sink.published[-1].events[-1].kind == "test")
        sink.trouble = ""
        shell.note("test", "one more")
        await eventually_async(lambda: sink.published[-1].events[-1].kind == "status-durable")

        assert shell.status().durable is True
    told = [(event.kind, event.detail) for event in sink.published[-1].events if event.kind.startswith("status-")]
    assert told == [
        ("status-undurable", "the status ConfigMap may not be written"),
        ("status-durable", "publishing the status again"),
    ]


async def test_silence_is_published_although_nobody_speaks() -> None:
    """Long before the lease is over and long before progress alone would be written; so is its end."""
    sink = GatedSink()
    async with serving(sink) as shell:
        assert isinstance(await tell(shell), Assignment)
        await step(shell, 1)
        await eventually_async(lambda: sink.published[-1].progress.step == 1)
        assert sink.published[-1].missing_count == 0

        await eventually_async(lambda: sink.published[-1].missing_count == 1)
        assert [one.why for one in sink.published[-1].missing] == [Absence.SILENT]

        await step(shell, 2)
        await eventually_async(lambda: sink.published[-1].missing_count == 0)
