"""The roles of a job as values: the instances of each simple role, and the report of each elastic role, which is a job."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rallypoint.report.format import counted
from rallypoint.report.headline import headline
from rallypoint.report.incidents import to_xcom
from rallypoint.report.model import Headline, Mood, State, Story
from rallypoint.report.story import story_of
from rallypoint.supervision.masking import masked_record, masked_status
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.supervision.resizing import sized
from rallypoint.supervision.role_records import Level, RoleRecord
from rallypoint.wire.bounds import VALUES
from rallypoint.wire.masked import mask_of_plan
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import RolePlan, role_plan, role_plans
from rallypoint.wire.status import JobStatus

if TYPE_CHECKING:
    from rallypoint.backends.contract import Backend, Stored, Tail

__all__ = [
    "ENDED",
    "Instance",
    "RoleJob",
    "RoleSeen",
    "RoleStory",
    "faults_of",
    "instances_of",
    "job_headline",
    "read_roles",
    "role_stories",
]

#: State of a role while its job is in a phase without running processes.
ENDED = {
    Phase.SUCCEEDED: "ended",
    Phase.FAILED: "ended",
    Phase.TERMINATING: "being deleted",
    Phase.SUSPENDED: "suspended",
    Phase.SUSPENDING: "being stopped",
    Phase.RESETTING: "being stopped",
    Phase.EMPTY: "-",
}


#: Values in the records and statuses of all roles of a job that are read at once.
_LARGEST = 4 * VALUES

#: Number of incidents of one role in XCom.
_XCOM = 20


class RoleJob(Protocol):
    """An elastic role, which is a job."""

    @property
    def name(self) -> str:
        """Of the role."""

    @property
    def record(self) -> JobRecord:
        """Of its job."""

    @property
    def plan(self) -> Plan:
        """Of its job."""

    @property
    def status(self) -> JobStatus | None:
        """The last status of its coordinator."""


@dataclass(frozen=True, kw_only=True)
class RoleSeen:
    """An elastic role as it was read."""

    name: str
    record: JobRecord
    plan: Plan
    status: JobStatus | None = None


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One instance of a simple role; `life` is 0 before its first start, `restarts` are those of its group."""

    index: int
    state: str
    mood: Mood
    group: int
    life: int
    restarts: int


@dataclass(frozen=True, kw_only=True)
class RoleStory:
    """One role.

    Attributes:
        total: instances, or workers of an elastic role.
        headline: state and title.
        instances: of a simple role.
        restarts: instances that were started again in this attempt; of an elastic role its faults.
        resets: of a simple role in this attempt; of an elastic role those of its own job.
        story: of an elastic role that has begun.
    """

    name: str
    elastic: bool
    driver: bool
    total: int
    headline: Headline
    instances: tuple[Instance, ...] = ()
    restarts: int = 0
    resets: int = 0
    story: Story | None = None

    def to_xcom(self) -> dict[str, Any]:
        """Return the figures of the role for the summary of its job."""
        launch = "elastic" if self.elastic else "simple"
        told = {"launch": launch, "driver": self.driver, "restarts": self.restarts, "resets": self.resets}
        if self.story is None:
            return {**told, "instances": self.total}
        progress, status, loss = self.story.progress, self.story.status, self.story.loss
        return {
            **told,
            "faults": loss.faults,
            "incidents": to_xcom(self.story.incidents, limit=_XCOM),
            "steps_lost": loss.steps,
            "step": progress.step,
            "metrics": dict(progress.metrics),
            "checkpoint": progress.checkpoint,
            "resumed_from": progress.resumed_from,
            "world_size": 0 if status is None else status.world_size,
        }


async def read_roles(backend: Backend, record: JobRecord, plan: Plan, *, live: bool = True) -> tuple[RoleSeen, ...]:
    """Return the elastic roles of a job that have begun; `live` asks their coordinators. Raises `BackendError`.

    Scripts can write large records and statuses of all roles of their job: once `_LARGEST` values were read, no more are.
    """
    from rallypoint.backends.contract import is_role_of, role_job  # noqa: PLC0415  brings pydantic

    found, left = [], _LARGEST
    # Not `role_plans`, which reads megabytes in the event loop of others.
    for role in [str(item.get("name")) for item in plan.roles if item.get("elastic")]:
        jobs, name = backend.units(plan.name).jobs, role_job(plan.name, role)
        stored = await jobs.load(name)
        if stored is None or not is_role_of(stored.record, record):
            continue
        status = await (jobs.status(name) if live else jobs.written(name))
        left -= await asyncio.to_thread(_values, (stored.record, status))
        found.append(await asyncio.to_thread(_role_seen, role, stored, status, plan))
        if left <= 0:
            break
    return tuple(found)


