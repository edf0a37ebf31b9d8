"""The longest silence that is normal for each phase of a job, derived from measured durations. Pure.

The limit of a phase is `FACTOR` times its duration, but at least its floor. The duration of steps is their 99th percentile; of
rarer phases it is the longest one, because a few values have no percentile. A step that took longer and then completed raises
the limit, so that the same duration causes no second suspicion. Without enough measurements, only `hang_downtime` applies.

With this factor and floor, a hang is published within the larger of three times the percentile and 5 s. The rest of that time
is for the reports of the agents and their evidence.

Each report of an agent contains the durations that it has measured in the round (`AgentReport.learned`). Durations from an
earlier round, attempt or coordinator apply until the round has enough of its own, with twice the limit, because batches may
have grown. If the world is now smaller, the limit grows in proportion, because each rank has more work; in a larger world the
limit stays the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rallypoint.wire.pulse import Learned, Phase

__all__ = ["FACTOR", "RULES", "Bound", "Rule", "bound", "later", "merged"]

FACTOR = 2.4
#: Factor on the duration of a slow step that was not a hang.
_AGAIN = 1.2
#: Factor on durations that were measured in another round.
_ELSEWHERE = 2.0


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
