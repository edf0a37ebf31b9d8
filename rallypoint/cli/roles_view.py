"""Table of a job with several roles: a row for each instance of a simple role, and one for each elastic role. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rallypoint.cli.document import RoleDocument
from rallypoint.cli.values import Column, Fact, Row, Table
from rallypoint.report.format import counted
from rallypoint.report.incidents import is_fault
from rallypoint.report.model import Mood
from rallypoint.report.roles import ENDED, instances_of
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import RolePlan, role_plans

__all__ = ["role_figures", "role_table", "roles_summary"]

_COLUMNS = (
    Column(title="ROLE", repeats=True, shrinks=True),
    Column(title="INSTANCE", right=True),
    Column(title="STATE", colored=True),
    Column(title="GROUP", right=True),
    Column(title="LIFE", right=True),
    Column(title="RESTARTS", right=True),
    Column(title="STEP", right=True),
)


def role_table(record: JobRecord, plan: Plan, roles: Iterable[RoleDocument]) -> Table:
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


def role_figures(record: JobRecord, plan: Plan, jobs: Iterable[RoleDocument] = ()) -> tuple[Fact, ...]:
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


def roles_summary(record: JobRecord) -> str:
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
