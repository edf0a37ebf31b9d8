"""Every clock of a supervised job: what starts it, what pauses it, what ends it, who acts on it, and which one wins.

`CLOCKS` is the table that the docs show and that `explain` speaks of; the functions below keep those clocks that can be paused
(`JobRecord.timers`). All clocks of the supervisor are read on the job's own clock: it never runs backwards, and a gap between
two turns counts as `Policy.max_gap` at the most. Those of coordinator and agents are monotonic clocks of their own machine.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rallypoint.supervision.record import JobRecord, Timer

__all__ = ["CLOCKS", "Clock", "find", "pause", "put", "run", "spent", "stop"]


@dataclass(frozen=True, kw_only=True)
class Clock:
    """One row of the table of clocks; the texts are for people."""

    name: str
    setting: str
    starts: str
    pauses: str
    ends: str
    then: str
    actor: str
    wins: str


def run(record: JobRecord, name: str, *, mark: int | None = None) -> JobRecord:
    """Return the record with a clock that runs: a new one from zero, a paused one from where it stood."""
    timer = find(record, name)
    if timer is None:
        return _with(record, Timer(name=name, since=record.clock, mark=mark))
    if timer.since is not None:
        return record
    return _with(record, dataclasses.replace(timer, since=record.clock))


def pause(record: JobRecord, name: str) -> JobRecord:
    """Return the record with a clock that stands still; one that was never started is none."""
    timer = find(record, name)
    if timer is None or timer.since is None:
        return record
    return _with(record, dataclasses.replace(timer, spent=spent(record, name), since=None))


def put(record: JobRecord, name: str, *, spent: float, since: float | None) -> JobRecord:
    """Return the record with a clock that somebody else counts."""
    timer = Timer(name=name, spent=spent, since=since)
    return record if find(record, name) == timer else _with(record, timer)


def stop(record: JobRecord, *names: str) -> JobRecord:
    """Return the record without these clocks: the next `run` begins at zero."""
    if not any(timer.name in names for timer in record.timers):
        return record
    return dataclasses.replace(record, timers=tuple(t for t in record.timers if t.name not in names))


def spent(record: JobRecord, name: str) -> float:
    """Return for how many seconds a clock has run, 0 if there is none."""
    timer = find(record, name)
    if timer is None:
        return 0.0
    return timer.spent + (0.0 if timer.since is None else record.clock - timer.since)


def find(record: JobRecord, name: str) -> Timer | None:
    """Return a clock, or None if it does not run and is not paused."""
    return next((timer for timer in record.timers if timer.name == name), None)


def _with(record: JobRecord, timer: Timer) -> JobRecord:
    others = (t for t in record.timers if t.name != timer.name)
    return dataclasses.replace(record, timers=tuple(sorted((*others, timer), key=lambda t: t.name)))


CLOCKS: tuple[Clock, ...] = (
    Clock(
        name="admission",
        setting="fault_tolerance.admission_grace_period",
        starts="the attempt is deployed, or the job is no longer ready",
        pauses="while a node waits for quota",
        ends="enough pods exist (all of them in `appwrapper`, MIN in the others), or the job is ready",
        then="the job is unhealthy (InsufficientPodsReady, or CreateFailed); the failure clock starts",
        actor="supervisor",
        wins="replaces warm-up while too few pods exist",
    ),
    Clock(
        name="warm-up",
        setting="fault_tolerance.warmup_grace_period",
        starts="with admission",
        pauses="while a node waits for quota; in `ladder` and `mindcluster` also while fewer than MIN nodes run",
        ends="the job is ready",
        then="the job is unhealthy (InsufficientPodsReady); the failure clock starts",
        actor="supervisor",
        wins="replaces admission when enough pods exist",
    ),
    Clock(
        name="failure",
        setting="fault_tolerance.failure_grace_period",
        starts="the job becomes unhealthy; another reason is another incident and starts it anew",
        pauses="never",
        ends="the fault has cleared",
        then="a new attempt starts; the job fails if no retry is left or the exit code is terminal",
        actor="supervisor",
        wins="has priority over admission and warm-up; a failed or missing component and a verdict do not wait for it",
    ),
    Clock(
        name="pending",
        setting="fault_tolerance.pending_timeout",
        starts="a node exists and does not run; with pending_fail_strategy 0 and 1 only while fewer than MIN run",
        pauses="never; a node that waits for quota has no such clock",
        ends="the nodes run (1: at least MIN of them)",
        then="with 1 and 2 the job fails (PendingTimeout); with 0 one warning is logged per attempt; with -1 nothing happens",
        actor="supervisor",
        wins="has priority over warm-up while fewer than MIN run (`ladder`, `mindcluster`); `appwrapper` has no such clock",
    ),
    Clock(
        name="pending-rounds",
        setting="mindcluster.pending_rounds, .pending_interval",
        starts="a pod was rescheduled alone",
        pauses="while process-recover-enable is on",
        ends="its replacement runs",
        then="all pods are rescheduled in a new attempt",
        actor="supervisor (`mindcluster` only)",
        wins="has priority over pending, which is longer",
    ),
    Clock(
        name="wait-reschedule",
        setting="annotation wait-reschedule-timeout",
        starts="a node is faulty and process-level recovery handles it",
        pauses="never",
        ends="no node is faulty or missing any more",
        then="elastic-training continues without the node, if configured; else recovery pauses and the scheduler decides",
        actor="supervisor (`mindcluster` only)",
        wins="has priority over pending-rounds, which count only after it",
    ),
    Clock(
        name="last-checkpoint",
        setting="30 s, and 600 s once writing has started",
        starts="a node is lost, the other nodes are about to be deleted, and the job allows `dump`",
        pauses="never",
        ends="the checkpoint is written, or no snapshot exists",
        then="the remaining nodes are deleted without a checkpoint",
        actor="supervisor (`mindcluster` only)",
        wins="has priority over failure and job-level rescheduling",
    ),
    Clock(
        name="replace-delay",
        setting="recovery.replace_delay",
        starts="a node is lost",
        pauses="never",
        ends="the node is replaced",
        then="the next incarnation of the slot is created",
        actor="supervisor",
        wins="the failure clock, if fewer than MIN nodes can return",
    ),
    Clock(
        name="retry-pause",
        setting="fault_tolerance.retry_pause_period",
        starts="everything of the failed attempt is gone",
        pauses="never",
        ends="the job is suspended or deleted",
        then="the next attempt is deployed",
        actor="supervisor",
        wins="no other clock runs in this time",
    ),
    Clock(
        name="forceful-deletion",
        setting="fault_tolerance.forceful_deletion_grace_period",
        starts="a deletion starts (reset, suspension, failure, success, delete)",
        pauses="never",
        ends="no pods are left",
        then="the remaining objects are deleted with force, repeatedly until they are gone",
        actor="supervisor",
        wins="has priority over all clocks: a deletion always makes progress",
    ),
    Clock(
        name="deletion-on-failure",
        setting="fault_tolerance.deletion_on_failure_grace_period",
        starts="the job has failed",
        pauses="never",
        ends="the job is suspended or deleted",
        then="the deletion starts, and with it the forceful-deletion clock",
        actor="supervisor",
        wins="has priority over deletion in this case",
    ),
    Clock(
        name="success-ttl",
        setting="fault_tolerance.success_ttl",
        starts="the job has succeeded",
        pauses="never",
        ends="nothing is left",
        then="the remaining objects are deleted",
        actor="supervisor",
        wins="only the exit clock can run at the same time",
    ),
    Clock(
        name="exit",
        setting="recovery.stop_grace_period, and 5 s",
        starts="the job has succeeded",
        pauses="never",
        ends="the agents of the job have exited",
        then="agents that still run are deleted",
        actor="supervisor",
        wins="has priority over success-ttl for nodes that still run",
    ),
    Clock(
        name="healthy-progress",
        setting="recovery.refill.*.healthy_for",
        starts="the job is ready and healthy",
        pauses="never; it starts again when the job is not ready or not healthy",
        ends="with the refill",
        then="earlier faults no longer count against the budget if a newer step was reported since then",
        actor="supervisor (node, reset) and coordinator (process, hang)",
        wins="it affects no other clock",
    ),
    Clock(
        name="join",
        setting="rendezvous.join_timeout",
        starts="started agents request a round",
        pauses="while members of the last round are still stopping",
        ends="MIN nodes have joined",
        then="verdict RendezvousTimeout: the attempt has failed",
        actor="coordinator",
        wins="has priority over last-call; nodes that are still pending do not start it",
    ),
    Clock(
        name="last-call",
        setting="rendezvous.last_call_timeout",
        starts="MIN nodes have joined the first round",
        pauses="never",
        ends="MAX nodes have joined",
        then="the round starts with the nodes that have joined",
        actor="coordinator",
        wins="it starts when join ends",
    ),
    Clock(
        name="node-lease",
        setting="health.node_lease",
        starts="a report of an agent was received",
        pauses="never",
        ends="its next report is received",
        then="the node is lost: the others continue without it",
        actor="coordinator",
        wins="the end of its last connection has the same effect at once",
    ),
    Clock(
        name="lost-machine",
        setting="12 s; health.node_unreachable where machines may not be looked at",
        starts="the kubelet of a machine renewed its Lease (Kubernetes)",
        pauses="never",
        ends="the kubelet renews the Lease, the coordinator receives a report of the agent, or the pod answers",
        then="the pod is lost: a node is replaced, the next coordinator begins; a pod that is being ended is removed by force",
        actor="supervisor",
        wins="has priority over health.node_unreachable, after which Kubernetes evicts the pods of a machine that is not ready",
    ),
    Clock(
        name="hang",
        setting="health.hang_downtime",
        starts="a rank of the round has made progress",
        pauses="while an agent with running workers sends no report; a gap counts for at most a tenth of the time",
        ends="any rank makes progress",
        then="the action of `health.hang_detection`: a log line, an incident, or a restart of the workers",
        actor="coordinator",
        wins="before the first progress of a round, warmup is the limit if it is longer; positive evidence ends it earlier",
    ),
    Clock(
        name="fence",
        setting="rendezvous.fence_timeout",
        starts="an agent cannot reach a coordinator",
        pauses="never",
        ends="it reaches a coordinator",
        then="it stops its workers: another world may be training by then; a world without a common member waits until then",
        actor="agent; the coordinator if the end of the last world is unknown",
        wins="has priority over lease, if that is longer",
    ),
    Clock(
        name="stop-grace",
        setting="recovery.stop_grace_period",
        starts="workers received SIGTERM",
        pauses="never",
        ends="they have exited",
        then="they are killed with their process groups",
        actor="agent",
        wins="a second failed worker does not extend it",
    ),
    Clock(
        name="lease",
        setting="fault_tolerance.lease",
        starts="the heartbeat of the job's supervisor stops",
        pauses="a gap in time (a suspended machine) counts for at most half a minute",
        ends="the heartbeat changes, or another supervisor takes over",
        then="the orphan policy: `continue` records it, `stop` saves a checkpoint and ends the job",
        actor="coordinator; the agents if it is lost too",
        wins="a shorter outage has no effect",
    ),
)
