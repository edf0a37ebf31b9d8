"""Play a written trace through the supervision rules: what would the supervisor do, when, and what would it do next?

`simulate` makes the turns that a supervisor makes: one at each step of the trace, one at each deadline between them, and one
every `Policy.max_gap` seconds, each repeated until nothing changes any more. It reads no clock: the seconds of the trace
are the wall clock, and 0 is the submission. Every turn is checked against the promises of the core (`Frame.violations`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rallypoint.simulation.cluster import SimulatedCluster
from rallypoint.simulation.trace import Makers, Trace, read_trace
from rallypoint.supervision.actions import Action, CreateComponents, CreateCoordinator, CreateNode, Purge
from rallypoint.supervision.clocks import Deadline
from rallypoint.supervision.observation import Observation
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.reconcile import Decision, reconcile
from rallypoint.supervision.record import Condition, ConditionType, JobRecord, Phase
from rallypoint.wire import codec
from rallypoint.wire.status import Event, Verdict

__all__ = ["Frame", "edit_policy", "simulate", "with_makers"]

#: Turns at one moment until the simulation gives up waiting for them to settle.
_MOST_TURNS = 50

#: A quiet time is looked at again after a fraction of itself.
_PATIENCE = 10.0

#: A deadline that asks for more than its own second (a forced deletion) is looked at again so much later, seconds.
_AGAIN = 1.0

EditPolicy = Callable[[Policy, Mapping[str, Any], str], Policy]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What was so at one moment, after the supervisor's turns at it.

    Attributes:
        at: seconds from the submission.
        step: index of the trace's step, or None where only a clock was over.
        note: the step's own.
        phases: the phases that were entered at this moment, in order; empty when none was.
        record: what the supervisor remembers now; `seen` is what is there after its turns.
        actions: what it asked for at this moment, without repetition.
        deadlines: the clocks that run (on the job's clock, see `due`), the next one first.
        wake_at: when the supervisor would look again by itself, seconds; None when only a change matters.
        events: what was written into the history at this moment.
        done: nothing is left to supervise; `purged` says that the record was removed, too.
        violations: promises that were broken; always empty unless the core has a fault.
    """

    at: float
    step: int | None
    note: str
    phases: tuple[Phase, ...]
    record: JobRecord
    seen: Observation
    actions: tuple[Action, ...]
    deadlines: tuple[Deadline, ...]
    wake_at: float | None
    events: tuple[Event, ...]
    done: bool
    purged: bool
    violations: tuple[str, ...]

    @property
    def phase(self) -> Phase:
        """Where the job stands."""
        return self.record.phase

    @property
    def conditions(self) -> dict[str, Condition]:
        """The conditions by their names."""
        return {condition.type.value: condition for condition in self.record.conditions}

    @property
    def retries(self) -> int:
        """Resets so far that cost something."""
        return self.record.retries

    @property
    def attempt(self) -> int:
        """Number of the current attempt."""
        return self.record.attempt

    @property
    def verdict(self) -> Verdict | None:
        """How it ended, or None."""
        return self.record.verdict

    def due(self, deadline: Deadline) -> float:
        """Return when one of `deadlines` is over, in the trace's seconds."""
        return self.at + deadline.at - self.record.clock


def simulate(
    policy: Policy, trace: Trace | Mapping[str, Any] | list[Any], *, edit: EditPolicy | None = None
) -> tuple[Frame, ...]:
    """Return what the core does with a trace: a frame for each step, and for each moment in between that changed something.

    A step at second 0 is the submission itself; without one the job is submitted with nothing said.

    Args:
        policy: whose periods are tried; a trace that says who makes the pods overrides its `wrapped`.
        trace: read by `read_trace` unless it is a `Trace` already.
        edit: how a step's `policy` changes the policy (policy, changes, place of the step); `edit_policy` by default.

    Raises:
        WireError: the trace, or an edit of the policy, is not what the format allows.
    """
    trace = trace if isinstance(trace, Trace) else read_trace(trace)
    policy = with_makers(policy, trace)
    run = _Run(policy, trace, edit or edit_policy)
    steps = trace.steps
    if not steps or steps[0].at > 0:
        run.turn(0.0, None)
    for index, step in enumerate(steps):
        if not step.away:
            run.pass_time(step.at)
            run.keep_watch(step.at)
        run.turn(step.at, index)
    run.pass_time(trace.until, inclusive=True)
    return tuple(run.frames)


