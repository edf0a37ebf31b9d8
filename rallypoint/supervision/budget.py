"""Budgets as counts over incidents: nothing that restarts can refill one or charge it twice.

Theory of operation
===================

A budget holds no number. It counts incidents, each of which has an id of its own: two tellings of one fault are one, and
whoever starts anew counts the same. What was folded into counts (`Folded`) counts like the incidents that it was made of.

By default a budget is for life, which is AppWrapper's rule. A `Refill` lets faults count no more: those older than its window,
those before so much healthy progress, those before a newer checkpoint. That a fault counts no more is a mark on the incident
(`Incident.refilled`), because only the process that watched the progress knows it: the mark travels with the incident, a
successor finds it, and no clock of another machine has to be compared.

A successor cannot know how long ago the incidents were that it inherited. It counts them as if they had just happened, and
healthy progress from nothing: a refill may come late for that, never too early.

Causes that are free (`wire.incident.FREE`) are counted by no budget that pays: each counts its own cause alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.bounds import WHOLE
from rallypoint.wire.incident import Cause, Folded, Incident, Rung
from rallypoint.wire.plan import Refill
from rallypoint.wire.status import Progress

__all__ = ["Budget", "Course"]

#: Says when an incident was, on the clock that the caller gives as `clock`.
When = Callable[[Incident], float]

_FOR_LIFE = Refill()


@dataclass(frozen=True, kw_only=True)
class Course:
    """How training has gone since the last fault; what refills ask. Times are readings of one clock that never runs backwards.

    Progress is a step beyond every step that was known before: to repeat what was lost in a fault is none. So a job that comes
    back to the same point and fails there again, for ever, refills nothing.

    Attributes:
        step, checkpoint: the furthest step and the newest checkpoint that are known.
        healthy: seconds of healthy progress since the last fault, from one newer step to the next.
        last: when the last of these steps was told; None when the next one begins a new stretch.
        fault_step, fault_checkpoint: `step` and `checkpoint` at the last fault.
    """

    limits: ClassVar = {"step": WHOLE, "fault_step": WHOLE}

    step: int | None = None
    checkpoint: str = ""
    healthy: float = 0.0
    last: float | None = None
    fault_step: int | None = None
    fault_checkpoint: str = ""

    @classmethod
    def inherited(cls, progress: Progress) -> Course:
        """Return the course of one who takes over: what was reached is known, how long it went well is not."""
        return cls(
            step=progress.step, checkpoint=progress.checkpoint, fault_step=progress.step, fault_checkpoint=progress.checkpoint
        )

    def reported(self, progress: Progress, clock: float) -> Course:
        """Return the course after a report of progress at `clock`."""
        checkpoint = progress.checkpoint or self.checkpoint
        if progress.step is None or (self.step is not None and progress.step <= self.step):
            return self if checkpoint == self.checkpoint else dataclasses.replace(self, checkpoint=checkpoint)
        healthy = self.healthy if self.last is None else self.healthy + max(0.0, clock - self.last)
        return dataclasses.replace(self, step=progress.step, checkpoint=checkpoint, healthy=healthy, last=clock)

    def paused(self) -> Course:
        """Return the course after an interruption that is nobody's fault: the time until the next step is not counted."""
        return self if self.last is None else dataclasses.replace(self, last=None)

    def after_fault(self) -> Course:
        """Return the course after a fault: healthy progress begins again, and only a newer checkpoint counts as one."""
        return dataclasses.replace(self, healthy=0.0, last=None, fault_step=self.step, fault_checkpoint=self.checkpoint)

    def earns(self, refill: Refill) -> bool:
        """Return whether what was spent until the last fault counts no more."""
        if refill.healthy_for and self.healthy >= refill.healthy_for:
            return True
        beyond = self.step is not None and (self.fault_step is None or self.step > self.fault_step)
        return refill.on_checkpoint and beyond and self.checkpoint not in ("", self.fault_checkpoint)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """At most `limit` faults of `cause`, of the whole job or of one `node` slot, within one attempt or (attempt None) all.

    `limit` faults are answered; the one after them is not.
    """

    cause: Cause
    limit: int
    node: int | None = None
    refill: Refill = _FOR_LIFE

    def total(self, incidents: Iterable[Incident], attempt: int | None, *, folded: Iterable[Folded] = ()) -> int:
        """Return how many faults there were, those that count no more included."""
        ids = {incident.id for incident in incidents if self._pays_for(incident, attempt)}
        return len(ids) + sum(count.count for count in folded if self._paid_for(count, attempt))

    def spent(
        self,
        incidents: Iterable[Incident],
        attempt: int | None,
        *,
        folded: Iterable[Folded] = (),
        clock: float | None = None,
        when: When | None = None,
    ) -> int:
        """Return how many incidents still count, the newest included.

        With a window, `clock` is the reading now and `when` says when an incident was (by default `Incident.clock`, and now for
        one that was never given any). Without `clock` the window lets nothing go.
        """
        ours = [incident for incident in incidents if self._pays_for(incident, attempt)]
        gone = {incident.id for incident in ours if incident.refilled or self._over(incident, clock, when)}
        counted = {incident.id for incident in ours} - gone
        return len(counted) + sum(self._counted(count, clock) for count in folded if self._paid_for(count, attempt))

    def exceeded(
        self,
        incidents: Iterable[Incident],
        attempt: int | None,
        *,
        folded: Iterable[Folded] = (),
        clock: float | None = None,
        when: When | None = None,
    ) -> bool:
        """Return whether there are more faults than the limit answers; see `spent`."""
        return self.spent(incidents, attempt, folded=folded, clock=clock, when=when) > self.limit

    def refilled(
        self, incidents: tuple[Incident, ...], course: Course, *, clock: float, when: When | None = None
    ) -> tuple[Incident, ...]:
        """Return the incidents with a mark on each that this budget counts no more; the same object when nothing changes.

        To be called whenever `course` was told something, before the next fault is added: a mark that is not set when it is
        due is lost with the process that could have set it.
        """
        if self.refill == _FOR_LIFE:
            return incidents
        all_of_them = course.earns(self.refill)
        due = [
            i for i in incidents if not i.refilled and self._pays_for(i, None) and (all_of_them or self._over(i, clock, when))
        ]
        if not due:
            return incidents
        ids = {incident.id for incident in due}
        return tuple(dataclasses.replace(i, refilled=True) if i.id in ids else i for i in incidents)

    def refilled_counts(self, folded: tuple[Folded, ...], course: Course) -> tuple[Folded, ...]:
        """Return the counts with what this budget counts no more marked, too; the same object when nothing changes."""
        if self.refill == _FOR_LIFE or not course.earns(self.refill):
            return folded
        if not any(self._paid_for(count, None) and count.refilled < count.count for count in folded):
            return folded
        return tuple(dataclasses.replace(c, refilled=c.count) if self._paid_for(c, None) else c for c in folded)

    def _pays_for(self, incident: Incident, attempt: int | None) -> bool:
        if incident.cause is not self.cause or attempt not in (None, incident.id.attempt) or incident.rung is Rung.NOTIFY:
            return False
        return self.node is None or incident.id.node == self.node

    def _paid_for(self, count: Folded, attempt: int | None) -> bool:
        if count.cause is not self.cause or attempt not in (None, count.attempt):
            return False
        return self.node is None or count.node == self.node

    def _over(self, incident: Incident, clock: float | None, when: When | None) -> bool:
        if not self.refill.window or clock is None:
            return False
        at = when(incident) if when is not None else incident.clock or clock
        return at <= clock - self.refill.window

    def _counted(self, count: Folded, clock: float | None) -> int:
        # Of many only the last one's time is known: none is let go before that one is.
        over = self.refill.window and clock is not None and 0.0 < count.last_clock <= clock - self.refill.window
        return 0 if over else max(0, count.count - count.refilled)
