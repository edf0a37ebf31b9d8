"""Jobs in every situation, as the command line may find them. All times are on 2026-01-02 (UTC)."""

from __future__ import annotations

import dataclasses
import datetime

from rallypoint.supervision.record import Attempt, ConditionType, Holder, JobRecord, Phase, Slot
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Culprit, Incident, IncidentId, Rung
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.status import Event, JobState, JobStatus, Member, Outcome, Progress, RankStatus, Verdict

ZONE = datetime.timezone.utc
START = datetime.datetime(2026, 1, 2, 14, 0, tzinfo=ZONE).timestamp()
NOW = START + 133.0

PLAN = Plan(
    name="digits",
    role="trainer",
    digest="d1",
    min_nodes=1,
    max_nodes=2,
    nproc_per_node=2,
    entry=Entry.SCRIPT,
    entrypoint="/home/ada/train.py",
)

KILLED = Culprit(
    node=1,
    incarnation=1,
    host="ada",
    rank=3,
    local_rank=1,
    pid=4711,
    signal=9,
    error="",
    log_tail=("epoch 2", "step 138"),
    log_path="/jobs/digits/rank-3.err",
    at=START + 40,
)

RAISED = dataclasses.replace(KILLED, signal=None, exit_code=1, error="ValueError: boom")


def process_fault(*, number: int = 1, culprit: Culprit = KILLED, healed: bool = True, attempt: int = 1) -> Incident:
    """Return the loss of one worker."""
    return Incident(
        id=IncidentId(attempt=attempt, round=number, node=culprit.node, local_rank=culprit.local_rank),
        cause=Cause.PROCESS,
        rung=Rung.RESTART_WORKERS,
        reason="rank 3 (local rank 1) on node 1 (ada) was killed by SIGKILL",
        culprit=culprit,
        detected_at=START + 40,
        healed_at=START + 43.21 if healed else None,
        last_step=140,
        resumed_step=100 if healed else None,
    )


def node_fault(*, healed: bool = False) -> Incident:
    """Return the loss of one node."""
    return Incident(
        id=IncidentId(attempt=1, round=0, node=1, sequence=1),
        cause=Cause.NODE,
        rung=Rung.RECOVER,
        reason="node 1 on ada was lost",
        culprit=Culprit(node=1, incarnation=1, host="ada"),
        detected_at=START + 60,
        healed_at=START + 90 if healed else None,
    )


HOLDER = Holder(id="h1", name="rallypoint supervise", host="ada", pid=9992, heartbeat="/hearts/h1.json", since=START + 1)


def submitted() -> JobRecord:
    """Return a job that nobody has taken on."""
    return JobRecord.new(name="digits", uid="u1", digest="d1", owner="cli", now=START)


def begun(*, nodes: int = 2, phase: Phase = Phase.RUNNING) -> JobRecord:
    """Return a job in its first attempt."""
    record = dataclasses.replace(
        submitted(),
        phase=phase,
        attempt=1,
        term=1,
        slots=tuple(Slot(node=node) for node in range(nodes)),
        attempts=(Attempt(number=1, owner="cli", started_at=START),),
        clock=133.0,
        last_now=NOW,
    )
    return record.with_condition(ConditionType.RESOURCES_DEPLOYED, "Resuming", value=True)


def member(node: int, *, incarnation: int = 1, host: str = "ada", done: bool = False, size: int = 2) -> Member:
    """Return a node that takes part."""
    return Member(
        node=node,
        incarnation=incarnation,
        agent=f"agent-{node}",
        host=host,
        local_world_size=size,
        group_rank=node,
        first_rank=node * size,
        done=done,
    )


def training(*, nodes: int = 2, size: int = 2, step: int | None = 150, host: str = "ada") -> JobStatus:
    """Return the status of a world that trains."""
    return JobStatus(
        job="digits",
        uid="u1",
        fence=Fence(attempt=1, term=1, round=2),
        state=JobState.RUNNING,
        world=tuple(member(node, size=size, host=host) for node in range(nodes)),
        ranks=tuple(
            RankStatus(rank=node * size + local, node=node, local_rank=local, pid=4700 + node * size + local, step=step)
            for node in range(nodes)
            for local in range(size)
        ),
        progress=Progress(step=step, metrics={"loss": 0.31, "accuracy": 0.953125}, checkpoint="/ckpt/step-100", at=NOW - 1),
        incidents=(process_fault(),),
        events=(Event(at=START + 5, kind="round", detail="2 nodes, 4 ranks", round=1),),
    )


def over(*, outcome: Outcome, culprit: Culprit | None = None, message: str = "", released: bool = True) -> JobRecord:
    """Return a job that has ended, ten seconds ago."""
    succeeded = outcome is Outcome.SUCCEEDED
    reason = "Completed" if succeeded else "WorkersFailed"
    text = message or ("2 nodes, 4 ranks succeeded" if succeeded else "rank 3 on node 1 was killed by SIGKILL; all is spent")
    record = begun(phase=Phase.SUCCEEDED if succeeded else Phase.FAILED)
    ended = dataclasses.replace(record.attempts[0], ended_at=NOW - 10, reason=reason, message=text)
    record = dataclasses.replace(
        record,
        attempts=(ended,),
        verdict=Verdict(outcome=outcome, reason=reason, message=text, culprit=culprit),
        progress=training().progress,
        incidents=(process_fault(),),
    )
    # Its reason is that of its last change: what is not released yet was deployed last.
    reason = record.phase.value if released else "Resuming"
    return record.with_condition(ConditionType.RESOURCES_DEPLOYED, reason, value=not released)
