"""Records and statuses as tests need them."""

from __future__ import annotations

import dataclasses

from rallypoint.supervision.record import Attempt, ConditionType, JobRecord, Phase
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Culprit, Incident, IncidentId, Rung
from rallypoint.wire.status import Event, JobState, JobStatus, Member, Outcome, Progress, Verdict

__all__ = ["CULPRIT", "failed", "incident", "member", "record", "status", "succeeded"]

CULPRIT = Culprit(
    node=1,
    host="host-b",
    rank=3,
    local_rank=1,
    pid=42,
    exit_code=1,
    error="ValueError: bad batch",
    log_tail=("line 1", "line 2"),
)


def record(phase: Phase = Phase.RUNNING, **changes) -> JobRecord:
    """A job in its first attempt."""
    new = JobRecord.new(name="digits", uid="uid-1", digest="d1", owner="try-1", now=100.0)
    first = Attempt(number=1, owner="try-1", started_at=101.0)
    return dataclasses.replace(new, phase=phase, attempt=1, term=1, attempts=(first,), **changes)


def succeeded(**changes) -> JobRecord:
    """A job that trained 300 steps through one fault, and was released."""
    verdict = Verdict(outcome=Outcome.SUCCEEDED, reason="Completed", message="all workers ended with 0")
    progress = Progress(step=300, metrics={"accuracy": 0.97}, checkpoint="/ckpt/step-300", resumed_from=140)
    done = record(Phase.SUCCEEDED, verdict=verdict, progress=progress, incidents=(incident(),), **changes)
    ended = dataclasses.replace(done.attempts[0], ended_at=121.5)
    return dataclasses.replace(done, attempts=(ended,)).with_condition(
        ConditionType.RESOURCES_DEPLOYED, "Succeeded", value=False
    )


def failed(**changes) -> JobRecord:
    """A job that gave up because of rank 3, and was released."""
    message = "rank 3 on node 1 exited with code 1 and no restart is left"
    verdict = Verdict(outcome=Outcome.FAILED, reason="WorkersFailed", message=message, culprit=CULPRIT)
    done = record(Phase.FAILED, verdict=verdict, incidents=(incident(),), **changes)
    return done.with_condition(ConditionType.RESOURCES_DEPLOYED, "Failed", value=False)


def incident(number: int = 1, *, rung: Rung = Rung.RESTART_WORKERS, cause: Cause = Cause.PROCESS) -> Incident:
    """A worker that was lost in round `number`."""
    return Incident(
        id=IncidentId(attempt=1, round=number, node=1, local_rank=1),
        cause=cause,
        rung=rung,
        reason="rank 3 on node 1 was killed by SIGKILL",
        culprit=CULPRIT,
        detected_at=110.0,
        healed_at=112.0,
        last_step=152,
        resumed_step=140,
    )


def member(node: int) -> Member:
    """A node of two ranks that takes part."""
    return Member(
        node=node, incarnation=1, agent=f"a{node}", host="h", local_world_size=2, group_rank=node, first_rank=2 * node
    )


def status(
    *nodes: int, state: JobState = JobState.RUNNING, attempt: int = 1, uid: str = "uid-1", step: int | None = 150
) -> JobStatus:
    """What the coordinator says while `nodes` train."""
    return JobStatus(
        job="digits",
        uid=uid,
        fence=Fence(attempt=attempt, term=1, round=1),
        state=state,
        world=tuple(map(member, nodes)),
        progress=Progress(step=step, metrics={"loss": 0.31}),
        events=(Event(at=102.0, kind="round", detail="round 1: 2 nodes, 4 ranks", round=1),),
    )
