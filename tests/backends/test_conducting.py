"""Jobs with roles by the one loop, in a world of memory with a clock of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.contract import ActionError, Backend, SubmitError, is_role_of
from rallypoint.backends.requests import request_deletion, request_resumption, request_suspension, submit_or_adopt
from rallypoint.backends.supervise import supervise
from rallypoint.backends.turns import Snapshot
from rallypoint.report.roles import read_roles
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.supervision.role_records import UnitKey, UnitState
from rallypoint.wire.env import MASKED
from rallypoint.wire.status import Event, Outcome
from tests.backends.crashing import Crashed, Crashing
from tests.backends.stage import FakeStage, running, verdict

ROLES: dict[str, dict[str, Any]] = {
    "trainer": {"entrypoint": "train.py", "nodes": 2},
    "rollout": {"launch": "simple", "entrypoint": "m:f", "total": 2, "driver": False},
    "judge": {"launch": "simple", "entrypoint": "m:f"},
}


@pytest.fixture
def place(tmp_path: Path) -> FakeStage:
    return FakeStage(tmp_path)


class Story:
    """What happens in a job: at each turn the first of the `events`, if it is due; the trainer speaks when it starts."""

    def __init__(self, place: FakeStage, *events: tuple[Callable[[], bool], Callable[[], None]]) -> None:
        self.place, self.events = place, list(events)
        self.phases: list[Phase] = []

    def __call__(self, snapshot: Snapshot) -> None:
        world = self.place.world
        if not self.phases or self.phases[-1] is not snapshot.record.phase:
            self.phases.append(snapshot.record.phase)
        trainer = world.record("rl-trainer") if "rl-trainer" in world.jobs else None
        status = None if trainer is None else world.jobs["rl-trainer"].status
        silent = status is None or (trainer is not None and status.fence.attempt != trainer.attempt)
        if trainer is not None and trainer.phase is Phase.RUNNING and silent:
            self.place.say(running(trainer, step=3))
        if self.events and self.events[0][0]():
            self.events.pop(0)[1]()


async def submit(place: FakeStage, **fields: Any) -> None:
    job = place.job(name="rl", roles=ROLES, **{"recovery": {"stop_grace_period": 0}, **fields})
    await submit_or_adopt(place.backend, place.backend.plan(job), owner="ann", clock=place.world.clock)


async def drive(place: FakeStage, story: Story, backend: Backend | None = None) -> JobRecord | None:
    return await supervise(backend or place.backend, "rl", holder="test", on_turn=story, clock=place.world.clock)


def all_run(place: FakeStage) -> Callable[[], bool]:
    """Whether all three instances and both nodes of the trainer run."""

    def look() -> bool:
        nodes = [key for key in place.world.alive("rl-trainer") if key[1] >= 0]
        return len(place.world.running_units("rl")) == 3 and len(nodes) == 2

    return look


def ends(place: FakeStage, role: str, index: int, code: int | None) -> Callable[[], None]:
    def end() -> None:
        (key,) = (key for key in place.world.running_units("rl") if (key.role, key.index) == (role, index))
        place.world.end_unit("rl", key, code)

    return end


def says(place: FakeStage, outcome: Outcome) -> Callable[[], None]:
    return lambda: place.say(verdict(place.world.record("rl-trainer"), outcome))


async def test_a_job_ends_well_when_its_drivers_have(place):
    """The trainer and the judge succeed; the servers are ended, and the record says when nothing is left."""
    await submit(place)
    story = Story(place, (all_run(place), ends(place, "judge", 0, 0)), (lambda: True, says(place, Outcome.SUCCEEDED)))

    record = await drive(place, story)

    assert record is not None
    assert record.verdict is not None
    assert (record.phase, record.released, record.verdict.outcome) == (Phase.SUCCEEDED, True, Outcome.SUCCEEDED)
    assert story.phases == [Phase.RUNNING, Phase.SUCCEEDED]
    assert place.world.running_units("rl") == []
    assert place.world.alive("rl-trainer") == []
    assert place.world.serving["rl"] == 0
    assert await place.backend.names() == ("rl",)
    assert record == place.world.record("rl")


async def test_an_instance_that_fails_is_the_only_one_that_starts_again(place):
    """The trainer's nodes and the other instances keep their lives; the cause is in the record."""
    await submit(place)
    before: dict[str, Any] = {}

    def keep() -> None:
        before.update(units=place.world.running_units("rl"), nodes=place.world.alive("rl-trainer"))
        ends(place, "rollout", 1, 3)()

    def check() -> None:
        kept = [key for key in before["units"] if (key.role, key.index) != ("rollout", 1)]
        successor = UnitKey(role="rollout", attempt=1, reset=0, index=1, incarnation=2)
        assert place.world.running_units("rl") == sorted([*kept, successor])
        assert place.world.alive("rl-trainer") == before["nodes"]
        ends(place, "judge", 0, 0)()

    story = Story(place, (all_run(place), keep), (all_run(place), check), (lambda: True, says(place, Outcome.SUCCEEDED)))

    record = await drive(place, story)

    assert record is not None
    assert record.phase is Phase.SUCCEEDED
    told = [event.detail for event in record.history if event.kind == "restarted"]
    assert told == ["rollout 1 exited with code 3; the instance is started again"]
    (incident,) = record.incidents
    assert (incident.cause.value, incident.rung.value, incident.reason) == (
        "process",
        "recover-in-place",
        "rollout 1 exited with code 3",
    )


