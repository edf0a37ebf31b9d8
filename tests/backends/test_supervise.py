"""The one loop, in a world of memory with a clock of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import math

import pytest

from rallypoint.backends.contract import ActionError, BackendError, Changes
from rallypoint.backends.requests import request_deletion, request_suspension
from rallypoint.backends.supervise import supervise
from rallypoint.supervision.actions import CreateCoordinator, CreateNode, RemoveNode
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause, Incident, IncidentId, Rung
from rallypoint.wire.status import Outcome
from tests.backends.crashing import Crashed, Crashing
from tests.backends.driving import Inside, drive, submit
from tests.backends.fake import FakeBackend
from tests.backends.stage import FakeStage, running, verdict
from tests.waiting import eventually_async


@pytest.fixture
def place(tmp_path):
    return FakeStage(tmp_path)


def created(world):
    return [action for action in world.done if isinstance(action, (CreateNode, CreateCoordinator))]


async def test_a_job_that_ends_well(place):
    """Submitted, deployed, running, succeeded: each node is created once and nothing is left."""
    await submit(place, nodes=2)
    inside = Inside(place, Outcome.SUCCEEDED)

    record = await drive(place, inside)

    assert inside.phases == [Phase.RESUMING, Phase.RUNNING, Phase.SUCCEEDED]
    assert record == place.world.record("digits")
    assert (record.released, len(record.attempts), record.progress.step) == (True, 1, None)
    assert created(place.world) == [
        CreateCoordinator(attempt=1, term=1),
        CreateNode(attempt=1, node=0, incarnation=1),
        CreateNode(attempt=1, node=1, incarnation=1),
    ]
    assert place.world.alive("digits") == []


async def test_a_job_that_always_fails(place):
    """It is reset as often as its limit allows, then it has failed, with the reason of its last attempt."""
    await submit(place)
    inside = Inside(place, Outcome.FAILED)

    record = await drive(place, inside)

    cycle = [Phase.RESUMING, Phase.RUNNING, Phase.RESETTING]
    assert inside.phases == [*cycle, *cycle[:2], Phase.FAILED]
    assert (record.retries, len(record.attempts)) == (1, 2)
    assert record.verdict.message == "attempt 2: rank 3 on node 1 exited with code 9"
    assert [attempt.message for attempt in record.attempts] == [
        f"attempt {number}: rank 3 on node 1 exited with code 9" for number in (1, 2)
    ]
    assert place.world.alive("digits") == []


async def test_a_job_that_fails_once(place):
    """The second attempt may end well."""
    await submit(place)

    record = await drive(place, Inside(place, Outcome.FAILED, Outcome.SUCCEEDED))

    assert (record.phase, record.retries, len(record.attempts)) == (Phase.SUCCEEDED, 1, 2)


@pytest.mark.parametrize("phase", [pytest.param(phase, id=phase.value or "Empty") for phase in Phase])
async def test_a_job_may_be_deleted_in_every_phase(place, phase):
    """Whenever deletion is asked for, everything ends, the job is gone and the loop says so."""
    stored = await submit(place)
    place.world.deaf = phase in (Phase.RESETTING, Phase.TERMINATING)  # else they are over before anybody can ask
    ending = {Phase.SUCCEEDED: (Outcome.SUCCEEDED,), Phase.SUSPENDING: ()}.get(phase, (Outcome.FAILED,))
    inside = Inside(place, *ending)
    if phase is Phase.EMPTY:
        await request_deletion(place.backend, "digits")
    if phase is Phase.SUSPENDED:
        await request_suspension(place.backend, "digits")
    place.world.deaf = place.world.deaf or phase is Phase.SUSPENDING

    asked: list[asyncio.Future] = []
    wishes: list[asyncio.Future] = []

    def on_turn(snapshot):
        inside(snapshot)
        if phase is Phase.SUSPENDING and snapshot.record.phase is Phase.RUNNING:
            wishes.append(asyncio.ensure_future(request_suspension(place.backend, "digits")))
        if not asked and (snapshot.record.phase is phase or (phase is Phase.TERMINATING and place.world.alive("digits"))):
            asked.append(asyncio.ensure_future(request_deletion(place.backend, "digits")))

    record = await supervise(place.backend, "digits", holder="test", on_turn=on_turn, clock=place.world.clock)
    if record is not None:  # it was over in the turn in which deletion was asked for
        await asked[0]
        record = await supervise(place.backend, "digits", holder="test", clock=place.world.clock)

    assert record is None
    assert place.world.jobs == {}
    assert stored.record.uid


async def test_a_status_that_cannot_be_evaluated_keeps_no_job_from_being_deleted(place, caplog):
    """Read from a file, such a time is refused; this backend keeps its statuses in memory."""
    stored = await submit(place)
    id_ = IncidentId(attempt=1, round=1, node=0)
    one = Incident(id=id_, cause=Cause.PROCESS, rung=Rung.RESTART_WORKERS, reason="r" * 300, detected_at=math.nan)
    many = tuple(dataclasses.replace(one, id=dataclasses.replace(id_, round=n)) for n in range(1, 601))
    inside = Inside(place)
    asked: list[asyncio.Future] = []

    def on_turn(snapshot):
        inside(snapshot)
        if snapshot.record.phase is Phase.RUNNING and not asked:
            place.say(dataclasses.replace(running(snapshot.record), incidents=many))
            asked.append(asyncio.ensure_future(request_deletion(place.backend, "digits")))

    record = await supervise(place.backend, "digits", holder="test", on_turn=on_turn, clock=place.world.clock)

    assert (record, place.world.jobs) == (None, {})
    assert stored.record.uid
    told = [line for line in caplog.messages if "cannot process the job status" in line]
    assert told == [
        "job=digits: the supervisor cannot process the job status, and continues without the status; the traceback follows"
    ]


async def test_nodes_that_ignore_their_end_are_killed_after_the_grace(place):
    """Asked first; by force once the grace is over, and not before."""
    await submit(place)
    place.world.deaf = True
    inside = Inside(place)

    def on_turn(snapshot):
        inside(snapshot)
        if snapshot.status is not None and not asked:
            asked.append(asyncio.ensure_future(request_deletion(place.backend, "digits")))

    asked: list[asyncio.Future] = []
    begun = place.world.clock.now

    assert await supervise(place.backend, "digits", holder="test", on_turn=on_turn, clock=place.world.clock) is None
    removals = [action.force for action in place.world.done if isinstance(action, RemoveNode)]
    assert removals[0] is False
    assert removals[-1] is True
    assert place.world.clock.now - begun >= 600
    await asyncio.gather(*asked)


async def test_a_node_that_cannot_be_created_is_tried_again(place):
    """Until it can, within the grace."""
    await submit(place)
    place.world.failures = [ActionError("the machine is busy"), ActionError("the machine is busy")]

    record = await drive(place, Inside(place, Outcome.SUCCEEDED))

    assert (record.phase, record.retries) == (Phase.SUCCEEDED, 0)


async def test_a_node_that_can_never_be_created_ends_the_job(place):
    """The reason is in the verdict, and nothing is left running."""
    await submit(place)
    place.world.failures = [ActionError("no such interpreter", fatal=True)]

    record = await drive(place, Inside(place))

    assert record.phase is Phase.FAILED
    assert record.verdict.message == "no such interpreter"
    assert place.world.alive("digits") == []


async def test_supervising_a_job_that_is_not_there(place):
    """It was deleted, as far as anybody can tell."""
    assert await drive(place, Inside(place)) is None


async def test_a_finished_job_is_handed_back(place):
    """Supervising again changes nothing and ends at once."""
    await submit(place)
    record = await drive(place, Inside(place, Outcome.SUCCEEDED))

    again = await drive(place, Inside(place))

    assert again == record


async def test_a_change_by_somebody_else_is_kept(place):
    """The owner changes between a load and a save: the loop takes the new record and decides again."""
    await submit(place)
    inside = Inside(place, Outcome.SUCCEEDED)

    class Meddled(FakeBackend):
        meddled = False

        async def observe(self, record):
            if record.phase is Phase.RUNNING and not self.meddled:
                self.meddled = True
                stored = await self.load(record.name)
                assert stored is not None
                await FakeBackend.save(self, dataclasses.replace(stored.record, owner="bob"), version=stored.version)
            return await super().observe(record)

    record = await drive(place, inside, Meddled(place.world))

    assert (record.phase, record.owner) == (Phase.SUCCEEDED, "bob")


async def test_a_failure_of_the_backend_is_logged_and_tried_again(place, caplog):
    """The job does not notice."""
    await submit(place)

    class Failing(FakeBackend):
        failures = 1

        async def observe(self, record):
            if self.failures:
                self.failures -= 1
                raise BackendError("the disk hiccups")
            return await super().observe(record)

    record = await drive(place, Inside(place, Outcome.SUCCEEDED), Failing(place.world))

    assert record.phase is Phase.SUCCEEDED
    assert "job=digits: the disk hiccups; retrying in 0.5 s" in caplog.text


async def test_each_decision_is_logged_once(place, caplog):
    """One line per change of phase and per action, however many turns it takes."""
    caplog.set_level(logging.INFO, "rallypoint.backends.supervise")
    await submit(place)

    await drive(place, Inside(place, Outcome.SUCCEEDED))

    assert [message for message in caplog.messages if ": create " in message] == [
        "job=digits: create coordinator attempt=1 term=1",
        "job=digits: create node attempt=1 node=0 incarnation=1",
    ]
    assert [message for message in caplog.messages if "Running" in message] == [
        "job=digits phase=Running: nodes created: 1 of 1"
    ]
    assert len(caplog.messages) == len(set(caplog.messages))


async def test_a_quiet_job_is_not_saved_each_turn(place):
    """What only moves the job's clock is saved every ten seconds."""
    await submit(place)
    inside = Inside(place)
    saves = []

    class Counting(FakeBackend):
        async def save(self, record, *, version, blueprint=None):
            saves.append(record.last_now)
            return await super().save(record, version=version, blueprint=blueprint)

    begun = place.world.clock.now

    def on_turn(snapshot):
        inside(snapshot)
        if snapshot.record.phase is Phase.RUNNING and place.world.clock.now - begun >= 120:
            place.say(verdict(snapshot.record, Outcome.SUCCEEDED))

    await supervise(Counting(place.world), "digits", holder="test", on_turn=on_turn, clock=place.world.clock)

    quiet = [now for now in saves if begun + 5 < now < begun + 119]
    assert 10 <= len(quiet) <= 12


