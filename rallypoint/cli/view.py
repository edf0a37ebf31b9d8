"""The displayed values of a job (`values.py`), from its record, status and plan. Pure; `now` is an argument."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rallypoint.capabilities import modules
from rallypoint.cli.document import JobDocument, RoleDocument, SupervisorSeen
from rallypoint.cli.tables import incident_table, node_table
from rallypoint.cli.values import Column, Fact, JobView, Row, Table
from rallypoint.report.endings import failure_story, success_line
from rallypoint.report.format import clock_time, counted, metrics_text, span
from rallypoint.report.incidents import is_fault
from rallypoint.report.model import Mood, Story
from rallypoint.report.roles import ENDED, instances_of
from rallypoint.report.story import story_of
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.role_plans import RolePlan, role_plans
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["overview", "phase_word", "view", "view_of"]

_MOODS = {
    Phase.EMPTY: Mood.BUSY,
    Phase.SUSPENDED: Mood.QUIET,
    Phase.SUSPENDING: Mood.BUSY,
    Phase.RESUMING: Mood.BUSY,
    Phase.RUNNING: Mood.GOOD,
    Phase.RESETTING: Mood.BUSY,
    Phase.SUCCEEDED: Mood.GOOD,
    Phase.FAILED: Mood.BAD,
    Phase.TERMINATING: Mood.QUIET,
}

#: Phases in which a suspend request has not been carried out yet.
_SUSPENDABLE = (Phase.EMPTY, Phase.RESUMING, Phase.RUNNING, Phase.RESETTING)

_JOBS = (
    Column(title="NAME", shrinks=True),
    Column(title="PHASE", colored=True),
    Column(title="ATTEMPT", right=True),
    Column(title="NODES", right=True),
    Column(title="STEP", right=True),
    Column(title="RESTARTS", right=True),
    Column(title="AGE", right=True),
    Column(title="OWNER", shrinks=True),
)

_COLUMNS = (
    Column(title="ROLE", repeats=True, shrinks=True),
    Column(title="INSTANCE", right=True),
    Column(title="STATE", colored=True),
    Column(title="GROUP", right=True),
    Column(title="LIFE", right=True),
    Column(title="RESTARTS", right=True),
    Column(title="STEP", right=True),
)


def view(
    record: JobRecord,
    status: JobStatus | None,
    plan: Plan,
    now: float,
    *,
    supervisor: SupervisorSeen | None = None,
    zone: datetime.tzinfo | None = None,
    by_node: bool = False,
    status_age: float | None = None,
    roles: Iterable[RoleDocument] = (),
) -> JobView:
    """Return the displayed values of one job at `now` (seconds since the epoch).

    Args:
        record: of the supervisor.
        status: the last status of the coordinator; a status of another attempt or job is ignored.
        plan: of the job.
        now: end of all displayed ages.
        supervisor: state of the supervisor that the record names.
        zone: time zone of displayed times; None for that of this machine.
        status_age: seconds since the last status of the coordinator; None if unknown.
        by_node: one row for each node instead of each rank.
        roles: elastic roles of a job with several roles.
    """
    story, roles = story_of(record, status, now=now, plan=plan, status_age=status_age), tuple(roles)
    ranks = node_table(record, story.status, story.restarts, by_node=by_node)
    return JobView(
        name=record.name,
        phase=phase_word(record),
        summary=_summary(story, plan, now),
        mood=_mood(record, story.status, plan),
        figures=_figures(story, plan, roles),
        details=(*_details(story, now), *_supervision(record, plan, supervisor, _Clock(now=now, zone=zone))),
        nodes=_role_table(record, plan, roles) if plan.roles else ranks,
        incidents=incident_table(story, now, zone=zone),
        ending=_ending(story),
    )


def view_of(document: JobDocument, now: float, *, by_node: bool = False) -> JobView:
    """Return the displayed values of the job of a document."""
    return view(
        document.record,
        document.status,
        document.plan,
        now,
        supervisor=document.supervisor,
        by_node=by_node,
        status_age=document.status_age,
        roles=document.roles,
    )


def overview(jobs: Iterable[JobDocument], now: float) -> Table:
    """Return the table of all jobs, a row for each."""
    rows = (_job_row(story_of(job.record, job.status, now=now, plan=job.plan), job, now) for job in jobs)
    return Table(columns=_JOBS, rows=tuple(rows), empty="no jobs")


def phase_word(record: JobRecord) -> str:
    """Return the name of the phase; a job without a supervisor yet is `Submitted`."""
    return record.phase.value or "Submitted"


def _mood(record: JobRecord, status: JobStatus | None, plan: Plan) -> Mood:
    if plan.roles:
        waits = record.phase is Phase.RUNNING and not record.condition(ConditionType.PODS_READY)
        return Mood.BUSY if waits else _MOODS[record.phase]
    if record.phase is Phase.RUNNING and (status is None or status.state is not JobState.RUNNING):
        return Mood.BUSY
    if record.phase is Phase.RUNNING and status is not None and len(status.world) < plan.min_nodes:
        return Mood.BUSY
    return _MOODS[record.phase]


def _summary(story: Story, plan: Plan, now: float) -> str:
    record = story.record
    if record.deletion and record.phase is not Phase.TERMINATING:
        return "deletion requested"
    if record.suspend and record.phase in _SUSPENDABLE:
        return "suspension requested"
    if plan.roles:
        return _roles_summary(record)
    if record.phase is Phase.RUNNING:
        return _with_silence(record, _running(story.status, plan), story.silence)
    if record.phase is Phase.RESETTING:
        return _resetting(record, plan, now)
    return {
        Phase.EMPTY: "waiting for a supervisor",
        Phase.SUSPENDED: "until resumed" if record.suspend else "waiting for admission",
        Phase.SUSPENDING: "stopping its nodes",
        Phase.RESUMING: _waiting(record) or f"starting {len(record.slots)} nodes",
        Phase.SUCCEEDED: "all ranks succeeded" if record.released else "all ranks succeeded; stopping nodes",
        Phase.FAILED: "" if record.released else "stopping its nodes",
        Phase.TERMINATING: "being deleted",
    }[record.phase]


def _with_silence(record: JobRecord, running: str, quiet: str) -> str:
    """Return the activity of a running job, with the time since its last report if that is old."""
    if quiet.startswith("last report ") and not quiet.startswith("last report of"):
        return f"{quiet}; then: {running}"
    return "; ".join(filter(None, (running, quiet, _waiting(record))))


def _waiting(record: JobRecord) -> str:
    """Return `waiting for quota NAME` if the job waits for something; the complete text is the value `waits for`."""
    return f"waiting for {record.waits_for.partition(':')[0]}" if record.waits_for else ""


def _running(status: JobStatus | None, plan: Plan) -> str:
    if status is None:
        return "waiting for the coordinator"
    does = next(filter(None, (module.activity(status) for module in modules("report") if hasattr(module, "activity"))), "")
    if does:
        return str(does)
    if status.state is JobState.FORMING:
        return f"{len(status.waiting)} of {_bounds(plan)} nodes have joined"
    if status.state is JobState.RUNNING:
        return f"training on {len(status.world)} of {plan.max_nodes} nodes"
    return "the attempt has ended"


def _resetting(record: JobRecord, plan: Plan, now: float) -> str:
    gone = record.since(ConditionType.RESOURCES_DEPLOYED, value=False)
    if gone is None:
        return f"cleaning up attempt {record.attempt}"
    # The clock is saved from time to time; in between it advances with the time of day.
    clock = record.clock + max(0.0, now - record.last_now)
    return f"attempt {record.attempt + 1} starts in {span(gone + plan.grace.retry_pause - clock)}"


def _bounds(plan: Plan) -> str:
    return str(plan.min_nodes) if plan.min_nodes == plan.max_nodes else f"{plan.min_nodes}:{plan.max_nodes}"


def _figures(story: Story, plan: Plan, roles: Iterable[RoleDocument]) -> tuple[Fact, ...]:
    record, status, step = story.record, story.status, story.progress.step
    if plan.roles:
        return _role_figures(record, plan, roles)
    # A retry is counted when the attempt before it has failed.
    begun = record.retries - (record.phase is Phase.RESETTING)
    attempts = record.attempt + plan.budgets.retry_limit - begun
    figures = {
        "attempt": f"{record.attempt} of {max(attempts, record.attempt)}" if record.attempt else "-",
        "nodes": f"{len(status.world)} of {plan.max_nodes}" if status else "-",
        "ranks": str(status.world_size) if status else "-",
        "round": str(status.fence.round) if status else "-",
        "step": "-" if step is None else str(step),
        "restarts": f"{len(story.restarts)} of {plan.budgets.max_restarts}",
        "resets": f"{record.retries} of {plan.budgets.retry_limit}",
    }
    return tuple(Fact(label=label, text=text) for label, text in figures.items())


def _details(story: Story, now: float) -> Iterable[Fact]:
    record, status, progress = story.record, story.status, story.progress
    if progress.metrics:
        yield Fact(label="metrics", text=metrics_text(progress))
    if progress.checkpoint:
        yield Fact(label="checkpoint", text=progress.checkpoint)
    if record.waits_for:
        yield Fact(label="waits for", text=record.waits_for)
    if status is not None and (trouble := _undurable(status)):
        yield Fact(label="note", text=trouble)
    if status is not None:
        yield from (Fact(label=label, text=text) for module in modules("report") for label, text in module.facts(status))
    yield Fact(label="time", text=_time(record, now))
    yield Fact(label="owner", text=record.owner)


def _undurable(status: JobStatus) -> str:
    """Return why the coordinator cannot store its status durably; "" if it can."""
    if status.durable:
        return ""
    told = (event.detail for event in reversed(status.events) if event.kind == "status-undurable")
    return next(told, "the coordinator cannot store its status")


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """The current time and the time zone of displayed times."""

    now: float
    zone: datetime.tzinfo | None

    def tell(self, at: float) -> str:
        """Return a time and its age as text."""
        return f"{clock_time(at, self.now, self.zone)} ({span(self.now - at)})"


def _supervision(record: JobRecord, plan: Plan, supervisor: SupervisorSeen | None, clock: _Clock) -> Iterable[Fact]:
    """Yield the supervisor of a job, or since when it has none and the consequence; nothing before and after supervision."""
    holder = record.holder
    if holder is None or (record.released and not record.deletion):
        return
    if supervisor is None:
        yield Fact(label="supervisor", text=holder.describe())
    elif supervisor.lost_at is None:
        told = f"{holder.describe()} since {clock.tell(holder.since)}"
        yield Fact(label="supervisor", text=f"{told}; {supervisor.note}" if supervisor.note else told)
    else:
        again = f"to supervise it: rallypoint supervise {record.name}"
        yield Fact(label="supervisor", text=f"none since {clock.tell(supervisor.lost_at)}; {again}")
        yield Fact(label="last supervisor", text=holder.describe())
        stops = plan.orphan_policy is OrphanPolicy.STOP
        yield Fact(
            label="orphan",
            text=f"the job stops after {span(plan.lease)} without a supervisor"
            if stops
            else "the job continues without a supervisor",
        )


def _time(record: JobRecord, now: float) -> str:
    if not record.attempts:
        return f"submitted {span(now - record.created_at)} ago"
    attempt = record.attempts[-1]
    if attempt.ended_at is None:
        return f"attempt {attempt.number} started {span(now - attempt.started_at)} ago"
    took = span(attempt.ended_at - attempt.started_at)
    return f"attempt {attempt.number} took {took} and ended {span(now - attempt.ended_at)} ago"


def _ending(story: Story) -> str:
    if story.record.phase is Phase.SUCCEEDED:
        return success_line(story)
    return failure_story(story.record) if story.record.phase is Phase.FAILED else ""


def _job_row(story: Story, job: JobDocument, now: float) -> Row:
    record = story.record
    figures = {fact.label: fact.text for fact in _figures(story, job.plan, job.roles)}
    cells = (
        record.name,
        Phase.TERMINATING.value if record.deletion else phase_word(record),
        *(figures[label].replace(" of ", "/") for label in ("attempt", "nodes", "step", "restarts")),
        span(now - record.created_at),
        record.owner,
    )
    return Row(cells=cells, mood=_mood(record, story.status, job.plan))


def _role_table(record: JobRecord, plan: Plan, roles: Iterable[RoleDocument]) -> Table:
    """Return a row for each instance, and one row for each elastic role with the values of its own job."""
    jobs = {role.name: role for role in roles}
    rows = tuple(row for role in role_plans(plan) for row in _rows(record, role, jobs))
    return Table(columns=_COLUMNS, rows=rows, empty="no instances")


def _rows(record: JobRecord, role: RolePlan, jobs: Mapping[str, RoleDocument]) -> Iterator[Row]:
    if role.elastic:
        yield _elastic(record, role, jobs.get(role.name))
        return
    for one in instances_of(record, role):
        cells = (role.name, str(one.index), one.state, str(one.group), str(one.life or "-"), str(one.restarts), "-")
        yield Row(cells=cells, mood=one.mood, continues=one.index > 0)


def _elastic(record: JobRecord, role: RolePlan, job: RoleDocument | None) -> Row:
    if job is None:
        state, mood = ("starting", Mood.BUSY) if record.phase is Phase.RUNNING else (ENDED.get(record.phase, "-"), Mood.QUIET)
        return Row(cells=(role.name, counted(role.total, "worker"), state, "-", "-", "-", "-"), mood=mood)
    own, status, step = job.record, job.status, _step(job)
    if own.phase is Phase.RUNNING and status is not None:
        state = f"{len(status.world)} of {job.plan.max_nodes} nodes"
        mood = Mood.GOOD if len(status.world) >= job.plan.min_nodes else Mood.BUSY
    else:
        state = own.phase.value or "Submitted"
        mood = Mood.BAD if own.phase is Phase.FAILED else Mood.QUIET
    faults = sum(map(is_fault, own.incidents)) + sum(folded.count for folded in own.folded if is_fault(folded))
    workers = counted(job.plan.max_nodes * job.plan.nproc_per_node, "worker")
    cells = (role.name, workers, state, "-", str(own.attempt), str(faults), "-" if step is None else str(step))
    return Row(cells=cells, mood=mood)


def _step(job: RoleDocument) -> int | None:
    status = job.status
    return job.record.progress.step if status is None or status.progress.step is None else status.progress.step


def _role_figures(record: JobRecord, plan: Plan, jobs: Iterable[RoleDocument] = ()) -> tuple[Fact, ...]:
    """Return the short values of a job with several roles; nodes and step are those of its elastic roles."""
    own = tuple(jobs)
    worlds = [(job.status, job.plan) for job in own if job.status is not None]
    steps = [step for job in own if (step := _step(job)) is not None]
    conductor, roles = record.conductor, role_plans(plan)
    restarts = 0 if conductor is None else sum(sum(role.restarts) for role in conductor.roles)
    attempts = record.attempt + plan.budgets.retry_limit - record.retries
    figures = {
        "attempt": f"{record.attempt} of {max(attempts, record.attempt)}" if record.attempt else "-",
        "nodes": f"{sum(len(s.world) for s, _ in worlds)} of {sum(p.max_nodes for _, p in worlds)}" if worlds else "-",
        "roles": str(len(roles)),
        "instances": str(sum(role.total for role in roles)),
        "step": str(max(steps)) if steps else "-",
        "restarts": str(restarts),
        "resets": f"{record.retries} of {plan.budgets.retry_limit}",
    }
    return tuple(Fact(label=label, text=text) for label, text in figures.items())


def _roles_summary(record: JobRecord) -> str:
    """Return a phrase that explains the phase of a job with several roles."""
    ready = record.condition(ConditionType.PODS_READY)
    return {
        Phase.EMPTY: "waiting for a supervisor",
        Phase.SUSPENDED: "until resumed",
        Phase.SUSPENDING: "stopping its instances",
        Phase.RESUMING: "starting its roles",
        Phase.RUNNING: "all instances run" if ready else "some instances are starting",
        Phase.RESETTING: f"cleaning up attempt {record.attempt}",
        Phase.SUCCEEDED: "all drivers succeeded" if record.released else "all drivers succeeded; stopping the other roles",
        Phase.FAILED: "" if record.released else "stopping its instances",
        Phase.TERMINATING: "being deleted",
    }[record.phase]
