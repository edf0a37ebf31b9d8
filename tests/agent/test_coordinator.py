"""The shell around the rendezvous: who is answered when, and what is durable before."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.coordinator.orphan import FileHeartbeat
from rallypoint.agent.coordinator.record import FileSize, RecordFile
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.coordinator.sink import FileSink, StatusSink, read_status
from rallypoint.agent.errors import StaleError
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings
from rallypoint.compat.mindcluster.node import read_reset
from rallypoint.wire import codec
from rallypoint.wire.messages import AgentState, Assignment, Continue, Refusal, Regroup, Reply, Stop, WorkerReport
from rallypoint.wire.status import JobState, JobStatus, Outcome, Verdict
from tests.agent.fakes import TWO, GatedSink, MemorySink, new_state, report
from tests.waiting import eventually_async

ONE = Settings(min_nodes=1, max_nodes=1, last_call=0.0, node_lease=1000.0)


@contextlib.asynccontextmanager
async def serving(settings: Settings = TWO, sink: StatusSink | None = None, term: int = 1) -> AsyncIterator[Coordinator]:
    clock = monotone_clock()
    shell = Coordinator(new_state(settings, now=clock(), term=term), sink=sink or MemorySink(), clock=clock)
    serve = asyncio.create_task(shell.serve())
    try:
        yield shell
    finally:
        shell.stop()
        await serve


def ask(shell: Coordinator, *args: object, **more: object) -> asyncio.Task[Reply]:
    return asyncio.create_task(shell.report(report(*args, **more)))  # type: ignore[arg-type]


async def test_a_parked_report_is_answered_when_the_world_is_complete() -> None:
    """The first agent waits for the second, and both are told at once."""
    async with serving() as shell:
        first = ask(shell, 0)
        await asyncio.sleep(0)
        assert not first.done()
        replies = await asyncio.gather(first, ask(shell, 1))

    assert [type(reply) for reply in replies] == [Assignment, Assignment]


async def test_whom_nobody_succeeds_publishes_nothing_and_answers_at_once() -> None:
    """Every state is durable as it is: from the first place to the verdict no status is made that nobody reads."""
    made = []

    class Counted(Coordinator):
        def status(self) -> JobStatus:
            made.append(1)
            return super().status()

    clock = monotone_clock()
    shell = Counted(new_state(ONE, now=clock()), sink=None, clock=clock)
    serve = asyncio.create_task(shell.serve())
    place = await ask(shell, 0)
    assert isinstance(place, Assignment)
    nothing = await ask(shell, 0, AgentState.RUNNING, round=1, fence=place.fence, sequence=1, hold=0.0)
    verdict = await ask(shell, 0, AgentState.DONE, round=1, fence=place.fence, sequence=2)
    await serve  # everybody was told

    assert [type(nothing), type(verdict)] == [Continue, Stop]
    assert not made


async def test_without_anything_to_say_the_hold_ends_the_wait() -> None:
    """Level-triggered: the agent simply asks again."""
    async with serving() as shell:
        assert isinstance(await ask(shell, 0, hold=0.0), Continue)
        assert isinstance(await ask(shell, 0, hold=0.05, sequence=1), Continue)


async def test_a_newer_report_lets_the_older_go() -> None:
    """What an agent said before interests nobody any more."""
    async with serving() as shell:
        older = ask(shell, 0, sequence=1)
        await asyncio.sleep(0)
        newer = ask(shell, 0, sequence=2, state=AgentState.LEAVING, hold=0.0)

        assert isinstance(await older, Continue)
        assert isinstance(await newer, Continue)


async def test_a_report_that_was_overtaken_changes_nothing() -> None:
    """Two connections keep no order between them: the higher number is true."""
    async with serving() as shell:
        await ask(shell, 0, sequence=5, hold=0.0)
        assert isinstance(await ask(shell, 0, AgentState.LEAVING, sequence=4), Continue)

        assert [member.agent for member in shell.status().waiting] == ["agent-0"]


async def test_nobody_is_told_what_is_not_durable() -> None:
    """A coordinator that dies now must have told nobody of a round that its successor cannot read."""
    sink = GatedSink(open_=False)
    async with serving(ONE, sink) as shell:
        asked = ask(shell, 0)
        await eventually_async(lambda: shell.status().state is JobState.RUNNING)
        assert not asked.done()
        sink.gate.set()

        assert isinstance(await asked, Assignment)
    assert sink.published[-1].fence.round == 1


async def test_a_sink_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full for a while costs time, not the job."""
    monkeypatch.setattr("rallypoint.agent.coordinator.publishing._SINK_RETRY", 0.01)
    sink = GatedSink()
    sink.broken = 2
    async with serving(ONE, sink) as shell:
        assert isinstance(await ask(shell, 0), Assignment)


