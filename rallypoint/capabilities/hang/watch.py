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

Nothing follows from a doubt but that agents report more often (`PACE`); it is told. There are two clocks.

The long one has the bound `downtime`. Before the first sign of life of a round (imports, compilation, the first batch) that is
`startup`, and anything that happens counts as one: a rank uses the processor, or writes.

The short one (`brisk`) has the bound that was learned for what the ranks are doing (`learned.py`). It knows from the
agents how old the last sign of life was when they spoke, counts shorter gaps (`short_gap`), and is set back by whatever shows
that a rank is busy with something that it does not tell: lines in its log, files that it reads or writes. When it expires the
agents look into their workers. Positive evidence of a hang (`deadlock.py`) must be found twice, `CONFIRM` seconds apart, before
anything follows; without any the silence is at most notified, and the next look is due after twice the time (`patience`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from rallypoint.capabilities.hang.deadlock import Deadlock
from rallypoint.capabilities.hang.phase_durations import Bound
from rallypoint.wire.hang import HangState
from rallypoint.wire.messages import AgentReport
from rallypoint.wire.pulse import Phase

__all__ = ["BUSY", "CONFIRM", "PACE", "Limits", "Sign", "Watch", "doubted", "judge", "sign_of", "to_confirm", "to_look_again"]

#: Cores that a worker uses, from which on it is not idle. Threads that only watch (NCCL's, of data loaders) need less.
BUSY = 0.05

#: Seconds between two reports of an agent while there is a doubt.
PACE = 0.25

#: Bytes that a rank moves to or from files from one report to the next, from which on it is busy with them.
MOVES = 1 << 20

#: Seconds of silence between two looks that must find the same positive evidence.
CONFIRM = 1.0

#: Part of the short clock's bound after which there is a doubt.
_DOUBT = 0.5

_NEVER = Bound(seconds=float("inf"))

#: In these a beat says that something goes on, not that training does.
_STARTS = (None, Phase.START_UP)


def _unlearned() -> Bound:
    return _NEVER


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long silence may last, in seconds.

    Attributes:
        downtime: from the last sign of life; 0 is off.
        startup: from the last thing that happened at all, before the first sign of life of a round.
        max_gap: what counts of the time between two reports at the most; `short_gap` the same for the short clock.
    """

    downtime: float
    startup: float
    max_gap: float
    short_gap: float = 1.5

    @classmethod
    def of(cls, *, downtime: float, warmup: float, pace: float) -> Limits:
        """Return the limits of a job: a start may take as long as its `warmup` at least; agents report every `pace` seconds."""
        return cls(downtime=downtime, startup=max(downtime, warmup), max_gap=max(3 * pace, downtime / 10), short_gap=1.5 * pace)


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What a report of `agent` tells that its last one did not: a sign of life of one of its ranks, or anything at all.

    `stirs`: one of them is busy with files, or writes to its log. `age`: seconds since the last sign of life of any of them,
    None where none tells.
    """

    agent: str
    life: bool = False
    activity: bool = False
    stirs: bool = False
    age: float | None = None


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What is remembered of a round.

    Attributes:
        round: the one that is watched.
        begun: it has shown a sign of life.
        quiet: seconds of silence that count.
        quiet_since: when the silence began (our own clock); `counted_at` until when it is counted.
        heard: agents that have reported since then.
        doubt_at: when the doubt began, None without one.
        verdict_at: when a clock expired, None while the ranks are not looked into; `settled`: the verdict has been given.
        brisk: seconds of silence by the short clock, and the last `bound` that they were held against.
        patience: how many times that it has now.
        not_before: seconds of silence by the short clock before which it does not expire again.
        learned: it was the short clock that expired.
        found: the positive evidence that is to be confirmed, found first at `found_at` (our own clock).
    """

    round: int = 0
    begun: bool = False
    quiet: float = 0.0
    quiet_since: float = 0.0
    counted_at: float = 0.0
    heard: frozenset[str] = frozenset()
    doubt_at: float | None = None
    verdict_at: float | None = None
    brisk: float = 0.0
    bound: Bound = _NEVER
    patience: float = 1.0
    not_before: float = 0.0
    learned: bool = False
    settled: bool = False
    found: Deadlock | None = None
    found_at: float = 0.0

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
    living = tuple(w for w in after.workers if not w.ended)
    age = min((w.quiet for w in living if w.quiet is not None), default=None)
    if before is None or before.round != after.round or len(before.workers) != len(after.workers):
        # A sign of life that its Python told before is as old as it says.
        return Sign(agent=after.agent, activity=True, life=any(w.liveness for w in after.workers), age=age)
    pairs = tuple(zip(before.workers, after.workers, strict=True))
    lives = any(new.liveness != old.liveness or (new.beat != old.beat and new.phase not in _STARTS) for old, new in pairs)
    writes = any((new.pid, new.output) != (old.pid, old.output) for old, new in pairs)
    moves = any(new.moved - old.moved >= MOVES for old, new in pairs)
    works = any(new.cpu >= BUSY or new.gpu >= BUSY or new.beat != old.beat for old, new in pairs)
    return Sign(agent=after.agent, life=lives, activity=works or writes or moves, stirs=writes or moves, age=age)


def judge(
    watch: Watch, sign: Sign, expected: AbstractSet[str], limits: Limits, now: float, bound: Callable[[], Bound] = _unlearned
) -> Watch:
    """Return the watch after a report.

    Args:
        watch: of the running round.
        sign: what the report tells.
        expected: the agents that have workers which have not ended.
        limits: of the job.
        now: our own clock.
        bound: what was learned for what the ranks are doing; asked only where they are silent.
    """
    if limits.downtime <= 0:
        return watch
    since = max(0.0, now - watch.counted_at)
    if sign.life or (sign.activity and not watch.begun):
        begun = watch.begun or sign.life
        brisk = 0.0 if sign.age is None or not begun else min(sign.age, watch.brisk + since, limits.short_gap)
        return dataclasses.replace(Watch.fresh(watch.round, now), begun=begun, brisk=brisk)
    if sign.stirs:
        watch = dataclasses.replace(watch, brisk=0.0, not_before=0.0, found=None)
    heard = watch.heard | {sign.agent}
    if not expected <= heard:
        return dataclasses.replace(watch, heard=heard)
    return _counted(watch, limits, since, now, bound())


def _counted(watch: Watch, limits: Limits, since: float, now: float, bound: Bound) -> Watch:
    """Return the watch after everybody has been heard once more, and was silent."""
    watch = dataclasses.replace(
        watch,
        quiet=watch.quiet + min(since, limits.max_gap),
        brisk=watch.brisk + min(since, limits.short_gap),
        bound=bound,
        counted_at=now,
        heard=frozenset(),
    )
    long = limits.downtime if watch.begun else limits.startup
    short = bound.seconds * watch.patience
    if watch.doubt_at is None and (watch.quiet >= long / 2 or watch.brisk >= short * _DOUBT):
        watch = dataclasses.replace(watch, doubt_at=now)
    if watch.verdict_at is None and watch.quiet >= long:
        return dataclasses.replace(watch, verdict_at=now, learned=False)
    if watch.verdict_at is None and watch.brisk >= max(short, watch.not_before):
        return dataclasses.replace(watch, verdict_at=now, learned=True)
    return watch


def doubted(watch: Watch) -> bool:
    """Return whether agents shall report more often: a first look is due soon, or one that confirms positive evidence."""
    soon = watch.patience == 1.0 or watch.found is not None
    return watch.doubt_at is not None and watch.verdict_at is None and soon


def to_look_again(watch: Watch) -> Watch:
    """Return the watch after a look without positive evidence: the next one is due when twice the time is over."""
    return dataclasses.replace(watch, verdict_at=None, learned=False, found=None, patience=watch.patience * 2, not_before=0.0)


def to_confirm(watch: Watch, found: Deadlock, now: float) -> Watch:
    """Return the watch after a look that has found positive evidence: the next one confirms it, or does not."""
    return dataclasses.replace(
        watch, verdict_at=None, learned=False, found=found, found_at=now, not_before=watch.brisk + CONFIRM
    )