def with_makers(policy: Policy, trace: Trace) -> Policy:
    """Return the policy as it is tried: who makes the pods is the trace's word, where it has one."""
    return policy if trace.makers is None else dataclasses.replace(policy, wrapped=trace.makers is Makers.COMPONENTS)


def edit_policy(policy: Policy, changes: Mapping[str, Any], path: str) -> Policy:
    """Return the policy with fields replaced, each checked like a word of the wire; raises `WireError`."""
    plain = {**codec.to_json(policy), **changes}
    return codec.from_json(Policy, plain, path=path)


@dataclass
class _Settled:
    """What happened at one moment."""

    actions: list[Action] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class _Run:
    def __init__(self, policy: Policy, trace: Trace, edit: EditPolicy) -> None:
        self.policy, self.trace, self.edit = policy, trace, edit
        self.cluster = SimulatedCluster(expected=trace.components, policy=policy, startup=trace.startup, removal=trace.removal)
        self.record = JobRecord.new(name="simulated", uid="simulated", digest="", owner="simulation", now=0.0)
        self.decision: Decision | None = None
        self.frames: list[Frame] = []
        self.now = 0.0
        self.purged = False
        self.checked: JobRecord | None = None
        self._await_next(0)

    # --- time -----------------------------------------------------------------------------------------------------------

    def pass_time(self, until: float, *, inclusive: bool = False) -> None:
        """Make the turns that a supervisor makes by itself before `until` (and at it, if `inclusive`)."""
        while not self.purged and self.decision is not None:
            wake = self._next_wake()
            if wake > until or (wake == until and not inclusive):
                return
            self.keep_watch(wake)
            self.turn(wake, None)

    def keep_watch(self, now: float) -> None:
        """Let the job's clock follow the wall clock, as it does under a supervisor that looks often and sees nothing new."""
        unseen = now - self.record.last_now - self.policy.max_gap
        if unseen > 0 and not self.purged:
            record = self.record
            self.record = dataclasses.replace(record, clock=record.clock + unseen, last_now=record.last_now + unseen)

    def _next_wake(self) -> float:
        # The longer nothing happens, the less often it is looked at: a week of waiting need not take thousands of turns.
        quiet = self.now - (self.frames[-1].at if self.frames else 0.0)
        wakes = [self.now + max(self.policy.max_gap, quiet / _PATIENCE)]
        if self.decision is not None and self.decision.wake_at is not None:
            wakes.append(self.decision.wake_at)
        if self.cluster.next_due is not None:
            wakes.append(self.cluster.next_due)
        earliest = min(wakes)
        return earliest if earliest > self.now else self.now + _AGAIN

    def turn(self, now: float, index: int | None) -> None:
        """Make the turns of one moment; `index` is the step that tells something at it."""
        if self.purged:
            return
        before, self.now = self.record, now
        self.cluster.pass_time(now)
        settled = _Settled()
        if index is not None:
            self._tell(now, index, settled)
        self._settle(now, settled)
        if index is not None or settled.events or settled.violations or self._news(before, settled):
            self.frames.append(self._frame(now, index, settled))

    def _news(self, before: JobRecord, settled: _Settled) -> bool:
        record = self.record
        # That a clock has run on is no news.
        same = dataclasses.replace(before, clock=record.clock, last_now=record.last_now, timers=record.timers) == record
        asked = self.frames[-1].actions if self.frames else ()
        return not same or bool(set(settled.actions) - set(asked))

    # --- what the trace tells -------------------------------------------------------------------------------------------

    def _tell(self, now: float, index: int, settled: _Settled) -> None:
        step, path = self.trace.steps[index], f"steps[{index}]"
        self._await_next(index + 1)
        if step.policy:
            self.policy = self.edit(self.policy, step.policy, f"{path}.policy")
        self.cluster.policy = self.policy
        suspend = self.record.suspend if step.suspend is None else step.suspend
        self.record = dataclasses.replace(self.record, suspend=suspend, deletion=self.record.deletion or step.delete)
        if step.pods is not None and not self.record.condition(ConditionType.RESOURCES_DEPLOYED):
            # Nothing is there, so what is told is the attempt that begins at this moment: it begins first.
            self._await_next(index)
            self.cluster.apply(dataclasses.replace(step, pods=None, incidents=(), verdict=None), self.record, path)
            self._settle(now, settled)
            self._await_next(index + 1)
        self.cluster.apply(step, self.record, path)

    def _await_next(self, index: int) -> None:
        """Let the stage know of which slots the trace tells next."""
        following = (step.pod_list for step in self.trace.steps[index:])
        told = next((pods for pods in following if pods is not None), None)
        slots = () if told is None else (p.node if p.node is not None else i for i, p in enumerate(told) if p is not None)
        self.cluster.awaited = None if told is None else frozenset(slots)

    # --- turns ----------------------------------------------------------------------------------------------------------

    def _settle(self, now: float, settled: _Settled) -> None:
        for _ in range(_MOST_TURNS):
            before, seen = self.record, self.cluster.observe(self.record)
            decision = reconcile(before, seen, self.policy, now)
            self._check(before, seen, decision, now, settled)
            self.record, self.decision = decision.record, decision
            settled.events.extend(_new_events(before, self.record))
            settled.actions.extend(a for a in decision.actions if a not in settled.actions)
            self.cluster.act(decision.actions, self.record, now)
            self.purged = self.purged or any(isinstance(a, Purge) for a in decision.actions)
            if self.purged or (self.record == before and self.cluster.observe(self.record) == seen):
                return
        settled.violations.append(f"the turns at {now:g} s did not converge")

    def _check(self, before: JobRecord, seen: Observation, decision: Decision, now: float, settled: _Settled) -> None:
        record = decision.record
        quiet = dataclasses.replace(record, clock=0.0, last_now=0.0)
        if quiet != self.checked:
            self.checked = quiet
            if reconcile(JobRecord.from_json(before.to_json()), seen, self.policy, now) != decision:
                settled.violations.append("the record, written and read again, leads to another decision")
        if record.retries > before.retries and record.retries > self.policy.retry_limit and not self._refills:
            settled.violations.append(f"{record.retries} retries, more than {self.policy.retry_limit}")
        if record.released and not before.released and seen.present:
            settled.violations.append("released before zero pods were seen")
        settled.violations.extend(_overlaps(decision.actions, self.cluster.living()))

    @property
    def _refills(self) -> bool:
        return self.policy.reset_refill != Policy(min_nodes=1, max_nodes=1).reset_refill

    def _frame(self, now: float, index: int | None, settled: _Settled) -> Frame:
        decision = self.decision
        if decision is None:
            raise AssertionError("the simulation has made no decision yet; call turn() first")
        names = {phase.value.lower(): phase for phase in Phase if phase is not Phase.EMPTY}
        return Frame(
            at=now,
            step=index,
            note="" if index is None else self.trace.steps[index].note,
            phases=tuple(names[event.kind] for event in settled.events if event.kind in names),
            record=decision.record,
            seen=self.cluster.observe(decision.record),
            actions=tuple(settled.actions),
            deadlines=decision.deadlines,
            wake_at=decision.wake_at,
            events=tuple(settled.events),
            done=decision.done,
            purged=self.purged,
            violations=tuple(settled.violations),
        )


def _new_events(before: JobRecord, after: JobRecord) -> tuple[Event, ...]:
    """Return the lines of history that a turn has added; the oldest may have gone meanwhile."""
    old, new = before.history, after.history
    for gone in range(len(old) + 1):
        kept = old[gone:]
        if new[: len(kept)] == kept:
            return new[len(kept) :]
    return new


def _overlaps(actions: tuple[Action, ...], living: frozenset[int]) -> list[str]:
    """Return each pair of attempts that would run at the same time."""
    asked = {a.attempt for a in actions if isinstance(a, (CreateNode, CreateCoordinator, CreateComponents))}
    return [
        f"attempt {attempt} starts while processes of attempt {other} still run"
        for attempt in sorted(asked)
        for other in sorted(living - {attempt})
    ]