async def test_while_nothing_can_be_made_durable_agents_stay_in_contact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk withholds what is new, not the answer: an agent that hears nothing would stop its workers."""
    monkeypatch.setattr("rallypoint.agent.coordinator.answering._DURABLE_WITHIN", 0.05)
    sink = GatedSink(open_=False)
    async with serving(ONE, sink) as shell:
        assert isinstance(await asyncio.wait_for(ask(shell, 0, hold=0.05), timeout=200), Continue)
        assert shell.status().state is JobState.RUNNING
        sink.gate.set()

        assert isinstance(await ask(shell, 0, sequence=1), Assignment)


async def test_progress_is_published_in_its_own_time() -> None:
    """A hundred reports of steps are not a hundred writes."""
    sink = GatedSink()
    async with serving(ONE, sink) as shell:
        await ask(shell, 0)
        await ask(shell, 0, AgentState.RUNNING, round=1, hold=0.0)
        for step in range(1, 101):
            worker = WorkerReport(local_rank=0, pid=1, step=step)
            await ask(shell, 0, AgentState.RUNNING, round=1, workers=(worker,), hold=0.0, sequence=step)
        written = len(sink.published)
        await eventually_async(lambda: sink.published[-1].progress.step == 100)

    assert written < 50  # a slow machine is slower than the period of publishing


async def test_a_connection_that_breaks_is_noticed() -> None:
    """The transport says so; that nobody waits for an answer any more says nothing."""
    async with serving(Settings(min_nodes=3, max_nodes=3, node_lease=1000.0)) as shell:
        gone, there = ask(shell, 0), ask(shell, 1)
        await eventually_async(lambda: len(shell.status().waiting) == 2)
        gone.cancel()
        there.cancel()
        shell.hung_up("agent-0")

        assert await eventually_async(lambda: [member.node for member in shell.status().waiting] == [1], timeout=10.0)


async def test_serving_ends_when_everybody_was_told() -> None:
    """The verdict is handed to all, then the coordinator goes."""
    clock = monotone_clock()
    shell = Coordinator(new_state(now=clock()), sink=MemorySink(), clock=clock)
    serve = asyncio.create_task(shell.serve())
    await asyncio.gather(ask(shell, 0), ask(shell, 1))
    first = ask(shell, 0, AgentState.DONE, round=1, sequence=1)
    await asyncio.sleep(0)
    replies = await asyncio.gather(first, ask(shell, 1, AgentState.DONE, round=1, sequence=1))
    await asyncio.wait_for(serve, timeout=100)

    assert [type(reply) for reply in replies] == [Stop, Stop]
    assert shell.status().verdict is not None
    late = await shell.report(report(0, AgentState.DONE, round=1, sequence=2))
    assert isinstance(late, Stop)


async def test_a_join_time_out_needs_nobody_to_speak() -> None:
    """The coordinator's own timer gives the verdict."""
    async with serving(Settings(min_nodes=2, max_nodes=2, join_timeout=0.05, node_lease=1000.0)) as shell:
        reply = await ask(shell, 0)

    assert isinstance(reply, Stop)
    assert (reply.verdict.outcome, reply.verdict.reason) == (Outcome.FAILED, "RendezvousTimeout")


async def test_a_stranger_is_refused() -> None:
    """A report for another job changes nothing."""
    async with serving() as shell:
        assert isinstance(await ask(shell, 0, job="other"), Refusal)
        assert shell.status().waiting == ()


async def test_a_failure_regroups_the_others_at_once() -> None:
    """The parked report of the healthy node is answered by the failure of the other."""
    async with serving() as shell:
        await asyncio.gather(ask(shell, 0), ask(shell, 1))
        healthy = ask(shell, 0, AgentState.RUNNING, round=1, sequence=1)
        await asyncio.sleep(0)
        await ask(shell, 1, AgentState.FAILED, round=1, sequence=1, reason="worker died")

        assert isinstance(await healthy, Regroup)


