"""A job with several roles as the page has to tell of it: one rank of its trainer and one rollout were killed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rallypoint.backends.contract import LogLine, Stored, Tail
from rallypoint.backends.site import Site
from rallypoint.job import load_job
from rallypoint.job.compile_roles import compile_roles
from rallypoint.report.page.roles import roles_as_of, roles_page
from rallypoint.report.page.values import Page
from rallypoint.report.roles import RoleSeen
from rallypoint.supervision.record import ConditionType, JobRecord, Phase
from rallypoint.supervision.role_records import ConductorRecord, Level, RoleRecord, Step
from rallypoint.wire.incident import Cause, Culprit, Incident, IncidentId, Rung
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import RolePlan
from tests.backends import fake
from tests.backends.fake_units import FakeUnits

__all__ = ["DOCUMENT", "RolesShelf", "conducted", "plan", "roles_running", "rollout_killed"]

DOCUMENT: dict[str, Any] = {
    "name": "nightly-rl-3f9a2c1b",
    "roles": {
        "trainer": {"entrypoint": "pkg.train:run", "nodes": 4, "nproc_per_node": 8},
        "rollout": {"launch": "simple", "entrypoint": "pkg.rollout:serve", "total": 6, "per_group": 2, "driver": False},
        "judge": {"launch": "simple", "entrypoint": "pkg.judge:run"},
    },
}


def plan() -> Plan:
    """The plan of the job."""
    return compile_roles(load_job(DOCUMENT, based=False))


def rollout_killed(at: float, healed: float | None) -> Incident:
    """One instance of a simple role, which was started again."""
    return Incident(
        id=IncidentId(attempt=1, round=0, sequence=1_000_001),
        cause=Cause.PROCESS,
        rung=Rung.RECOVER_IN_PLACE,
        reason="rollout 3 was killed by SIGKILL",
        culprit=Culprit(rank=3, signal=9, error="rollout 3 was killed by SIGKILL", at=at),
        detected_at=at,
        healed_at=healed,
        rule="instance",
    )


def conducted(record: JobRecord, *, at: float, healed: float | None, done: tuple[int, ...] = ()) -> JobRecord:
    """The record of a job whose conductor has answered that."""
    roles = (
        RoleRecord(name="trainer", incarnations=(1,), restarts=(0,)),
        RoleRecord(name="rollout", incarnations=(1, 1, 1, 2, 1, 1), restarts=(0, 1, 0)),
        RoleRecord(name="judge", incarnations=(1,), done=done, restarts=(0,)),
    )
    step = Step(level=Level.INSTANCE, role="rollout", index=3, attempt=1, reason="rollout 3 was killed by SIGKILL", at=at)
    found = ConductorRecord(roles=roles, history=(step,))
    record = dataclasses.replace(
        record, name=DOCUMENT["name"], conductor=found, slots=(), incidents=(rollout_killed(at, healed),)
    )
    later = record.last_now
    record = dataclasses.replace(record.ticked(clock=record.clock, now=at - 670), history=())
    record = record.with_history("running", "attempt 1: trainer x 1, rollout x 6, judge x 1")
    record = record.ticked(clock=record.clock, now=later)
    return record.with_condition(ConditionType.PODS_READY, "SufficientPodsReady", value=healed is not None)


def roles_running(
    begun: Callable[..., JobRecord], trained: tuple[JobRecord, object], site: Site, owner: str, *, start: float
) -> Page:
    """The page of the job while it runs; `trained` is the trainer's record and status."""
    own, status = trained
    job = conducted(begun(Phase.RUNNING, until=1180.0), at=start + 700, healed=start + 700.2, done=(0,))
    own = dataclasses.replace(own, name=f"{job.name}-trainer")
    whole = plan()
    trainer = RoleSeen(name="trainer", record=own, plan=whole, status=status)  # type: ignore[arg-type]
    now = roles_as_of(job, [trainer])
    return roles_page(job, whole, [trainer], now=now, site=site, tries={owner: 2}, label="kubernetes")


class RolesShelf(fake.FakeBackend):
    """A backend with one job and its elastic roles; each rank of any of them has written one line."""

    def __init__(self, record: JobRecord, *jobs: RoleSeen) -> None:
        super().__init__(fake.World())
        self.name, self._record = record.name, record
        # Only the job of a role that names this job as its owner is one of its roles.
        owner = f"{record.name}/1.0.1"
        self._jobs = {
            f"{record.name}-{job.name}": dataclasses.replace(job, record=dataclasses.replace(job.record, owner=owner))
            for job in jobs
        }

    async def load(self, name: str) -> Stored | None:
        if name == self.name:
            return Stored(record=self._record, plan=plan(), version="1")
        job = self._jobs.get(name)
        return None if job is None else Stored(record=job.record, plan=job.plan, version="1")

    async def written(self, name: str):
        return self._jobs[name].status if name in self._jobs else None

    status = written

    def units(self, name: str):
        return _Units(self, name)

    async def tail(self, name: str, *, lines: int, rank: int | None = None) -> Tail:
        return _line(f"{name} {rank}")


class _Units(FakeUnits):
    async def tail(self, record: JobRecord, role: RolePlan, *, lines: int, rank: int | None = None) -> Tail:
        return _line(f"{record.name} {role.name} {rank}")


def _line(text: str) -> Tail:
    return Tail(lines=(LogLine(rank=0, stream="out", text=text, cursor=""),))
