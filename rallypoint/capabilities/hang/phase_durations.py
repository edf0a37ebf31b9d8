"""The durations of a job's phases: the longest silence that is normal for each, and what of them is published. Pure.

The limit of a phase is `FACTOR` times its duration, but at least its floor. The duration of steps is their 99th percentile; of
rarer phases it is the longest one, because a few values have no percentile. A step that took longer and then completed raises
the limit, so that the same duration causes no second suspicion. Without enough measurements, only `hang_downtime` applies.

With this factor and floor, a hang is published within the larger of three times the percentile and 5 s. The rest of that time
is for the reports of the agents and their evidence.

Each report of an agent contains the durations that it has measured in the round (`AgentReport.learned`). Durations from an
earlier round, attempt or coordinator apply until the round has enough of its own, with twice the limit, because batches may
have grown. If the world is now smaller, the limit grows in proportion, because each rank has more work; in a larger world the
limit stays the same.

The published durations are part of the status, for a new coordinator and the next attempt. The coordinator updates them every
30 s and at the end of a round, because each change of the status is written to storage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rallypoint.capabilities.hang.state import HangStep
from rallypoint.capabilities.hang.wire import ReportSection
from rallypoint.wire.messages import AgentState
from rallypoint.wire.pulse import Learned, Phase
from rallypoint.wire.status import JobState

__all__ = ["FACTOR", "RULES", "Bound", "Rule", "bound", "carried_over", "later", "merged", "renewed", "silence_limit"]

FACTOR = 2.4
#: Factor on the duration of a slow step that was not a hang.
_AGAIN = 1.2
#: Factor on durations that were measured in another round.
_ELSEWHERE = 2.0

#: Seconds between two updates of the published durations.
_RENEWED = 30.0


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule of a phase: the `enough` measurements it needs, the lowest limit in seconds, and whether its percentile counts."""

    enough: int
    floor: float
    often: bool = False


#: The floor of a start or a compilation is high: the next one may have a cold cache or a larger graph.
RULES: Mapping[Phase, Rule] = {
    Phase.START_UP: Rule(enough=2, floor=600.0),
    Phase.STEP: Rule(enough=20, floor=4.0, often=True),
    Phase.DATA: Rule(enough=20, floor=4.0),
    Phase.FIRST_BATCH: Rule(enough=2, floor=4.0),
    Phase.CHECKPOINT: Rule(enough=2, floor=4.0),
    Phase.EVALUATION: Rule(enough=2, floor=4.0),
    Phase.COMPILE: Rule(enough=3, floor=600.0),
}


@dataclass(frozen=True, kw_only=True)
class Bound:
    """How long a world may be silent: `seconds`, because a rank is in `phase`, which takes `usual` seconds as a rule."""

    seconds: float
    phase: Phase | None = None
    usual: float = 0.0


def merged(seen: Iterable[Learned]) -> dict[Phase, Learned]:
    """Return what several agents have seen in one round, together: of each phase the worst."""
    together: dict[Phase, Learned] = {}
    for one in seen:
        known = together.get(one.phase)
        together[one.phase] = one if known is None else _worst(known, one)
    return together


def _worst(a: Learned, b: Learned) -> Learned:
    return dataclasses.replace(
        a, count=max(a.count, b.count), p99=max(a.p99, b.p99), longest=max(a.longest, b.longest), ranks=max(a.ranks, b.ranks)
    )


def later(before: Mapping[Phase, Learned], seen: Mapping[Phase, Learned], ranks: int) -> dict[Phase, Learned]:
    """Return what is known after a round of `ranks` ranks has `seen` something: what it knows replaces what was known before.

    Starts are seen once in a round, so they are counted over all rounds.
    """
    known = dict(before)
    for phase, one in seen.items():
        old = known.get(phase)
        own = dataclasses.replace(one, ranks=ranks)
        if old is None or (one.count >= RULES[phase].enough and phase is not Phase.START_UP):
            known[phase] = own
        else:
            known[phase] = dataclasses.replace(_worst(old, own), count=old.count + one.count, ranks=ranks)
    return known


def bound(phases: Iterable[Phase | None], before: Mapping[Phase, Learned], seen: Mapping[Phase, Learned], ranks: int) -> Bound:
    """Return how long a world of `ranks` ranks may be silent whose ranks are in these phases; infinite where one is not known.

    Ranks wait for each other, so the one that may take longest decides; of equal ones it is not the one that only trains. None
    is a rank that tells no phase.
    """
    longest, here_are = Bound(seconds=0.0), frozenset(phases)
    if not here_are or None in here_are:
        return Bound(seconds=float("inf"))
    for phase in (phase for phase in reversed(Phase) if phase in here_are):
        here = _of_phase(phase, before, seen, ranks)
        if here is None:
            return Bound(seconds=float("inf"), phase=phase)
        longest = max(longest, here, key=lambda one: one.seconds)
    return longest


def _of_phase(phase: Phase, before: Mapping[Phase, Learned], seen: Mapping[Phase, Learned], ranks: int) -> Bound | None:
    rule, own, old = RULES[phase], seen.get(phase), before.get(phase)
    if own is not None and own.count >= rule.enough:
        return _of(own, rule, 1.0)
    if old is None or old.count < rule.enough:
        return None
    return _of(old if own is None else _worst(old, own), rule, _ELSEWHERE * max(1.0, old.ranks / max(ranks, 1)))


def _of(known: Learned, rule: Rule, more: float) -> Bound:
    if rule.often:
        seconds = max(FACTOR * known.p99, _AGAIN * known.longest) * more
        return Bound(seconds=max(rule.floor, seconds), phase=known.phase, usual=known.p99 * more)
    return Bound(seconds=max(rule.floor, FACTOR * known.longest * more), phase=known.phase, usual=known.longest * more)


def silence_limit(state: HangStep) -> Bound:
    """Return the longest silence of the world that the known durations allow now."""
    if not state.settings.hang_learning:
        return Bound(seconds=float("inf"))
    running = (report for _, report in state.view.members() if report.round == state.view.fence.round)
    workers = (w for report in running if report.state is AgentState.RUNNING for w in report.workers)
    # No duration is known for the work of a rank after training.
    phases = (w.phase for w in workers if not w.ended and not w.finished)
    return bound(phases, _by_phase(state.own.before), _seen(state), _world_size(state))


def _seen(state: HangStep) -> dict[Phase, Learned]:
    ours = (report for _, report in state.view.members() if report.round == state.view.fence.round)
    return merged(one for report in ours for one in ReportSection.of(report).learned)


def _world_size(state: HangStep) -> int:
    return sum(member.local_world_size for member in state.view.world)


def _by_phase(learned: Iterable[Learned]) -> Mapping[Phase, Learned]:
    return {one.phase: one for one in learned}


def renewed(state: HangStep, now: float) -> HangStep:
    """Return the state with updated published durations if the last update is old enough."""
    return _renewed(state, now) if now >= state.own.learned_at + _RENEWED else state


def _renewed(state: HangStep, now: float) -> HangStep:
    known = later(_by_phase(state.own.before), _seen(state), _world_size(state))
    return state.having(learned=tuple(known[phase] for phase in Phase if phase in known), learned_at=now)


def carried_over(state: HangStep) -> HangStep:
    """Return the state in which the durations of a finished round are the initial ones of the next; once for each round."""
    if state.view.state is JobState.RUNNING or state.own.learned_in == state.view.fence.round:
        return state
    state = _renewed(state, state.own.learned_at)
    return state.having(before=state.own.learned, learned_in=state.view.fence.round)