# --- The file --------------------------------------------------------------------------------------------------------------


async def test_a_file_holds_the_last_status(tmp_path: Path) -> None:
    """It is replaced as a whole, and reads back equal."""
    path = tmp_path / "status.json"
    async with serving(ONE, FileSink(path)) as shell:
        await ask(shell, 0)
        written = codec.loads(JobStatus, path.read_text())

    assert (written.fence.round, written.state) == (1, JobState.RUNNING)
    assert await asyncio.to_thread(os.listdir, tmp_path) == ["status.json"]


async def test_a_later_term_is_never_overwritten(tmp_path: Path) -> None:
    """A coordinator that was thought dead and wakes up finds out at its next write, and ends."""
    path, clock = tmp_path / "status.json", monotone_clock()
    old = Coordinator(new_state(ONE, now=clock(), term=1), sink=FileSink(path), clock=clock)
    await old.publish_first()
    new = Coordinator(new_state(ONE, now=clock(), term=2), sink=FileSink(path), clock=clock)
    await new.publish_first()
    asked = asyncio.create_task(old.report(report(0)))

    with pytest.raises(StaleError, match=r"term 2\) has published its status; this coordinator has attempt 1, term 1"):
        await old.serve()
    assert isinstance(await asked, Continue)
    assert codec.loads(JobStatus, path.read_text()).fence.term == 2


async def test_agents_are_told_for_how_long_nobody_supervised_the_job() -> None:
    """With each answer that holds nothing new; None until somebody looks."""
    async with serving() as shell:
        before = await ask(shell, 0, hold=0.0)
        shell.supervised(42.0)
        after = await ask(shell, 0, hold=0.0, sequence=1)

    assert [reply.unsupervised for reply in (before, after) if isinstance(reply, Continue)] == [None, 42.0]


async def test_a_verdict_from_outside_ends_the_attempt() -> None:
    """It is published before anybody hears it, every agent is told to stop, and the first one counts."""
    sink = MemorySink()
    orphaned = Verdict(outcome=Outcome.FAILED, reason="Orphaned", message="nobody supervised the job")
    async with serving(sink=sink) as shell:
        waiting = ask(shell, 0)
        await asyncio.sleep(0)
        shell.note("orphaned", "nobody is there")
        shell.conclude(orphaned)
        shell.conclude(dataclasses.replace(orphaned, reason="Another"))
        told = await waiting

    assert isinstance(told, Stop)
    assert told.verdict == orphaned
    assert sink.last is not None
    assert (sink.last.state, sink.last.verdict) == (JobState.FAILED, orphaned)
    assert ("orphaned", "nobody is there") in [(event.kind, event.detail) for event in sink.last.events]


@pytest.mark.may_block("it opens and locks a folder")
async def test_what_is_told_is_compared_and_replaced_in_one_step(tmp_path: Path) -> None:
    """While another coordinator writes, nobody else does: it is told that it does not work now, and tries again."""
    path = tmp_path / "status.json"
    status = rendezvous.status(new_state(ONE, now=0.0), 0.0)
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError):
        await FileSink(path).publish(status)
    os.close(other)
    await FileSink(path).publish(status)
    assert await asyncio.to_thread(read_status, path) == status


@pytest.mark.parametrize("heartbeat", ["/dev/zero", "pipe", 7, ["x"], "a\0b"])
async def test_a_heartbeat_that_is_no_file_stops_no_coordinator(tmp_path: Path, heartbeat: object) -> None:
    """A script can write any path into the record: a device has no end, and a pipe has no writer."""
    os.mkfifo(tmp_path / "pipe")
    record = tmp_path / "record.json"
    named = str(tmp_path / "pipe") if heartbeat == "pipe" else heartbeat
    record.write_text(json.dumps({"holder": {"heartbeat": named}}))

    assert await asyncio.wait_for(FileHeartbeat(record).read(), 5.0) is None


async def test_a_record_that_is_nested_without_end_ends_no_coordinator(tmp_path: Path) -> None:
    """A script of the same user may have written it; what was read last stays."""
    record = tmp_path / "record.json"
    record.write_text("[" * 100_000)

    assert await FileSize(RecordFile(record)).size() is None
    assert await RecordFile(record).requested("wish") is None
    assert await FileHeartbeat(record).read() is None
    with pytest.raises(codec.WireError, match="a JSON object"):
        read_reset("[" * 100_000)