async def test_the_second_supervisor_looks_on_and_takes_over(place):
    """Only the holder acts; when its process ends the other drives the job to its end."""
    await submit(place)
    first_inside, second_turns = Inside(place), []
    first = asyncio.ensure_future(drive(place, first_inside))
    await eventually_async(lambda: place.world.jobs["digits"].status)
    before = list(place.world.done)
    inside = Inside(place, Outcome.SUCCEEDED)

    def on_turn(snapshot):
        second_turns.append(snapshot.supervising)
        if snapshot.supervising:
            inside(snapshot)
        elif len(second_turns) == 3:
            first.cancel()

    record = await supervise(FakeBackend(place.world), "digits", holder="second", on_turn=on_turn, clock=place.world.clock)

    with pytest.raises(asyncio.CancelledError):
        await first
    assert second_turns[:3] == [False, False, False]
    assert second_turns[-1] is True
    assert record is not None
    assert record.phase is Phase.SUCCEEDED
    assert [action for action in created(place.world) if action not in before] == []


async def test_one_who_only_looks_on_ends_with_the_job(place):
    """The final record is the same for both but for its clock: the second may get hold of the ended job, and take a turn."""
    await submit(place)

    records = await asyncio.gather(drive(place, Inside(place, Outcome.SUCCEEDED)), drive(place, None, FakeBackend(place.world)))

    holder, onlooker = (dataclasses.replace(record, clock=0.0, last_now=0.0) for record in records)
    assert holder == onlooker


