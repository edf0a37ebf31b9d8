"""What people and tasks ask for, in a world of memory."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from rallypoint.backends.contract import (
    BackendError,
    ConflictError,
    JobExistsError,
    JobFinishedError,
    JobNotFoundError,
    SubmitError,
)
from rallypoint.backends.requests import (
    How,
    collect,
    delete,
    request_deletion,
    request_resumption,
    request_suspension,
    submit_or_adopt,
)
from rallypoint.backends.supervise import supervise
from rallypoint.supervision.record import Phase
from rallypoint.wire.status import Outcome
from tests.backends.fake import FakeBackend
from tests.backends.stage import FakeStage, verdict


@pytest.fixture
def place(tmp_path):
    return FakeStage(tmp_path)


async def ask(place, owner="ann", *, claimant="", fresh=False, kept=False, **fields):
    blueprint = dataclasses.replace(place.backend.plan(place.job(**fields)), claimant=claimant)
    return await submit_or_adopt(place.backend, blueprint, owner=owner, fresh=fresh, kept=kept, clock=place.world.clock)


async def finish(place, outcome=Outcome.SUCCEEDED):
    def on_turn(snapshot):
        if snapshot.record.phase is Phase.RUNNING:
            place.say(verdict(snapshot.record, outcome))

    return await supervise(place.backend, "digits", holder="test", on_turn=on_turn, clock=place.world.clock)


async def test_a_new_name_is_submitted(place):
    """There was no such job."""
    adoption = await ask(place)

    assert adoption.how is How.SUBMITTED
    assert adoption.stored.record.owner == "ann"


async def test_a_running_job_is_adopted(place):
    """It goes on for the new owner; its attempts and its history are kept."""
    first = (await ask(place)).stored

    adoption = await ask(place, owner="bob")

    assert adoption.how is How.ADOPTED
    assert (adoption.stored.record.uid, adoption.stored.record.owner) == (first.record.uid, "bob")
    assert adoption.stored.record.history[-1].detail == "ann transferred the job to bob"


async def test_asking_twice_is_asking_once(place):
    """The owner of a running job finds it as it is."""
    first = (await ask(place)).stored

    assert (await ask(place)).stored == first


async def test_a_running_job_of_another_spec_is_in_the_way(place):
    """The error names both specs and what to do, and the job is left as it is."""
    first = (await ask(place)).stored
    other = place.backend.plan(place.job(args=["--other"])).plan.digest

    with pytest.raises(JobExistsError, match=f"{first.record.digest}; this one is {other}.*rallypoint delete digits"):
        await ask(place, owner="bob", args=["--other"])
    assert await place.backend.load("digits") == first


async def test_a_result_that_nobody_took_is_found(place):
    """The job ended while its owner was away."""
    await ask(place)
    record = await finish(place)

    adoption = await ask(place, owner="bob")

    assert adoption.how is How.FOUND_FINISHED
    assert adoption.stored.record.verdict == record.verdict


async def test_after_its_result_was_taken_it_begins_anew(place):
    """A new attempt of the same record, with a fresh budget and all its memory."""
    await ask(place)
    await finish(place, Outcome.FAILED)
    await collect(place.backend, "digits", owner="ann")

    adoption = await ask(place, owner="bob")
    record = await finish(place)

    assert adoption.how is How.RESTARTED
    assert (adoption.stored.record.phase, adoption.stored.record.retries) == (Phase.EMPTY, 0)
    assert [attempt.number for attempt in record.attempts] == [1, 2, 3]
    assert (record.phase, record.owner, record.collected_by) == (Phase.SUCCEEDED, "bob", "")


async def test_a_finished_job_begins_anew_with_another_spec(place):
    """Nobody will ask for the old one's result again; the new plan is what runs."""
    await ask(place)
    await finish(place)

    adoption = await ask(place, args=["--other"])

    assert adoption.how is How.RESTARTED
    assert adoption.stored.plan.args == ("--other",)
    assert adoption.stored.record.digest == adoption.stored.plan.digest


async def test_a_restart_that_cannot_run_changes_nothing(place):
    """What is missing is said, and the old result is still there."""
    await ask(place)
    await finish(place)
    before = await place.backend.load("digits")
    place.break_submissions()

    with pytest.raises(SubmitError):
        await ask(place, args=["--other"])
    assert await place.backend.load("digits") == before