def _role_seen(name: str, stored: Stored, status: JobStatus | None, whole: Plan) -> RoleSeen:
    """Return an elastic role without the secrets of its job: an error of a call may quote those of another role."""
    mask = mask_of_plan(whole)
    own = sized(stored.plan, stored.record)
    told = None if status is None else masked_status(status, mask)
    return RoleSeen(name=name, record=masked_record(stored.record, mask), plan=own, status=told)


def _values(value: Any) -> int:
    """Return how many values a message has, those of its parts included."""
    if isinstance(value, (tuple, list)):
        return 1 + sum(map(_values, value))
    if isinstance(value, Mapping):
        return 1 + sum(map(_values, value.values()))
    return 1 + (sum(map(_values, vars(value).values())) if dataclasses.is_dataclass(value) else 0)


async def tail_of(backend: Backend, stored: Stored, role: str, *, lines: int, rank: int) -> Tail:
    """Return the last lines of one rank of a job or of one of its roles; raises `BackendError`."""
    from rallypoint.backends.contract import BackendError, is_role_of, role_job  # noqa: PLC0415  brings pydantic

    name = stored.record.name
    if not stored.plan.roles:
        return await backend.tail(name, lines=lines, rank=rank)
    try:
        found = await asyncio.to_thread(role_plan, stored.plan, role)
    except KeyError:
        raise BackendError(f"job {name} has no role {role!r}") from None
    units = backend.units(name)
    if found.elastic:
        job = await units.jobs.load(role_job(name, role))
        if job is None or not is_role_of(job.record, stored.record):
            raise BackendError(f"role {role} of job {name} has not started yet")
        return await units.jobs.tail(role_job(name, role), lines=lines, rank=rank)
    return await units.tail(stored.record, found, lines=lines, rank=rank)


def role_stories(record: JobRecord, plan: Plan, jobs: Iterable[RoleJob], *, now: float) -> tuple[RoleStory, ...]:
    """Return all roles of a job in its order; none of a job that is one role."""
    own = {job.name: job for job in jobs}
    return tuple(
        _elastic(record, role, own.get(role.name), now) if role.elastic else _simple(record, role) for role in role_plans(plan)
    )


def faults_of(story: Story, roles: Iterable[RoleStory]) -> int:
    """Return the number of faults of a job, including its elastic roles."""
    return story.loss.faults + sum(role.story.loss.faults for role in roles if role.story is not None)


def job_headline(story: Story, roles: tuple[RoleStory, ...]) -> Headline:
    """Return the headline of a job with several roles."""
    record, faults = story.record, faults_of(story, roles)
    if record.finished or record.phase is not Phase.RUNNING:
        return headline(record, None, story.details, faults=faults)
    broken = [incident for incident in story.details if incident.healed_at is None]
    mending = [role for role in roles if role.headline.state is State.RECOVERING]
    if mending:
        title = f"Role {mending[0].name}: {mending[0].headline.title}"
        return Headline(state=State.RECOVERING, mood=Mood.BUSY, title=title, advice=_HEALING, live=True)
    if broken:
        return headline(record, None, story.details, faults=faults)
    if not record.condition(ConditionType.PODS_READY):
        advice = "Its roles are starting; no action needed yet."
        return Headline(state=State.WAITING, mood=Mood.BUSY, title="Starting", advice=advice, live=True)
    title = f"Running {counted(len(roles), 'role')}"
    if not faults:
        return Headline(state=State.RUNNING, mood=Mood.GOOD, title=title, advice="No faults. No action needed.", live=True)
    advice = "The job continued without intervention. No action needed."
    title = f"{title}, recovered from {counted(faults, 'fault')}"
    return Headline(state=State.RECOVERED, mood=Mood.GOOD, title=title, advice=advice, live=True)


_HEALING = "Recovery is running in this role; the other roles continue. No action needed yet."


# --- Simple roles ----------------------------------------------------------------------------------------------------------


def instances_of(record: JobRecord, role: RolePlan) -> tuple[Instance, ...]:
    """Return the instances of a simple role."""
    found = _found(record, role)
    return tuple(_instances(record, role, found))


