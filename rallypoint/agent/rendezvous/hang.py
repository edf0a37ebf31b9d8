"""When a world hangs: so long without a sign of life of any rank. Pure; `now` is an argument.

Theory of operation
===================

A *sign of life* of a rank is an optimizer step, which its Python counts without a line of the script (training/startup), or
a report of the script. It belongs to its round: a round begins without any. Ranks that train together stop together, so a
world lives as long as one rank of it does. Whoever has ended well does not count.

Silence is *counted*, never measured by a clock alone: only the time counts from one report of all agents that have running
workers to the next, and of a long gap between them `max_gap` at the most. So an agent that is stopped, a coordinator that is
stopped, a machine that slept and a clock that jumped expire nothing.

    lives ──half of the bound is over──► doubt ──all of it──► verdict
      ▲                                    │                    │
      └───────────── a sign of life ───────┴────────────────────┘

Nothing follows from a doubt; it is told. The bound is `downtime`. Before the first sign of life of a round (imports,
compilation, the first batch) it is `startup`, and anything that happens counts as one: a rank uses the processor, or writes.

A later version will learn how long each phase takes; `downtime` stays the upper bound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from rallypoint.wire.hang import HangState
from rallypoint.wire.messages import AgentReport

__all__ = ["BUSY", "Limits", "Sign", "Watch", "judge", "sign_of"]

#: Cores that a worker uses, from which on it is not idle. Threads that only watch (NCCL's, of data loaders) need less.
BUSY = 0.05


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long silence may last, in seconds.

    Attributes:
        downtime: from the last sign of life; 0 is off.
        startup: from the last thing that happened at all, before the first sign of life of a round.
        max_gap: what counts of the time between two reports at the most.
    """

    downtime: float
    startup: float
    max_gap: float

    @classmethod
    def of(cls, *, downtime: float, warmup: float, pace: float) -> Limits:
        """Return the limits of a job: a start may take as long as its `warmup` at least; agents report every `pace` seconds."""
        return cls(downtime=downtime, startup=max(downtime, warmup), max_gap=max(3 * pace, downtime / 10))


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What a report of `agent` tells that its last one did not: a step or a report of one of its ranks, or anything at all."""

    agent: str
    life: bool = False
    activity: bool = False


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What is remembered of a round.

    Attributes:
        round: the one that is watched.
        begun: it has shown a sign of life.
        quiet: seconds of silence that count.
        quiet_since: when the silence began (our own clock); `counted_at` until when it is counted.
        heard: agents that have reported since then.
        doubt_at, verdict_at: when it was doubted and judged, None while it is not.
    """

    round: int = 0
    begun: bool = False
    quiet: float = 0.0
    quiet_since: float = 0.0
    counted_at: float = 0.0
    heard: frozenset[str] = frozenset()
    doubt_at: float | None = None
    verdict_at: float | None = None

    @classmethod
    def fresh(cls, round_: int, now: float) -> Watch:
        """Return the watch of a round that begins."""
        return cls(round=round_, quiet_since=now, counted_at=now)

    @property
    def state(self) -> HangState | None:
        """What is thought of it."""
        if self.verdict_at is not None:
            return HangState.VERDICT
        return None if self.doubt_at is None else HangState.DOUBT


def sign_of(before: AgentReport | None, after: AgentReport) -> Sign:
    """Return what a report tells beyond the last one of the same agent; the first one of a round is a beginning."""
    if before is None or before.round != after.round or len(before.workers) != len(after.workers):
        return Sign(agent=after.agent, activity=True, life=any(w.liveness for w in after.workers))
    pairs = tuple(zip(before.workers, after.workers, strict=True))
    return Sign(
        agent=after.agent,
        life=any(new.liveness != old.liveness for old, new in pairs),
        activity=any(new.cpu >= BUSY or (new.pid, new.output) != (old.pid, old.output) for old, new in pairs),
    )


def judge(watch: Watch, sign: Sign, expected: AbstractSet[str], limits: Limits, now: float) -> Watch:
    """Return the watch after a report.

    Args:
        watch: of the running round.
        sign: what the report tells.
        expected: the agents that have workers which have not ended.
        limits: of the job.
        now: our own clock.
    """
    if limits.downtime <= 0:
        return watch
    if sign.life or (sign.activity and not watch.begun):
        return dataclasses.replace(Watch.fresh(watch.round, now), begun=watch.begun or sign.life)
    heard = watch.heard | {sign.agent}
    if not expected <= heard:
        return dataclasses.replace(watch, heard=heard)
    counted = min(max(0.0, now - watch.counted_at), limits.max_gap)
    watch = dataclasses.replace(watch, quiet=watch.quiet + counted, counted_at=now, heard=frozenset())
    bound = limits.downtime if watch.begun else limits.startup
    if watch.doubt_at is None and watch.quiet >= bound / 2:
        watch = dataclasses.replace(watch, doubt_at=now)
    if watch.verdict_at is None and watch.quiet >= bound:
        watch = dataclasses.replace(watch, verdict_at=now)
    return watch
