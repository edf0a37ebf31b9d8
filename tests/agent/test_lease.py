"""For how long nobody has supervised the job, and what the coordinator then does."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.agent.coordinator.orphan import FileHeartbeat, keep_watch
from rallypoint.agent.errors import LostContactError, OrphanedError
from rallypoint.agent.transport.client import CoordinatorClient
from rallypoint.agent.transport.lease import Lease, in_words
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import Continue
from rallypoint.wire.plan import Entry, OrphanPolicy, Plan
from rallypoint.wire.status import Verdict
from tests.agent.fakes import ListedEndpoints, ScriptedExchange, report
from tests.waiting import eventually_async

HOUR = 3600.0


def after(lease: Lease, *looks: tuple[float, str | None]) -> Lease:
    for now, mark in looks:
        lease = lease.looked(mark, now)
    return lease


def every(seconds: float, until: float, mark: str | None) -> list[tuple[float, str | None]]:
    return [(seconds * n, mark) for n in range(1, int(until / seconds) + 1)]


# --- The lease -------------------------------------------------------------------------------------------------------------


def test_a_heart_that_beats_keeps_the_lease() -> None:
    """Each beat is another mark, and none of them is old."""
    lease = after(Lease(seconds=HOUR, at=0.0), *[(5.0 * n, f"beat {n}") for n in range(2000)])

    assert (lease.quiet, lease.expired) == (0.0, False)


def test_an_outage_shorter_than_the_lease_costs_nothing() -> None:
    """One beat after 59 minutes, and the whole hour begins anew."""
    silent = after(Lease(seconds=HOUR, at=0.0), *every(5.0, HOUR - 5, "the last beat"))
    back = silent.looked("a new beat", HOUR)

    assert not silent.expired
    assert (back.quiet, back.expired) == (0.0, False)


@pytest.mark.parametrize(
    "mark", [pytest.param("the last beat", id="it stands still"), pytest.param(None, id="there is none to be read")]
)
def test_a_lease_is_over_after_its_seconds(mark: str | None) -> None:
    """At the very second, and not before."""
    begun = after(Lease(seconds=HOUR, at=-5.0), (0.0, "the last beat"))

    assert not after(begun, *every(5.0, HOUR - 5, mark)).expired
    assert after(begun, *every(5.0, HOUR, mark)).expired


def test_a_mark_that_could_not_be_read_for_once_is_no_sign_of_life() -> None:
    """The same one again after that says nothing new."""
    lease = after(Lease(seconds=HOUR, at=0.0), (0.0, "beat"), (5.0, None), (10.0, "beat"))

    assert lease.quiet == 10.0


def test_a_machine_that_slept_does_not_wake_to_an_orphan() -> None:
    """Of a night between two looks half a minute counts."""
    lease = after(Lease(seconds=HOUR, at=0.0), (5.0, "beat"), (8 * HOUR, "beat"))

    assert lease.quiet == 30.0


@given(
    seconds=st.floats(min_value=0.5, max_value=1e5),
    gaps=st.lists(st.tuples(st.floats(min_value=-1e6, max_value=1e6), st.sampled_from([None, "a", "b"])), max_size=30),
)
def test_no_single_look_ends_a_lease(seconds: float, gaps: list[tuple[float, str | None]]) -> None:
    """Whatever the clock does, what is counted never goes back, and grows by half of the lease or 30 s at the most."""
    lease, now = Lease(seconds=seconds, at=0.0), 0.0
    for gap, mark in gaps:
        now += gap
        looked = lease.looked(mark, now)
        if mark is not None and mark != lease.mark:
            assert looked.quiet == 0.0
        else:
            assert 0.0 <= looked.quiet - lease.quiet <= min(30.0, seconds / 2) * 1.000001
        lease = looked


@pytest.mark.parametrize(
    ("seconds", "words"),
    [pytest.param(3600.0, "1 h", id="hour"), pytest.param(5400.0, "90 min", id="minutes"), pytest.param(2.5, "2.5 s", id="s")],
)
def test_a_length_of_time_is_told_in_its_largest_whole_unit(seconds: float, words: str) -> None:
    """As people write it into a plan."""
    assert in_words(seconds) == words


# --- The heartbeat on disk -------------------------------------------------------------------------------------------------


async def test_the_heartbeat_of_the_records_holder_is_read(tmp_path: Path) -> None:
    """Replaced, touched, or of another holder: each is another mark; none without record, holder or file."""
    record, heart = tmp_path / "record.json", tmp_path / "a.json"
    source = FileHeartbeat(record)
    marks = [await source.read()]
    record.write_text("{}")
    marks.append(await source.read())
    record.write_text(json.dumps({"holder": {"id": "a", "heartbeat": str(heart)}}))
    marks.append(await source.read())
    assert marks == [None, None, None]

    heart.write_text('{"counter": 1}')
    first = await source.read()
    assert await source.read() == first
    heart.write_text('{"counter": 2}')
    second = await source.read()
    os.utime(heart, ns=(1, 1))
    third = await source.read()
    heart.rename(tmp_path / "b.json")
    record.write_text(json.dumps({"holder": {"id": "b", "heartbeat": str(tmp_path / "b.json")}}))
    fourth = await source.read()

    assert None not in (first, second, third, fourth)
    assert len({first, second, third, fourth}) == 4


@pytest.mark.parametrize("text", ["", "[]", '{"holder": 7}', '{"holder": {"heartbeat": ""}}', '{"holder": null}'])
async def test_a_record_that_names_no_heartbeat_is_no_sign_of_life(tmp_path: Path, text: str) -> None:
    """Torn, of another kind, or of a job that nobody has supervised yet."""
    (tmp_path / "record.json").write_text(text)

    assert await FileHeartbeat(tmp_path / "record.json").read() is None


# --- The coordinator's policy ----------------------------------------------------------------------------------------------


class Heart:
    """A heart that beats while `alive`; each look at it takes a hundredth of a second on a clock of its own."""

    def __init__(self) -> None:
        self.now, self.alive, self.beats = 0.0, True, 0

    def clock(self) -> float:
        return self.now

    async def read(self) -> str | None:
        self.now += 0.01
        self.beats += self.alive
        return f"beat {self.beats}"


class Told:
    """A job that writes down what is done to it."""

    def __init__(self) -> None:
        self.quiet: list[float] = []
        self.lines: list[tuple[str, str]] = []
        self.verdicts: list[Verdict] = []

    def supervised(self, quiet: float) -> None:
        self.quiet.append(quiet)

    def note(self, kind: str, detail: str) -> None:
        self.lines.append((kind, detail))

    def conclude(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)


def plan(policy: OrphanPolicy) -> Plan:
    return Plan(
        name="digits",
        role="default",
        min_nodes=1,
        max_nodes=1,
        entry=Entry.SCRIPT,
        entrypoint="train.py",
        lease=0.05,
        orphan_policy=policy,
    )


async def test_an_orphan_that_may_go_on_says_so_once() -> None:
    """One line when its lease is over, one when a supervisor is back, and no verdict."""
    heart, job = Heart(), Told()
    watching = asyncio.create_task(keep_watch(job, heart, plan(OrphanPolicy.CONTINUE), heart.clock))
    await eventually_async(lambda: heart.beats > 10)
    assert (job.lines, set(job.quiet)) == ([], {0.0})

    heart.alive = False
    await eventually_async(lambda: job.quiet[-1] > 0.2)
    assert job.lines == [("orphaned", "no supervisor heartbeat for 0.05 s; the job continues (orphan policy: continue)")]
    heart.alive = True
    await eventually_async(lambda: len(job.lines) == 2)
    watching.cancel()
    await asyncio.wait([watching])

    assert job.lines[1] == ("supervised", "the job's supervisor sends heartbeats again")
    assert job.verdicts == []


async def test_an_orphan_that_must_stop_has_its_verdict() -> None:
    """Failed, Orphaned, with the lease in words; nothing is watched after that."""
    heart, job = Heart(), Told()
    heart.alive = False

    await asyncio.wait_for(keep_watch(job, heart, plan(OrphanPolicy.STOP), heart.clock), timeout=200)

    (verdict,) = job.verdicts
    assert (verdict.outcome.value, verdict.reason) == ("failed", "Orphaned")
    assert verdict.message == (
        "no supervisor heartbeat for 0.05 s (fault_tolerance.lease); stopping the job (orphan policy: stop)"
    )
    assert job.lines == []


# --- The agents' own -------------------------------------------------------------------------------------------------------


def asking(exchange: ScriptedExchange, *, lease: float | None, fence_timeout: float = 60.0) -> CoordinatorClient:
    endpoints = ListedEndpoints(Endpoint(attempt=1, term=1, host="here", port=1))
    return CoordinatorClient(source=endpoints, exchange=exchange, fence_timeout=fence_timeout, attempt=1, lease=lease)


def nothing_new(unsupervised: float | None) -> Continue:
    return Continue(fence=Fence(attempt=1, term=1), unsupervised=unsupervised)


async def test_an_agent_counts_on_when_the_coordinator_is_gone() -> None:
    """From what the coordinator told last; long before contact counts as lost."""
    exchange = ScriptedExchange(here=nothing_new(3599.9))
    client = asking(exchange, lease=3600.0)
    assert await client.ask(report()) == nothing_new(3599.9)
    exchange.answers.clear()

    with pytest.raises(OrphanedError, match="no supervisor heartbeat for 1 h and the coordinator does not answer"):
        await asyncio.wait_for(client.ask(report(sequence=1)), timeout=200)


@pytest.mark.parametrize(
    ("lease", "told"),
    [
        pytest.param(None, 1e9, id="the job may go on"),
        pytest.param(3600.0, 0.0, id="it was supervised a moment ago"),
        pytest.param(3600.0, None, id="the coordinator looks for no supervisor"),
    ],
)
async def test_an_agent_that_only_lost_its_coordinator_keeps_its_fence_time_out(
    lease: float | None, told: float | None
) -> None:
    """As without any lease."""
    exchange = ScriptedExchange(here=nothing_new(told))
    client = asking(exchange, lease=lease, fence_timeout=0.3)
    await client.ask(report())
    exchange.answers.clear()

    with pytest.raises(LostContactError, match=r"the coordinator did not respond for 0\.3 s") as caught:
        await client.ask(report(sequence=1))
    assert not isinstance(caught.value, OrphanedError)


async def test_a_coordinator_that_answers_decides_by_itself() -> None:
    """However long it saw nobody: an agent that hears it ends nothing on its own."""
    client = asking(ScriptedExchange(here=nothing_new(1e9)), lease=3600.0)

    for sequence in range(3):
        assert await client.ask(report(sequence=sequence)) == nothing_new(1e9)