async def test_a_job_that_waits_for_resources_pays_nothing(place):
    """What it waits for is in its record until it has it; no restart is charged."""
    await submit(place)
    place.world.failures = [ActionError("2 nodes need GPU 4, but 0 are free", waits=True) for _ in range(8)]
    waited: list[str] = []

    def look(snapshot: Snapshot) -> None:
        waited.append(snapshot.record.waits_for)
        story(snapshot)

    judged = ends(place, "judge", 0, 0)
    story = Story(place, (all_run(place), judged), (lambda: True, says(place, Outcome.SUCCEEDED)))
    record = await supervise(place.backend, "rl", holder="test", on_turn=look, clock=place.world.clock)

    assert record is not None
    assert (record.phase, record.retries, record.incidents, record.waits_for) == (Phase.SUCCEEDED, 0, (), "")
    assert "2 nodes need GPU 4, but 0 are free" in waited
    assert [event.detail for event in record.history if event.kind == "waiting"] == ["2 nodes need GPU 4, but 0 are free"]


async def test_a_unit_that_can_never_start_fails_the_job_at_once(place):
    """No restart is charged for it, and nothing of the job is left."""
    await submit(place)
    place.world.failures = [ActionError("not ready within 6 s", fatal=True)]

    record = await drive(place, Story(place))

    assert record is not None
    assert record.verdict is not None
    assert (record.phase, record.retries, record.released) == (Phase.FAILED, 0, True)
    assert record.verdict.message == "not ready within 6 s; another attempt cannot help"
    assert place.world.running_units("rl") == []