def _found(record: JobRecord, role: RolePlan) -> RoleRecord | None:
    if record.conductor is None:
        return None
    return next((one for one in record.conductor.roles if one.name == role.name), None)


def _instances(record: JobRecord, role: RolePlan, found: RoleRecord | None) -> Iterator[Instance]:
    done, failed = frozenset(() if found is None else found.done), _failed(record, role)
    for index in range(role.total):
        state, mood = ("failed", Mood.BAD) if index == failed else _state(record, found, done=index in done)
        group = index // role.per_group
        life = 0 if found is None else _at(found.incarnations, index)
        restarts = 0 if found is None else _at(found.restarts, group)
        yield Instance(index=index, state=state, mood=mood, group=group, life=life, restarts=restarts)


def _failed(record: JobRecord, role: RolePlan) -> int:
    """Return the instance of a role whose failure ended the job; -1 if it is none of them."""
    history = () if record.conductor is None else record.conductor.history
    if record.phase is not Phase.FAILED or not history or history[-1].level is not Level.NONE or history[-1].role != role.name:
        return -1
    return history[-1].index


def _at(counts: Sequence[int], index: int) -> int:
    """Return a count; 0 where the record of a script, which can write to its job's folder, has too few."""
    return counts[index] if index < len(counts) else 0


def _state(record: JobRecord, found: RoleRecord | None, *, done: bool) -> tuple[str, Mood]:
    if done:
        return "succeeded", Mood.QUIET
    if record.phase is not Phase.RUNNING:
        return ENDED.get(record.phase, "-"), Mood.QUIET
    if found is not None and found.stop_at is not None:
        return "being stopped", Mood.BUSY
    return "running", Mood.GOOD


def _simple(record: JobRecord, role: RolePlan) -> RoleStory:
    found, instances = _found(record, role), instances_of(record, role)
    return RoleStory(
        name=role.name,
        elastic=False,
        driver=role.driver,
        total=role.total,
        headline=_simple_headline(record, instances),
        instances=instances,
        restarts=0 if found is None else sum(found.restarts),
        resets=0 if found is None else found.reset,
    )


def _simple_headline(record: JobRecord, instances: tuple[Instance, ...]) -> Headline:
    def told(state: State, mood: Mood, title: str) -> Headline:
        return Headline(state=state, mood=mood, title=title, advice="", live=not record.finished)

    done = sum(one.state == "succeeded" for one in instances)
    if instances and done == len(instances):
        return told(State.SUCCEEDED, Mood.GOOD, "All instances succeeded" if done > 1 else "Succeeded")
    if record.phase is not Phase.RUNNING:
        return told(State.WAITING, Mood.QUIET, _phrase(record))
    if any(one.mood is Mood.BUSY for one in instances):
        return told(State.RECOVERING, Mood.BUSY, "Being reset")
    running = len(instances) - done
    ended = f", {done} succeeded" if done else ""
    return told(State.RUNNING, Mood.GOOD, f"{counted(running, 'instance')} running{ended}")


def _phrase(record: JobRecord) -> str:
    word = ENDED.get(record.phase, "-")
    return "Not started yet" if word == "-" else word[0].upper() + word[1:]


# --- Elastic roles ---------------------------------------------------------------------------------------------------------


def _elastic(record: JobRecord, role: RolePlan, job: RoleJob | None, now: float) -> RoleStory:
    told = RoleStory(name=role.name, elastic=True, driver=role.driver, total=role.total, headline=_not_begun(record))
    if job is None:
        return told
    story = story_of(job.record, job.status, now=now, plan=job.plan)
    return dataclasses.replace(
        told,
        headline=_elastic_headline(record, story),
        restarts=story.loss.restarts,
        resets=job.record.retries,
        story=story,
    )


def _not_begun(record: JobRecord) -> Headline:
    title = "Starting" if record.phase is Phase.RUNNING else _phrase(record)
    return Headline(state=State.WAITING, mood=Mood.BUSY, title=title, advice="", live=not record.finished)


def _elastic_headline(record: JobRecord, story: Story) -> Headline:
    """Return the headline of an elastic role; a role that its job has stopped does not count as suspended by a user."""
    if record.phase is Phase.RUNNING or story.record.finished:
        return story.headline
    return Headline(state=State.WAITING, mood=Mood.QUIET, title=_phrase(record), advice="", live=not record.finished)
