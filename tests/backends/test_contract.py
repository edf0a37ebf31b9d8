"""What `contract.py` promises, sentence by sentence, on every backend."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

import pytest

from rallypoint.backends.contract import ConflictError, HeldError, JobExistsError, JobNotFoundError, SubmitError
from rallypoint.supervision.actions import CreateCoordinator, CreateNode, Purge, RemoveCoordinator, RemoveNode
from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.supervision.record import Phase
from rallypoint.wire.role_plans import role_plans
from tests.backends.stage import running
from tests.waiting import eventually_async

COORDINATOR = CreateCoordinator(attempt=1, term=1)
NODE = CreateNode(attempt=1, node=0, incarnation=1)
END_COORDINATOR = RemoveCoordinator(attempt=1, term=1)
END_NODE = RemoveNode(attempt=1, node=0, incarnation=1)


async def submitted(stage, **fields):
    return await stage.backend.submit(stage.backend.plan(stage.job(**fields)), owner="ann")


async def deployed(stage):
    """A job whose attempt 1 may have nodes; its stored record."""
    stored = await submitted(stage)
    record = dataclasses.replace(stored.record, attempt=1, term=1, phase=Phase.RESUMING)
    return await stage.backend.save(record, version=stored.version)


async def act(stage, stored, *actions):
    for action in actions:
        await stage.backend.act(stored.record, stored.plan, action)


async def gone(stage, record):
    """Wait until nothing of the job holds resources."""

    async def nothing():
        return not (await stage.backend.observe(record)).present

    await eventually_async(nothing)


@contextlib.asynccontextmanager
async def both_running(stage, stored=None):
    stored = stored or await deployed(stage)
    await act(stage, stored, COORDINATOR, NODE)

    async def both_run():
        seen = await stage.backend.observe(stored.record)
        return all(n.state is NodeState.RUNNING for n in (*seen.coordinators, *seen.nodes))

    try:
        await eventually_async(both_run)
        yield stored
    finally:
        force = (RemoveNode(attempt=1, node=0, incarnation=1, force=True), RemoveCoordinator(attempt=1, term=1, force=True))
        await act(stage, stored, *force)
        await gone(stage, stored.record)


# --- plan, submit ----------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_would_be_created(stage):
    """The blueprint carries the job, its plan and at least one object, and nothing is there afterwards."""
    blueprint = stage.backend.plan(stage.job())

    assert blueprint.plan.name == blueprint.job.name == "digits"
    assert blueprint.objects


def test_a_plan_of_two_roles_holds_both(stage):
    """It is one plan, whose roles are named."""
    role = {"entrypoint": "train.py", "image": "example/train:1"}
    job = stage.job(roles={"one": role, "two": {**role, "launch": "simple"}})

    assert [role.name for role in role_plans(stage.backend.plan(job).plan)] == ["one", "two"]


async def test_a_submitted_job_is_there_for_everybody(stage):
    """Another process loads what this one submitted, and no process was started."""
    stored = await submitted(stage)

    assert await stage.another().load("digits") == stored
    assert stored.record.phase is Phase.EMPTY
    assert stored.record.owner == "ann"
    assert (await stage.backend.observe(stored.record)).nodes == ()


async def test_submitting_again_returns_what_is_there(stage):
    """Same name, spec and owner: the second call changes nothing."""
    first = await submitted(stage)

    assert await submitted(stage) == first


@pytest.mark.parametrize(
    ("fields", "owner"),
    [pytest.param({"args": ["--other"]}, "ann", id="another spec"), pytest.param({}, "bob", id="another owner")],
)
async def test_a_taken_name_is_refused(stage, fields, owner):
    """Another spec or owner under the same name is told who has it, and the job stays as it is."""
    stored = await submitted(stage)
    blueprint = stage.backend.plan(stage.job(**fields))

    with pytest.raises(JobExistsError, match="ann"):
        await stage.backend.submit(blueprint, owner=owner)
    assert await stage.backend.load("digits") == stored


async def test_two_submissions_at_once_make_one_job(stage):
    """Whoever is faster, both get the same job."""
    blueprint = stage.backend.plan(stage.job())

    first, second = await asyncio.gather(
        stage.backend.submit(blueprint, owner="ann"), stage.another().submit(blueprint, owner="ann")
    )

    assert first == second


async def test_a_refused_submission_leaves_nothing(stage):
    """When something is missing here no job appears, not even a part of one."""
    stage.break_submissions()

    with pytest.raises(SubmitError, match=stage.refusal):
        await submitted(stage)
    assert await stage.backend.names() == ()
    assert await stage.backend.load("digits") is None


# --- load, save, names -----------------------------------------------------------------------------------------------------


async def test_a_job_that_is_not_there_loads_as_none(stage):
    """Absence is an answer, not an error."""
    assert await stage.backend.load("nobody") is None
    assert await stage.backend.status("nobody") is None


async def test_a_saved_record_is_what_is_loaded(stage):
    """`save` returns what `load` returns from now on."""
    stored = await submitted(stage)

    saved = await stage.backend.save(stored.record.with_history("test", "a line"), version=stored.version)

    assert await stage.another().load("digits") == saved
    assert saved.record.history[-1].detail == "a line"


async def test_the_slower_of_two_savers_is_told(stage):
    """A record that was changed meanwhile is not overwritten."""
    stored = await submitted(stage)
    first = await stage.another().save(stored.record.with_history("test", "faster"), version=stored.version)

    with pytest.raises(ConflictError):
        await stage.backend.save(stored.record.with_history("test", "slower"), version=stored.version)
    assert await stage.backend.load("digits") == first


async def test_a_record_that_is_gone_cannot_be_saved(stage):
    """A deleted job does not come back by a late save."""
    stored = await submitted(stage)
    await act(stage, stored, Purge())

    with pytest.raises(ConflictError):
        await stage.backend.save(stored.record, version=stored.version)
    assert await stage.backend.names() == ()


async def test_a_save_with_a_blueprint_replaces_the_plan(stage):
    """The new spec is what everybody loads from now on."""
    stored = await submitted(stage)
    blueprint = stage.backend.plan(stage.job(args=["--other"]))

    saved = await stage.backend.save(stored.record, version=stored.version, blueprint=blueprint)

    assert saved.plan == blueprint.plan
    assert await stage.another().load("digits") == saved


async def test_a_save_with_a_blueprint_that_cannot_run_changes_nothing(stage):
    """The checks of a submission hold here, too."""
    stored = await submitted(stage)
    stage.break_submissions()

    with pytest.raises(SubmitError):
        await stage.backend.save(stored.record, version=stored.version, blueprint=stage.backend.plan(stage.job()))
    assert await stage.backend.load("digits") == stored


async def test_names_are_sorted(stage):
    """All jobs, by name."""
    for name in ("b", "c", "a"):
        await submitted(stage, name=name)

    assert await stage.backend.names() == ("a", "b", "c")


# --- observe, act ----------------------------------------------------------------------------------------------------------


async def test_what_was_created_is_seen_at_once(stage):
    """When `act` returns, every supervisor sees the node and the coordinator, and soon that they run, and where."""
    stored = await deployed(stage)
    await act(stage, stored, COORDINATOR, NODE)
    seen = await stage.another().observe(stored.record)
    assert [(n.node, n.incarnation, n.present) for n in (*seen.coordinators, *seen.nodes)] == [(-1, 1, True), (0, 1, True)]

    async with both_running(stage, stored):
        seen = await stage.another().observe(stored.record)

        assert [(n.attempt, n.node, n.incarnation, n.state, n.present) for n in (*seen.coordinators, *seen.nodes)] == [
            (1, -1, 1, NodeState.RUNNING, True),
            (1, 0, 1, NodeState.RUNNING, True),
        ]
        assert seen.nodes[0].host


async def test_creating_twice_is_creating_once(stage):
    """The same action again changes nothing, also from another process."""
    async with both_running(stage) as stored:
        before = await stage.backend.observe(stored.record)
        await act(stage, stored, COORDINATOR, NODE)
        await stage.another().act(stored.record, stored.plan, NODE)

        assert await stage.backend.observe(stored.record) == before


@pytest.mark.parametrize(
    ("code", "state"),
    [pytest.param(0, NodeState.SUCCEEDED, id="well"), pytest.param(3, NodeState.FAILED, id="badly")],
)
async def test_a_node_that_ended_is_seen_with_its_exit_code(stage, code, state):
    """How it ended is known to everybody, and it is not started again."""
    async with both_running(stage) as stored:
        stage.end_node(stored.record, 0, code)

        async def ended():
            (node,) = (await stage.another().observe(stored.record)).nodes
            return node if node.ended and not node.present else None

        node = await eventually_async(ended)
        assert isinstance(node, NodeSeen)
        assert (node.state, node.exit_code) == (state, code)
        await act(stage, stored, NODE)
        assert (await stage.backend.observe(stored.record)).nodes == (node,)


@pytest.mark.parametrize("force", [pytest.param(False, id="asked"), pytest.param(True, id="by force")])
async def test_a_removed_node_ends(stage, force):
    """It ends, and removing what has ended is fine."""
    async with both_running(stage) as stored:
        removals = (dataclasses.replace(END_NODE, force=force), dataclasses.replace(END_COORDINATOR, force=force))
        await act(stage, stored, *removals, *removals)
        await gone(stage, stored.record)
        await act(stage, stored, *removals)

        nodes = (await stage.backend.observe(stored.record)).nodes
        told = [(node.state, node.exit_code) for node in nodes]
        assert told == ([(NodeState.FAILED, 137 if force else 143)] if stage.remembers else [])


async def test_removing_what_never_was_is_fine(stage):
    """Nothing happens, and nothing appears."""
    stored = await deployed(stage)

    await act(stage, stored, END_NODE, END_COORDINATOR)

    assert not (await stage.backend.observe(stored.record)).nodes


async def test_the_status_is_the_coordinators_last_word(stage):
    """None before its first, then whatever it said last, alone and in an observation."""
    stored = await deployed(stage)
    assert await stage.backend.status("digits") is None

    stage.say(running(stored.record, step=1))
    stage.say(running(stored.record, step=2))

    assert await stage.backend.status("digits") == running(stored.record, step=2)
    assert (await stage.backend.observe(stored.record)).status == running(stored.record, step=2)


async def test_a_purged_job_is_gone(stage):
    """Its name is free again, and purging twice is purging once."""
    stored = await submitted(stage)

    await act(stage, stored, Purge(), Purge())

    assert await stage.backend.load("digits") is None
    assert await stage.backend.names() == ()
    assert (await stage.backend.observe(stored.record)).present is False
    assert (await submitted(stage)).record.uid != stored.record.uid


async def test_a_job_submitted_anew_is_safe_from_the_actions_of_the_old(stage):
    """A supervisor that was stopped for a while can neither remove nor fill the job that has its name now."""
    old = await deployed(stage)
    await act(stage, old, Purge())
    new = await submitted(stage)

    await act(stage, old, END_NODE, Purge())

    assert await stage.backend.load("digits") == new


# --- changes, hold ---------------------------------------------------------------------------------------------------------


async def test_a_change_between_two_waits_is_not_lost(stage):
    """What happened since the last call ends the next one at once."""
    stored = await submitted(stage)
    async with stage.backend.changes("digits") as changes:
        await stage.another().save(stored.record.with_history("test", "a line"), version=stored.version)

        await asyncio.wait_for(changes.wait(3600), timeout=100)


async def test_the_end_of_a_node_ends_the_wait(stage):
    """Whether it ends during the wait or just before it."""
    async with both_running(stage) as stored, stage.backend.changes("digits") as changes:
        await changes.wait(0)
        stage.end_node(stored.record, 0, 0)

        await asyncio.wait_for(changes.wait(3600), timeout=100)


async def test_waiting_for_a_job_that_is_not_there_ends_in_time(stage):
    """There need be no such job."""
    async with stage.backend.changes("nobody") as changes:
        await changes.wait(0.01)


async def test_one_supervisor_holds_a_job(stage):
    """The second is told who the first is, and gets the hold when the first lets go."""
    await submitted(stage)
    async with stage.backend.hold("digits", holder="first"):
        with pytest.raises(HeldError, match="first") as refused:
            async with stage.another().hold("digits", holder="second"):
                pytest.fail("two hold the job")
        assert "first" in refused.value.holder

    async with stage.another().hold("digits", holder="second"):
        pass


async def test_a_job_that_is_not_there_cannot_be_held(stage):
    """And nothing appears by trying."""
    with pytest.raises(JobNotFoundError):
        async with stage.backend.hold("nobody", holder="first"):
            pytest.fail("there is nothing to hold")
    assert await stage.backend.names() == ()


async def test_two_jobs_are_held_apart(stage):
    """Holding one job says nothing of another."""
    await submitted(stage, name="a")
    await submitted(stage, name="b")

    async with stage.backend.hold("a", holder="first"), stage.backend.hold("b", holder="second"):
        pass


async def test_closing_leaves_the_jobs(stage):
    """What the backend held in this process is released; the jobs go on."""
    stored = await submitted(stage)

    await stage.backend.close()

    assert await stage.another().load("digits") == stored


# --- heartbeat, pulse, sweep -----------------------------------------------------------------------------------------------


async def test_a_heart_beats_while_its_context_lasts(stage):
    """Whoever knows its holder sees another beat each time, and nothing once the context is left."""
    async with stage.backend.heartbeat("ann") as holder:
        first = await stage.another().pulse(holder)
        assert first is not None

        async def beaten():
            pulse = await stage.another().pulse(holder)
            return pulse is not None and pulse.beat != first.beat

        await eventually_async(beaten)
        assert (holder.name, first.alive is not False, first.note) == ("ann", True, "")
        assert holder.pid
        assert holder.host
        assert holder.heartbeat

    assert await stage.another().pulse(holder) is None


async def test_a_process_has_one_heart(stage):
    """A second context joins the first: the same id, and it beats until the last is left."""
    async with stage.backend.heartbeat("ann") as ann:
        async with stage.backend.heartbeat("bob") as bob:
            assert (bob.id, bob.heartbeat, bob.name) == (ann.id, ann.heartbeat, "bob")
        assert await stage.backend.pulse(ann) is not None

    async with stage.backend.heartbeat("ann") as again:
        assert await stage.backend.pulse(again) is not None


async def test_nothing_is_swept_of_a_job_that_is_there(stage):
    """It was not deleted, or it is another one of the name."""
    async with both_running(stage) as stored:
        assert await stage.backend.sweep(stored.record)
        assert (await stage.backend.observe(stored.record)).present


async def test_what_a_deleted_job_left_is_swept(stage):
    """Its record is gone; all that ran of it is ended by force, and then there is nothing to do any more."""
    stored = await deployed(stage)
    await act(stage, stored, COORDINATOR, NODE)
    stage.delete_from_outside("digits")

    async def swept():
        return await stage.another().sweep(stored.record)

    await eventually_async(swept)
    assert await stage.another().sweep(stored.record)
    assert stage.left_of(stored.record) == 0