async def test_a_trainer_that_is_beyond_recovery_resets_the_job_once(place):
    """Its whole ladder is exhausted: everything ends, and starts again as attempt 2 with the history of the role."""
    await submit(place, fault_tolerance={"retry_limit": 0, "retry_pause_period": 0})
    story = Story(place, (all_run(place), says(place, Outcome.FAILED)))

    record = await drive(place, story)

    assert record is not None
    assert record.verdict is not None
    assert (record.phase, record.verdict.reason) == (Phase.FAILED, "RoleFailed")
    assert record.verdict.message == "trainer: every worker ended; no resets of the job left (limit: 0)"

    place.world.jobs.clear()
    place.world.units.clear()
    await submit(place, fault_tolerance={"retry_limit": 1, "retry_pause_period": 0})

    def succeeds() -> None:
        assert not place.world.record("rl").condition(ConditionType.DELETING_RESOURCES)
        ends(place, "judge", 0, 0)()

    story = Story(
        place,
        (all_run(place), says(place, Outcome.FAILED)),
        (lambda: all_run(place)() and place.world.record("rl-trainer").attempt == 2, says(place, Outcome.FAILED)),
        (lambda: place.world.record("rl").attempt == 2 and all_run(place)(), succeeds),
        (lambda: True, says(place, Outcome.SUCCEEDED)),
    )
    record = await drive(place, story)
    assert record is not None
    assert (record.phase, record.attempt, record.retries) == (Phase.SUCCEEDED, 2, 1)
    assert story.phases == [Phase.RUNNING, Phase.RESETTING, Phase.RUNNING, Phase.SUCCEEDED]
    assert [attempt.number for attempt in place.world.record("rl-trainer").attempts] == [1, 2, 3]


async def test_a_suspended_job_has_nothing_and_goes_on_with_what_was_not_done(place):
    """What has succeeded is not run again."""
    await submit(place)
    backend = place.another()
    story = Story(place, (all_run(place), ends(place, "judge", 0, 0)))

    async def wish(change: Callable[..., Any]) -> None:
        await change(backend, "rl")

    seen = []

    def tell(snapshot: Snapshot) -> None:
        story(snapshot)
        seen.append(snapshot.record.phase)
        conductor = snapshot.record.conductor
        done = conductor is not None and any(role.done for role in conductor.roles)
        if done and snapshot.record.phase is Phase.RUNNING and Phase.SUSPENDED not in seen:
            run(wish(request_suspension))
        if snapshot.record.phase is Phase.SUSPENDED and not place.world.running_units("rl"):
            assert place.world.alive("rl-trainer") == []
            run(wish(request_resumption))
        if Phase.SUSPENDED in seen and snapshot.record.phase is Phase.RUNNING and len(place.world.running_units("rl")) == 2:
            run(wish(request_deletion))

    record = await supervise(place.backend, "rl", holder="test", on_turn=tell, clock=place.world.clock)

    assert record is None
    assert place.world.jobs == {}
    assert [key.role for key in place.world.units["rl"] if key.role == "judge"] == ["judge"]
    assert [phase for before, phase in zip([None, *seen], seen, strict=False) if phase is not before] == [
        Phase.RUNNING,
        Phase.SUSPENDING,
        Phase.SUSPENDED,
        Phase.RUNNING,
        Phase.TERMINATING,
    ]


def run(coroutine: Any) -> None:
    """Run a coroutine of the fake, which never waits."""
    with contextlib.suppress(StopIteration):
        coroutine.send(None)


async def test_the_result_of_each_driver_is_kept_by_its_role(place):
    """Of a simple role the first instance speaks; what a server left is not kept, nor what an earlier attempt left."""
    await submit(place)

    def leave() -> None:
        for key, unit in list(place.world.units["rl"].items()):
            if key.role != "trainer":
                left = dataclasses.replace(unit, state=UnitState.SUCCEEDED, present=False, result={"from": key.role})
                place.world.units["rl"][key] = left
        place.world.changed += 1

    def finish() -> None:
        status = verdict(place.world.record("rl-trainer"), Outcome.SUCCEEDED)
        place.say(dataclasses.replace(status, result=[1.5]))

    record = await drive(place, Story(place, (all_run(place), leave), (lambda: True, finish)))

    assert record is not None
    assert record.phase is Phase.SUCCEEDED
    assert record.result == {"judge": {"from": "judge"}, "trainer": [1.5]}


def failing_once(place: FakeStage) -> Story:
    """A rollout fails once, then the judge and the trainer succeed."""
    return Story(
        place,
        (all_run(place), ends(place, "rollout", 0, 3)),
        (all_run(place), ends(place, "judge", 0, 0)),
        (lambda: True, says(place, Outcome.SUCCEEDED)),
    )


