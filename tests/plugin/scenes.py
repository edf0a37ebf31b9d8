"""Jobs as the page has to tell of them: records and statuses of every state, and the page that each is."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rallypoint.agent.rendezvous.progress import sampled
from rallypoint.backends.site import Site
from rallypoint.report.headline import no_job
from rallypoint.report.page.values import Page
from rallypoint.report.page.view import as_of, page_of, plain_page
from rallypoint.supervision.record import Attempt, ConditionType, Holder, JobRecord, Phase, Slot
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Answer, Cause, Culprit, FaultKind, Incident, IncidentId, Rung
from rallypoint.wire.status import Event, JobState, JobStatus, Member, Outcome, Progress, RankStatus, Sample, Verdict
from tests.plugin.role_scenes import roles_running

__all__ = ["OWNER", "SCENES", "START", "Scene", "failed", "page", "recovered", "running", "submitted"]

START = datetime.datetime(2026, 3, 14, 9, 26, 0, tzinfo=datetime.timezone.utc).timestamp()
OWNER = "0195c8d2-0000-7000-8000-000000000001"
SITE = Site(kind="kubernetes", namespace="training")
PLACE = "kubernetes"
HOSTS = ("gpu-04", "gpu-07", "gpu-11", "gpu-12")
PER_NODE = 8

Scene = tuple[JobRecord, JobStatus | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stretch:
    """A round: it lasts from `start` to `end` (seconds after the beginning) and trains from a step on, so many a second."""

    number: int
    start: float
    end: float
    step: int
    pace: float
    nodes: tuple[int, ...] = (0, 1, 2, 3)

    def samples(self, known: tuple[Sample, ...]) -> tuple[Sample, ...]:
        size = PER_NODE * len(self.nodes)
        known = sampled(known, Sample(at=START + self.start, round=self.number, world_size=size))
        at = self.start + 2.0
        while at < self.end:
            step = self.step + int((at - self.start - 1.5) * self.pace * (1 + 0.004 * math.sin(at / 37)))
            loss = 2.6 * math.exp(-step / 900) + 0.31 + 0.03 * math.sin(step / 5) * math.exp(-step / 2500)
            metrics = {"loss": float(f"{loss:.6g}"), "lr": float(f"{3e-4 * min(1, step / 200):.6g}")}
            known = sampled(known, Sample(at=START + at, round=self.number, world_size=size, step=step, metrics=metrics))
            at += 1.0
        return known


def member(node: int, place: int, *, incarnation: int = 1, done: bool = False, host: str = "") -> Member:
    return Member(
        node=node,
        incarnation=incarnation,
        agent=f"agent-{node}.{incarnation}",
        host=host or HOSTS[node],
        local_world_size=PER_NODE,
        group_rank=place,
        first_rank=place * PER_NODE,
        done=done,
    )


def submitted() -> JobRecord:
    new = JobRecord.new(name="nightly-llm-3f9a2c1b", uid="uid-1", digest="d1", owner=OWNER, now=START - 42)
    return dataclasses.replace(new, holder=Holder(id="h", name=f"airflow task {OWNER}", host="airflow-triggerer-0", pid=7))


def begun(phase: Phase, *, until: float, incidents: tuple[Incident, ...] = (), **changes: Any) -> JobRecord:
    record = submitted().ticked(clock=0.0, now=START).with_history("resuming", "4 nodes are created")
    record = record.ticked(clock=31.0, now=START + 31).with_history("running", "all 4 nodes are there")
    record = dataclasses.replace(
        record,
        phase=phase,
        attempt=1,
        term=1,
        slots=tuple(Slot(node=node) for node in range(4)),
        attempts=(Attempt(number=1, owner=OWNER, started_at=START, ready_at=START + 31),),
        incidents=incidents,
    )
    return dataclasses.replace(record.ticked(clock=until, now=START + until), **changes)


def ranks(world: tuple[Member, ...], step: int, stopped: Mapping[int, int]) -> tuple[RankStatus, ...]:
    """All of them at `step`, some one step behind as it is when agents do not speak at once, and some at where they stopped."""
    return tuple(
        RankStatus(
            rank=rank,
            node=m.node,
            local_rank=rank - m.first_rank,
            pid=4100 + rank,
            step=stopped.get(rank, step - (1 if rank % 7 == 3 else 0)),
        )
        for m in world
        for rank in range(m.first_rank, m.first_rank + m.local_world_size)
    )


def told(
    *stretches: Stretch,
    state: JobState = JobState.RUNNING,
    until: float,
    events: tuple[Event, ...] = (),
    stopped: Mapping[int, int] = MappingProxyType({}),
    **changes: Any,
) -> JobStatus:
    last = stretches[-1]
    samples: tuple[Sample, ...] = ()
    for stretch in stretches:
        samples = stretch.samples(samples)
    newest = samples[-1]
    rounds = tuple(
        Event(
            at=START + s.start,
            kind="round",
            detail=f"round {s.number}: {len(s.nodes)} nodes, {PER_NODE * len(s.nodes)} ranks",
            round=s.number,
        )
        for s in stretches
    )
    first = Event(at=START + stretches[0].start + 4.2, kind="first-step", detail="step 1, from 0", round=1)
    world = tuple(member(node, place) for place, node in enumerate(last.nodes))
    status = JobStatus(
        job="nightly-llm-3f9a2c1b",
        uid="uid-1",
        fence=Fence(attempt=1, term=1, round=last.number),
        state=state,
        world=world,
        ranks=ranks(world, newest.step or 0, stopped),
        progress=Progress(
            step=newest.step,
            metrics=newest.metrics,
            checkpoint=f"/runs/nightly/step-{(newest.step or 0) // 100 * 100}",
            resumed_from=0,
            at=newest.at,
        ),
        events=tuple(sorted((*rounds, first, *events), key=lambda event: event.at)),
        samples=samples,
        updated_at=START + until,
    )
    return dataclasses.replace(status, **changes)


def killed(*, at: float, healed: float | None, step: int, resumed: int | None, number: int = 1) -> Incident:
    """A worker that ran out of memory and was replaced."""
    culprit = Culprit(
        node=1,
        incarnation=1,
        host="gpu-07",
        rank=11,
        local_rank=3,
        pid=4111,
        signal=9,
        error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB",
        log_tail=("step 512 loss 1.7712", "step 513 loss 1.7698", "torch.OutOfMemoryError: CUDA out of memory."),
        log_path="/var/log/rallypoint/round-1/rank-11.err",
        at=START + at,
        kind=FaultKind.OOM,
    )
    return Incident(
        id=IncidentId(attempt=1, round=number, node=1, local_rank=3),
        cause=Cause.PROCESS,
        rung=Rung.RESTART_WORKERS,
        reason="rank 11 (local rank 3) on node 1 (gpu-07) was killed by SIGKILL",
        culprit=culprit,
        detected_at=START + at,
        healed_at=None if healed is None else START + healed,
        last_step=step,
        resumed_step=resumed,
        kind=FaultKind.OOM,
        answer=Answer.RETRY_HERE,
        rule="table, row oom",
    )


def lost(*, at: float, healed: float | None, step: int, resumed: int | None) -> Incident:
    """A node that was lost and replaced."""
    return Incident(
        id=IncidentId(attempt=1, round=0, node=2, sequence=1),
        cause=Cause.NODE,
        rung=Rung.ELASTIC_TRAINING,
        reason="node 2 on gpu-11 sent no report within its lease",
        culprit=Culprit(node=2, incarnation=1, host="gpu-11", at=START + at),
        detected_at=START + at,
        healed_at=None if healed is None else START + healed,
        last_step=step,
        resumed_step=resumed,
        kind=FaultKind.NODE_LOST,
        answer=Answer.RETRY_ELSEWHERE,
        rule="table, row node-lost",
    )


#: Its script raised.
RAISED = Culprit(
    node=3,
    incarnation=1,
    host="gpu-12",
    rank=27,
    local_rank=3,
    pid=4127,
    exit_code=1,
    error="FloatingPointError: loss is not finite at step 1203",
    log_tail=(
        "step 1201 loss 2.0417",
        "step 1202 loss 31.7731",
        "Traceback (most recent call last):",
        '  File "/opt/train.py", line 214, in <module>',
        "    main()",
        '  File "/opt/train.py", line 187, in main',
        "    loss = checked(criterion(model(batch), target), step)",
        '  File "/opt/train.py", line 61, in checked',
        '    raise FloatingPointError(f"loss is not finite at step {step}")',
        "FloatingPointError: loss is not finite at step 1203",
    ),
    log_path="/var/log/rallypoint/round-2/rank-27.err",
    at=START + 640,
    kind=FaultKind.APPLICATION_ERROR,
)


def running() -> Scene:
    """Nothing has happened to it."""
    until = 560.0
    status = told(Stretch(number=1, start=33, end=until, step=0, pace=2.9), until=until)
    return begun(Phase.RUNNING, until=until, progress=status.progress), status


def recovered() -> Scene:
    """A worker and a node were lost; it shrank, grew again, and trains."""
    until = 1180.0
    status = told(
        Stretch(number=1, start=33, end=214, step=0, pace=2.9),
        Stretch(number=2, start=221, end=602, step=500, pace=2.9),
        Stretch(number=3, start=611, end=820, step=1550, pace=2.2, nodes=(0, 1, 3)),
        Stretch(number=4, start=826, end=until, step=2000, pace=2.9),
        until=until,
        events=(Event(at=START + 602, kind="node-lost", detail="node 2 on gpu-11 was lost", round=2),),
    )
    incidents = (
        killed(at=214, healed=223.4, step=523, resumed=500),
        lost(at=602, healed=613.2, step=1601, resumed=1550),
    )
    status = dataclasses.replace(status, incidents=incidents)
    return begun(Phase.RUNNING, until=until, incidents=incidents, progress=status.progress), status


def failed() -> Scene:
    """It got over one fault, and the script raised in every try after that."""
    until = 690.0
    first = killed(at=214, healed=223.4, step=523, resumed=500)
    last = dataclasses.replace(
        first,
        id=IncidentId(attempt=1, round=2, node=3, local_rank=3),
        reason="rank 27 (local rank 3) on node 3 (gpu-12) exited with code 1: FloatingPointError: loss is not finite",
        culprit=RAISED,
        detected_at=START + 640,
        healed_at=None,
        last_step=1203,
        resumed_step=None,
        kind=FaultKind.APPLICATION_ERROR,
        answer=Answer.FAIL_NOW,
        rule="table, row application-error",
        rung=Rung.EXIT,
    )
    verdict = Verdict(
        outcome=Outcome.FAILED,
        reason="WorkersFailed",
        message="rank 27 on node 3 exited with code 1, and trying again cannot help",
        culprit=RAISED,
    )
    status = told(
        Stretch(number=1, start=33, end=214, step=0, pace=2.9),
        Stretch(number=2, start=221, end=640, step=500, pace=1.7),
        state=JobState.FAILED,
        until=until,
        stopped={19: 1104},
        verdict=verdict,
        incidents=(first, last),
    )
    record = begun(Phase.FAILED, until=641.0, incidents=(first, last), progress=status.progress, verdict=verdict)
    ended = dataclasses.replace(
        record.attempts[0], ended_at=START + 641, reason="WorkersFailed", message=verdict.message, progress=status.progress
    )
    record = dataclasses.replace(record, attempts=(ended,)).with_history("failed", verdict.message)
    return record.with_condition(ConditionType.RESOURCES_DEPLOYED, "Failed", value=False), status


def page(scene: Scene) -> Page:
    record, status = scene
    return page_of(record, status, now=as_of(record, status), site=SITE, tries={OWNER: 2}, label=PLACE)


#: The pages that are looked at in a browser; what has no page is refused by the API server.
SCENES: dict[str, Callable[[], Page | None]] = {
    "running": lambda: page(running()),
    "recovered": lambda: page(recovered()),
    "failed": lambda: page(failed()),
    "roles": lambda: roles_running(begun, recovered(), SITE, OWNER, start=START),
    "no-data": lambda: plain_page(no_job()),
    "no-permission": lambda: None,
}