@pytest.mark.parametrize(
    "outcomes",
    [
        pytest.param((Outcome.SUCCEEDED,), id="ends well"),
        pytest.param((Outcome.FAILED, Outcome.SUCCEEDED), id="fails once"),
        pytest.param((Outcome.FAILED,), id="fails always"),
    ],
)
async def test_a_supervisor_may_be_killed_at_every_point(tmp_path, outcomes):
    """Before and after every save and every action: its successor comes to the same end, and nothing was started twice."""
    calm = FakeStage(tmp_path)
    await submit(calm, nodes=2)
    expected = await drive(calm, Inside(calm, *outcomes))

    for steps in range(200):
        place = FakeStage(tmp_path)
        await submit(place, nodes=2)
        inside, crashed = Inside(place, *outcomes), False
        try:
            record = await drive(place, inside, Crashing(place.backend, steps))
        except Crashed:
            crashed = True
            record = await drive(place, inside)
        assert (record.phase, record.verdict, record.retries) == (expected.phase, expected.verdict, expected.retries)
        assert [dataclasses.replace(attempt, started_at=0, ended_at=0) for attempt in record.attempts] == [
            dataclasses.replace(attempt, started_at=0, ended_at=0) for attempt in expected.attempts
        ]
        assert place.world.jobs["digits"].nodes.keys() == calm.world.jobs["digits"].nodes.keys()
        assert place.world.alive("digits") == []
        if not crashed:
            return
    pytest.fail("it never came to its end")


