"""Every clock of a supervised job: what starts it, what pauses it, what ends it, who acts on it, and which one wins.

`CLOCKS` is shown by docs/reference/timers.md and by `explain`; the functions below keep those clocks that can be paused
(`JobRecord.timers`). All clocks of the supervisor are read on the job's own clock: it never runs backwards, and a gap between
two turns counts as `Policy.max_gap` at the most. Those of coordinator and agents are monotonic clocks of their own machine.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rallypoint.supervision.record import JobRecord, Timer

__all__ = ["CLOCKS", "Clock", "Deadline", "find", "pause", "put", "run", "spent", "stop"]


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
        starts="the supervisor deploys an attempt, or a job that was ready is no longer ready",
        pauses="while a node of the job waits for quota",
        ends="enough pods exist (profile `appwrapper`: all pods; other profiles: the minimum number), or the job is ready",
        then="the job is unhealthy (reason InsufficientPodsReady or CreateFailed), and the failure timer starts",
        actor="the supervisor",
        wins=(
            "the supervisor checks this timer only while too few pods exist; once enough pods exist, it checks"
            " the warm-up timer instead"
        ),
    ),
    Clock(
        name="warm-up",
        setting="fault_tolerance.warmup_grace_period",
        starts="the admission timer starts",
        pauses=(
            "while a node of the job waits for quota; with the profiles `ladder` and `mindcluster` also while"
            " fewer than the minimum number of nodes run"
        ),
        ends="the job is ready",
        then="the job is unhealthy (reason InsufficientPodsReady), and the failure timer starts",
        actor="the supervisor",
        wins=(
            "the supervisor checks this timer only while enough pods exist; before that, it checks the admission timer instead"
        ),
    ),
    Clock(
        name="failure",
        setting="fault_tolerance.failure_grace_period",
        starts="the job becomes unhealthy, or an unhealthy job gets a second fault with another reason",
        pauses="never",
        ends="the job is healthy again",
        then="the job is reset; if no reset is left, or the exit code is in `terminal_exit_codes`, the job fails",
        actor="the supervisor",
        wins="while this timer runs, the supervisor ignores the admission and warm-up timers",
    ),
    Clock(
        name="pending",
        setting="fault_tolerance.pending_timeout",
        starts=(
            "a node has been created but does not run yet; with `pending_fail_strategy: 1`, only if fewer than"
            " the minimum number of nodes run"
        ),
        pauses="never",
        ends="all nodes run; with `pending_fail_strategy: 1`, the minimum number of nodes runs",
        then=(
            "with `pending_fail_strategy` 1 or 2, the job fails; with 0, the supervisor records a warning; with"
            " -1, nothing happens"
        ),
        actor="the supervisor",
        wins="none; the profile `appwrapper` does not use the pending timer",
    ),
    Clock(
        name="pending-rounds",
        setting="mindcluster.pending_rounds times mindcluster.pending_interval",
        starts="the supervisor replaces only the faulty pods, while the other pods keep running",
        pauses="while the label `process-recover-enable` is `on`",
        ends="the replacement pods run",
        then="the supervisor deletes all pods and creates them again in a new attempt",
        actor="the supervisor (only with the profile `mindcluster`)",
        wins="with the default settings, this timer expires before the pending timer",
    ),
    Clock(
        name="wait-reschedule",
        setting="annotation wait-reschedule-timeout of the job",
        starts="a node is faulty, the label `process-recover-enable` is `on`, and the job has a `recover-strategy`",
        pauses="never",
        ends="no node is faulty or missing",
        then=(
            "with the recovery strategy `elastic-training`, the job continues without the node; otherwise the"
            " supervisor deletes and recreates pods by MindCluster's rules"
        ),
        actor="the supervisor (only with the profile `mindcluster`)",
        wins="the pending-rounds timer starts only when this timer has expired",
    ),
    Clock(
        name="last-checkpoint",
        setting="none (fixed: 30 s until the agents start to write the checkpoint, then 630 s)",
        starts="a node is lost, the supervisor must delete the other nodes, and the job's recovery strategies include `dump`",
        pauses="never",
        ends="the last checkpoint is written, or the nodes have no snapshot to write",
        then="the supervisor deletes the remaining nodes without a checkpoint",
        actor="the supervisor (only with the profile `mindcluster`)",
        wins="while this timer runs, the failure timer does not start, and the supervisor deletes no node",
    ),
    Clock(
        name="node-group",
        setting="node_group_failover.timeout",
        starts="the replacement of a node has been created but does not run yet",
        pauses="never",
        ends="the replacement runs",
        then="the supervisor replaces all nodes on machines with the same value of `node_group_failover.label`",
        actor="the supervisor",
        wins="none",
    ),
    Clock(
        name="replace-delay",
        setting="recovery.replace_delay",
        starts="a node is lost",
        pauses="never",
        ends="the node is replaced",
        then="the supervisor creates the node again",
        actor="the supervisor",
        wins="if fewer than the minimum number of nodes run and cannot be replaced, the failure timer has priority",
    ),
    Clock(
        name="retry-pause",
        setting="fault_tolerance.retry_pause_period",
        starts="all objects of the failed attempt are deleted",
        pauses="never",
        ends="the job is suspended or deleted",
        then="the supervisor deploys the next attempt",
        actor="the supervisor",
        wins="while this timer runs, no other timer runs",
    ),
    Clock(
        name="forceful-deletion",
        setting="fault_tolerance.forceful_deletion_grace_period",
        starts="the supervisor starts to delete the job's objects (reset, suspension, failure, success or delete request)",
        pauses="never",
        ends="no pod of the job is left",
        then="the supervisor deletes the job's remaining objects by force, without a grace period",
        actor="the supervisor",
        wins="while this timer runs, the supervisor ignores all other timers",
    ),
    Clock(
        name="deletion-on-failure",
        setting="fault_tolerance.deletion_on_failure_grace_period",
        starts="the job has failed",
        pauses="never",
        ends="the job is suspended or deleted",
        then="the supervisor deletes the job's objects",
        actor="the supervisor",
        wins="the forceful-deletion timer starts only when this timer has expired",
    ),
    Clock(
        name="success-ttl",
        setting="fault_tolerance.success_ttl",
        starts="the job has succeeded",
        pauses="never",
        ends="no object of the job is left",
        then="the supervisor deletes the job's remaining objects",
        actor="the supervisor",
        wins="only the exit timer can run at the same time",
    ),
    Clock(
        name="exit",
        setting="recovery.stop_grace_period plus 5 s",
        starts="the job has succeeded",
        pauses="never",
        ends="the agents of the job have exited",
        then="the supervisor deletes the agents that still run",
        actor="the supervisor",
        wins="this timer can run at the same time as the success-ttl timer",
    ),
    Clock(
        name="healthy-progress",
        setting="recovery.refill.*.healthy_for (* is process, node, hang or reset)",
        starts="the job is ready and healthy",
        pauses="while the job is not ready or not healthy; starts again from zero after a fault",
        ends="the budget counts no fault any more",
        then="earlier faults no longer count against the budget",
        actor="the supervisor for the node and reset budgets; the coordinator for the process and hang budgets",
        wins="none; this timer advances only while the script reports new training steps",
    ),
    Clock(
        name="join",
        setting="rendezvous.join_timeout",
        starts="an agent runs and waits for a rendezvous round",
        pauses="while nodes of the previous round still stop their workers",
        ends="the minimum number of nodes has joined",
        then="the attempt fails (RendezvousTimeout)",
        actor="the coordinator",
        wins="the last-call timer starts when this timer is cancelled",
    ),
    Clock(
        name="last-call",
        setting="rendezvous.last_call_timeout",
        starts="the minimum number of nodes has joined the first rendezvous round",
        pauses="never",
        ends="the maximum number of nodes has joined",
        then="the round starts with the nodes that have joined",
        actor="the coordinator",
        wins="this timer starts only when the join timer is cancelled",
    ),
    Clock(
        name="node-lease",
        setting="health.node_lease",
        starts="the coordinator receives a report of an agent",
        pauses="never",
        ends="the coordinator receives the next report of the same agent",
        then="the node of the agent counts as lost, and the other nodes continue without it",
        actor="the coordinator",
        wins="if an agent's connection stays closed for 20 ms, its node counts as lost before this timer expires",
    ),
    Clock(
        name="lost-machine",
        setting="12 s; health.node_unreachable if the supervisor has no permission to read Leases of Kubernetes nodes",
        starts="the kubelet renews the Lease of its Kubernetes node",
        pauses="never",
        ends="the kubelet renews the Lease again, the agent reports to the coordinator, or the pod answers the supervisor",
        then="the pod counts as lost and is replaced",
        actor="the supervisor",
        wins="none",
    ),
    Clock(
        name="hang",
        setting="health.hang_downtime",
        starts="a rank makes progress",
        pauses="while an agent whose workers run sends no report",
        ends="any rank of the job makes progress",
        then="the action of `health.hang_detection`: a log line, an incident, or a restart of the workers",
        actor="the coordinator",
        wins=(
            "before the first progress in a round, this timer runs at least for"
            " `fault_tolerance.warmup_grace_period`; proof that the ranks cannot continue takes effect before this"
            " timer expires"
        ),
    ),
    Clock(
        name="fence-timeout",
        setting="rendezvous.fence_timeout",
        starts="an agent loses its connection to the coordinator",
        pauses="never",
        ends="the agent reaches a coordinator again",
        then="the agent stops its workers; afterwards, the coordinator may start a round without the unreachable nodes",
        actor="the agent and the coordinator",
        wins="this timer expires before the lease timer, unless `fault_tolerance.lease` is shorter than this timer",
    ),
    Clock(
        name="stop-grace",
        setting="recovery.stop_grace_period",
        starts="an agent sends SIGTERM to its workers",
        pauses="never",
        ends="all workers that got SIGTERM have exited",
        then="the agent kills the workers and their process groups",
        actor="the agent",
        wins="a further failure of a worker does not start this timer again",
    ),
    Clock(
        name="lease",
        setting="fault_tolerance.lease",
        starts="the heartbeat of the job's supervisor stops",
        pauses="while the machine of the coordinator is suspended",
        ends="the heartbeat starts again, or another supervisor takes over",
        then=(
            "`fault_tolerance.orphan_policy` applies: with `continue`, training continues; with `stop`, the job"
            " saves a checkpoint and ends"
        ),
        actor="the coordinator; if no coordinator runs, the agents",
        wins="none",
    ),
)


@dataclass(frozen=True, order=True, kw_only=True)
class Deadline:
    """A clock that runs: unless something changes, `then` happens when the job's clock reads `at`.

    Attributes:
        at: seconds on the job's own clock (`JobRecord.clock`).
        clock: its name in the table of clocks (supervision/clocks.py).
        then: what happens, as a person says it ("the job is reset").
    """

    at: float
    clock: str
    then: str