@pytest.mark.parametrize("code", [0, 1], ids=["it succeeded", "it failed, and the trainer was suspended"])
async def test_a_job_that_is_submitted_again_with_another_spec_runs_its_elastic_role_by_that(place, code):
    """A secret was rotated and TLS is wanted now: nothing of the role runs by the spec before."""
    ended = [(all_run(place), ends(place, "judge", 0, code))]
    ended += [] if code else [(lambda: True, says(place, Outcome.SUCCEEDED))]
    fields = {"fault_tolerance": {"retry_limit": 0}, "recovery": {"node_replacements": 0, "stop_grace_period": 0}}
    roles = {**ROLES, "judge": {**ROLES["judge"], "on_failure": "job"}}
    plans, records = [], []

    def keep() -> None:
        plans.append(place.world.jobs["rl-trainer"].blueprint.plan)
        records.append(place.world.record("rl-trainer"))

    for number, (password, tls) in enumerate([("old", "off"), ("new", "auto")]):
        trainer = {**roles["trainer"], "env": {"PASSWORD": password}}
        blueprint = place.backend.plan(place.job(name="rl", roles={**roles, "trainer": trainer}, tls=tls, **fields))
        await submit_or_adopt(place.backend, blueprint, owner=f"try {number}", clock=place.world.clock)
        record = await drive(place, Story(place, (all_run(place), keep), *ended))
        assert record is not None
        assert record.phase is (Phase.FAILED if code else Phase.SUCCEEDED)

    assert [(plan.env["PASSWORD"], plan.tls) for plan in plans] == [("old", ""), ("new", "auto")]
    assert [one.digest for one in records] == [plan.digest for plan in plans]
    assert plans[0].digest != plans[1].digest
    assert [one.retries for one in records] == [0, 0]


async def test_a_supervisor_that_is_killed_anywhere_is_succeeded(tmp_path):
    """After any save, start, stop or release: no life begins twice, no failure is charged twice, and nothing is left."""
    for steps in range(200):
        place = FakeStage(tmp_path)
        await submit(place)
        story, crashed = failing_once(place), False
        try:
            record = await drive(place, story, Crashing(place.backend, steps))
        except Crashed:
            crashed = True
            record = await drive(place, story, place.another())
        assert record is not None
        assert (record.phase, record.attempt, record.retries, record.released) == (Phase.SUCCEEDED, 1, 0, True)
        told = [event.detail for event in record.history if event.kind == "restarted"]
        assert told == ["rollout 0 exited with code 3; the instance is started again"]
        assert len(record.incidents) == 1
        lives = [(key.role, key.index, key.incarnation) for key in sorted(place.world.units["rl"])]
        assert lives == [("judge", 0, 1), ("rollout", 0, 1), ("rollout", 0, 2), ("rollout", 1, 1)]
        assert len(place.world.record("rl-trainer").attempts) == 1
        assert place.world.running_units("rl") == []
        assert place.world.serving["rl"] == 0
        if not crashed:
            assert steps > 20
            return
    pytest.fail("it never came to its end")


async def test_the_last_words_of_an_instance_are_masked(place):
    """The record has `***` in the place of a secret of a role, and so do all that read the record."""
    secret = "hunter2-of-the-warehouse"
    judge = {**ROLES["judge"], "env": {"PW": secret, MASKED: f'[["PW", 0, {len(secret)}]]'}, "on_failure": "job"}
    job = place.job(name="rl", roles={**ROLES, "judge": judge}, fault_tolerance={"retry_limit": 0})
    await submit_or_adopt(place.backend, place.backend.plan(job), owner="ann", clock=place.world.clock)

    def quotes() -> None:
        ends(place, "judge", 0, 1)()
        (key,) = (key for key in place.world.units["rl"] if key.role == "judge")
        seen = place.world.units["rl"][key]
        place.world.units["rl"][key] = dataclasses.replace(seen, reason=f"judge 0: cannot log in with {secret}")

    record = await drive(place, Story(place, (all_run(place), quotes)))

    assert record is not None
    assert "judge 0: cannot log in with ***" in record.to_json()
    assert secret not in record.to_json()