async def test_a_node_that_turns_up_at_the_last_moment_is_ended(place):
    """After the last record is saved the loop looks once more: a late start of a stopped supervisor is not left behind."""
    await submit(place)

    class Late(FakeBackend):
        late = False

        async def save(self, record, *, version, blueprint=None):
            stored = await super().save(record, version=version, blueprint=blueprint)
            if record.released and not self.late:
                self.late = True
                await self.act(record, stored.plan, CreateNode(attempt=1, node=7, incarnation=1))
            return stored

    backend = Late(place.world)
    record = await drive(place, Inside(place, Outcome.SUCCEEDED), backend)

    assert backend.late
    assert record.released
    assert place.world.alive("digits") == []


class Flaky(FakeBackend):
    """Each named call fails once as a system call does."""

    def __init__(self, world, *calls):
        super().__init__(world)
        self.left = list(calls)

    def stumble(self, call):
        if call in self.left:
            self.left.remove(call)
            raise OSError(errno.EMFILE, "Too many open files")

    async def load(self, name):
        self.stumble("load")
        return await super().load(name)

    @contextlib.asynccontextmanager
    async def changes(self, name):
        self.stumble("changes")
        async with super().changes(name) as inner:
            yield FlakyChanges(self, inner)

    @contextlib.asynccontextmanager
    async def hold(self, name, *, holder):
        self.stumble("hold")
        async with super().hold(name, holder=holder):
            yield


class FlakyChanges(Changes):
    def __init__(self, backend, inner):
        self.backend, self.inner = backend, inner

    async def wait(self, timeout):
        self.backend.stumble("wait")
        await self.inner.wait(timeout)


@pytest.mark.parametrize("call", ["load", "changes", "hold", "wait"])
async def test_one_failed_system_call_does_not_end_supervision(place, caplog, call):
    """Whichever call of the backend it hits, it is logged and tried again."""
    await submit(place)
    backend = Flaky(place.world, call)

    record = await drive(place, Inside(place, Outcome.SUCCEEDED), backend)

    assert (record.phase, backend.left) == (Phase.SUCCEEDED, [])
    assert "Too many open files; retrying in 0.5 s" in caplog.text


async def test_one_failed_system_call_does_not_end_looking_on(place):
    """Neither where the job is read nor where its changes are waited for."""
    await submit(place)
    onlooker = Flaky(place.world, "wait")
    turns = []

    async with place.backend.hold("digits", holder="first"):
        looking = asyncio.ensure_future(drive(place, lambda snapshot: turns.append(snapshot.supervising), onlooker))
        await eventually_async(lambda: len(turns) > 2)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking

    assert onlooker.left == []


async def test_an_error_of_the_one_who_is_told_is_not_the_backends(place):
    """A closed pipe of the terminal ends the loop; it would never open again."""
    await submit(place)

    def on_turn(_):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        await drive(place, on_turn)


@pytest.mark.parametrize("let_go", [pytest.param(False, id="looking on"), pytest.param(True, id="taking over")])
async def test_another_job_of_the_same_name_is_not_followed(place, let_go):
    """Deleted and submitted anew between two turns: the job that was followed is gone."""
    first = await submit(place)
    holding = contextlib.AsyncExitStack()
    await holding.enter_async_context(place.backend.hold("digits", holder="first"))
    uids = []

    def on_turn(snapshot):
        uids.append(snapshot.record.uid)
        if len(uids) > 1:
            return
        place.world.jobs.clear()
        anew.append(asyncio.ensure_future(submit(place)))
        if let_go:
            anew.append(asyncio.ensure_future(holding.aclose()))

    anew: list[asyncio.Future] = []

    assert await asyncio.wait_for(drive(place, on_turn), timeout=100) is None
    await asyncio.gather(*anew)
    await holding.aclose()
    assert uids == [first.record.uid]
    assert place.world.record("digits").uid != first.record.uid
    assert created(place.world) == []