async def test_a_job_that_is_being_deleted_is_submitted_anew(place):
    """Its end is seen through first, so that two of them never run at once."""
    first = (await ask(place)).stored
    await request_deletion(place.backend, "digits")

    adoption = await ask(place)

    assert adoption.how is How.SUBMITTED
    assert adoption.stored.record.uid != first.record.uid


async def test_a_job_that_is_not_cleaned_up_yet_is_cleaned_up_before_it_begins_anew(place):
    """No node of the old attempt is left when the new one begins."""
    await ask(place)
    stopped = []

    def stop(snapshot):
        if snapshot.record.phase is Phase.RUNNING:
            place.world.deaf = True
            place.say(verdict(snapshot.record, Outcome.SUCCEEDED))
        if snapshot.record.phase is Phase.SUCCEEDED:
            stopped.append(snapshot)
            driving.cancel()

    driving = asyncio.ensure_future(supervise(place.backend, "digits", holder="first", on_turn=stop, clock=place.world.clock))
    await asyncio.wait([driving])
    assert place.world.alive("digits")

    adoption = await ask(place, args=["--other"])

    assert stopped
    assert adoption.how is How.RESTARTED
    assert place.world.alive("digits") == []


async def test_a_conflict_is_no_error(place):
    """Somebody changes the record at the same moment: the request is made again on the new one."""
    await ask(place)

    class Contested(FakeBackend):
        conflicts = 2

        async def save(self, record, *, version, blueprint=None):
            if self.conflicts:
                self.conflicts -= 1
                raise ConflictError("somebody was faster")
            return await super().save(record, version=version, blueprint=blueprint)

    place.backend = Contested(place.world)

    assert (await ask(place, owner="bob")).how is How.ADOPTED
    place.backend.conflicts = 2
    assert (await collect(place.backend, "digits", owner="bob")).collected_by == "bob"


async def test_two_tasks_ask_at_once(place):
    """One submits, the other adopts."""

    class Slow(FakeBackend):
        async def load(self, name):
            stored = await super().load(name)
            await asyncio.sleep(0)
            return stored

    place.backend = Slow(place.world)
    adoptions = await asyncio.gather(ask(place), ask(place, owner="bob"))

    assert sorted(adoption.how.value for adoption in adoptions) == ["adopted", "submitted"]


@pytest.mark.parametrize(
    ("owner", "asked"),
    [pytest.param(None, True, id="anybody"), pytest.param("ann", True, id="owner"), pytest.param("bob", False, id="not owner")],
)
async def test_deletion_is_for_the_owner_where_one_is_named(place, owner, asked):
    """A task that lost its job to another one cannot delete it."""
    await ask(place)

    assert await request_deletion(place.backend, "digits", owner=owner) is asked
    assert place.world.record("digits").deletion is asked


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(lambda backend: collect(backend, "nobody", owner="ann"), id="collect"),
        pytest.param(lambda backend: request_deletion(backend, "nobody"), id="request deletion"),
        pytest.param(lambda backend: delete(backend, "nobody", holder="ann"), id="delete"),
    ],
)
async def test_a_job_that_is_not_there(place, request_):
    """Each request names it."""
    with pytest.raises(JobNotFoundError, match="nobody"):
        await request_(place.backend)


async def test_delete_returns_when_nothing_is_left(place):
    """It drives the deletion itself when nobody else does."""
    await ask(place)

    await delete(place.backend, "digits", holder="ann")

    assert place.world.jobs == {}


async def test_delete_waits_for_another_supervisor(place):
    """The one that holds the job does the work."""
    await ask(place)
    driving = asyncio.ensure_future(supervise(place.backend, "digits", holder="first", clock=place.world.clock))
    await asyncio.sleep(0)

    await delete(FakeBackend(place.world), "digits", holder="second")

    assert await driving is None
    assert place.world.jobs == {}


async def test_delete_gives_up_waiting_in_time(place):
    """The error says how long it took; the deletion stays asked for."""
    await ask(place)
    stored = await place.backend.load("digits")
    await place.backend.save(dataclasses.replace(stored.record, deletion=True), version=stored.version)

    async with place.backend.hold("digits", holder="somebody who is stuck"):
        with pytest.raises(BackendError, match=r"digits still exists after 0\.05 s"):
            await delete(FakeBackend(place.world), "digits", holder="ann", timeout=0.05)
    assert place.world.record("digits").deletion