# --- Another job with the name of a role's job -----------------------------------------------------------------------------


async def foreign(place: FakeStage) -> JobRecord:
    """Submit a job of another owner that has the name of the trainer's job, and let it run."""
    job = place.job(name="rl-trainer", entrypoint="other.py", nodes=2)
    await submit_or_adopt(place.backend, place.backend.plan(job), owner="bob", clock=place.world.clock)
    return place.world.record("rl-trainer")


async def test_a_job_whose_role_has_the_name_of_another_job_is_refused(place):
    """Names of jobs are shared on a cluster."""
    other = await foreign(place)

    with pytest.raises(
        SubmitError, match=r"roles\.trainer: this role would run as job rl-trainer, but a job of this name exists already"
    ):
        await submit(place)

    assert await place.backend.names() == ("rl-trainer",)
    assert place.world.record("rl-trainer") == other


async def test_no_other_job_is_taken_for_a_role(place):
    """One that came between: it is neither started again nor shown nor deleted, and the job fails with a sentence."""
    await submit(place)
    other = await foreign(place)

    record = await drive(place, Story(place))

    assert record is not None
    assert record.phase is Phase.FAILED
    assert record.verdict is not None
    assert "another job has this name (owner bob)" in record.verdict.message
    plan = place.backend.plan(place.job(name="rl", roles=ROLES)).plan
    assert await read_roles(place.backend, record, plan) == ()
    await request_deletion(place.backend, "rl")
    assert await drive(place, Story(place)) is None
    assert place.world.record("rl-trainer") == other


async def test_a_role_belongs_to_one_job_of_its_name(place):
    """What an earlier job of the name has left is not taken for its own, either."""
    await submit(place)
    seen: list[JobRecord] = []

    def look() -> None:
        seen.extend((place.world.record("rl"), place.world.record("rl-trainer")))
        ends(place, "judge", 0, 0)()

    await drive(place, Story(place, (all_run(place), look), (lambda: True, says(place, Outcome.SUCCEEDED))))
    record, role = seen

    assert is_role_of(role, record)
    assert is_role_of(dataclasses.replace(role, claimant=""), record)
    assert not is_role_of(role, dataclasses.replace(record, uid="another"))
    assert not is_role_of(role, dataclasses.replace(record, name="r"))
    assert not is_role_of(dataclasses.replace(role, owner="bob"), record)


async def test_of_many_large_roles_only_some_are_read(place):
    """Scripts could write 8 MiB for each of 256 roles, and the API server would hold all of it."""
    roles = {f"t{number}": {"entrypoint": "train.py"} for number in range(12)}
    blueprint = place.backend.plan(place.job(name="rl", roles=roles))
    await submit_or_adopt(place.backend, blueprint, owner="ann", clock=place.world.clock)
    told = place.world.record("rl")
    events = tuple(Event(at=1.0, kind="a", detail="b") for _ in range(4096))
    conditions = tuple(Event(at=1.0, kind="a", detail="b") for _ in range(8000))
    for name in roles:
        job = place.job(name=f"rl-{name}", entrypoint="train.py")
        await place.backend.submit(place.backend.plan(job), owner="rl/1.0.1")
        stored = await place.backend.load(f"rl-{name}")
        large = dataclasses.replace(stored.record, history=events, charges=tuple(map(float, range(8000))))
        await place.backend.save(large, version=stored.version)
        place.say(dataclasses.replace(running(large), events=conditions))

    found = await read_roles(place.backend, told, blueprint.plan)

    assert 1 < len(found) < len(roles)
