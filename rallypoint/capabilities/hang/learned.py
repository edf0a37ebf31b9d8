"""How long each phase of a job may be silent, by what was seen of it. Pure.

A bound is `FACTOR` times what a phase took, and never below its floor: for steps that is their 99th percentile, for phases that
happen now and then the longest, because of few there is no percentile. A step that took longer and was none the worse for it
raises the bound by itself, so no step is doubted twice. What was seen too seldom is not known: then `hang_downtime` is all
there is.

The factor and the floor are such that a hang is *told* within the larger of 3 percentiles and 5 s: what is left of these is for
the reports of the agents and for what they find.

What an agent has seen in a round comes with each of its reports (`AgentReport.learned`). What a job has seen before (another
round, attempt, or coordinator) holds until its round has seen enough itself, with twice the time: its batches may have grown.
It was learned of a world of some size: of a smaller one each rank has more to do, so things may take longer in proportion; of
a larger one it is taken as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rallypoint.wire.pulse import Learned, Phase

__all__ = ["FACTOR", "RULES", "Bound", "Rule", "bound", "later", "merged"]

FACTOR = 2.4
#: What a step took that was no hang may be taken again, and a little more.
_AGAIN = 1.2
#: What was seen in another round may take so much longer in this one.
_ELSEWHERE = 2.0


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When a phase is known: seen `enough` times; its bound is never below `floor` seconds. `often`: by its percentile."""

    enough: int
    floor: float
    often: bool = False


#: A start or a compilation says little about the next one: a cache may be cold, a graph be larger.
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