async def test_a_result_is_taken_only_from_an_own_job_where_that_is_asked(place):
    """A task that was overtaken leaves its successor's result; a person may take anybody's."""
    await ask(place)
    await finish(place)

    left = await collect(place.backend, "digits", owner="bob", if_owned=True)

    assert (left.owner, left.collected_by) == ("ann", "")
    assert (await collect(place.backend, "digits", owner="ann", if_owned=True)).collected_by == "ann"
    assert (await collect(place.backend, "digits", owner="bob")).collected_by == "bob"


async def test_delete_leaves_the_job_of_somebody_else(place):
    """With an owner it says whether the job was theirs to delete."""
    await ask(place)

    assert not await delete(place.backend, "digits", holder="bob", owner="bob")
    assert not place.world.record("digits").deletion
    assert await delete(place.backend, "digits", holder="ann", owner="ann")


async def test_a_wish_to_suspend_is_kept_until_it_is_taken_back(place):
    """Asked twice it is asked once; each answer says whether it is so now."""
    await ask(place)

    assert await request_suspension(place.backend, "digits")
    once = place.world.jobs["digits"].version
    assert await request_suspension(place.backend, "digits")
    assert (place.world.record("digits").suspend, place.world.jobs["digits"].version) == (True, once)
    assert await request_resumption(place.backend, "digits")
    assert await request_resumption(place.backend, "digits")
    assert not place.world.record("digits").suspend


async def test_the_job_of_somebody_else_is_not_suspended(place):
    """With an owner it says that nothing was done."""
    await ask(place)

    assert not await request_suspension(place.backend, "digits", owner="bob")
    assert not place.world.record("digits").suspend


@pytest.mark.parametrize(
    "request_", [pytest.param(request_suspension, id="suspend"), pytest.param(request_resumption, id="resume")]
)
async def test_only_a_job_that_goes_on_can_be_suspended_or_resumed(place, request_):
    """One that is absent, over or being deleted is an error that says so."""
    with pytest.raises(JobNotFoundError, match="job 'digits' not found"):
        await request_(place.backend, "digits")
    await ask(place)
    await finish(place)
    with pytest.raises(JobFinishedError, match=r"the job has ended \(Succeeded\)"):
        await request_(place.backend, "digits")
    await request_deletion(place.backend, "digits")
    with pytest.raises(JobFinishedError, match="the job is being deleted"):
        await request_(place.backend, "digits")


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("over", [False, True])
async def test_the_same_job_of_another_claimant_is_not_adopted(place, over, fresh):
    """An equal name and spec is a coincidence, or a mistake: its owner is told of, and neither job nor result changes hands."""
    await ask(place, owner="try-1", claimant="task train of DAG a, run 1")
    if over:
        await finish(place)

    with pytest.raises(JobExistsError) as caught:
        await ask(place, owner="try-2", claimant="task train of DAG b, run 1", fresh=fresh)

    assert "job digits belongs to task train of DAG a, run 1, which has not read the job's result yet" in str(caught.value)
    assert "same specification); this is task train of DAG b, run 1. Choose another name" in str(caught.value)
    stored = await place.backend.load("digits")
    assert (stored.record.owner, stored.record.claimant, stored.record.deletion) == (
        "try-1",
        "task train of DAG a, run 1",
        False,
    )


async def test_another_try_of_the_same_claimant_is_no_stranger(place):
    """So is anybody where one of the two is not known, and what is known then is kept."""
    await ask(place, owner="try-1")
    assert (await ask(place, owner="try-2", claimant="task a")).stored.record.claimant == "task a"
    assert (await ask(place, owner="try-3", claimant="task a")).how is How.ADOPTED
    assert (await ask(place, owner="try-4")).stored.record.claimant == "task a"


async def test_a_job_whose_result_was_taken_begins_anew_for_another_claimant(place):
    """It trains again; a result that the first has taken is not handed over, even where it might be for a try of the first."""
    await ask(place, owner="try-1", claimant="task a")
    await finish(place)
    await collect(place.backend, "digits", owner="try-1")

    adoption = await ask(place, owner="try-2", claimant="task b", kept=True)

    assert (adoption.how, adoption.stored.record.claimant) == (How.RESTARTED, "task b")
