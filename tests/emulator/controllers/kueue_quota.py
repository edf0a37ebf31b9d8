"""Who of those that wait in a queue may begin: oldest first, each as a whole, whoever fits into what is left. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Claim", "Ruling", "rule"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A workload: which queue, since when, what it needs; if it holds that, if it may begin, if it should be stopped.

    `runs`: its queue lets it run now. `holds`: it uses its share, also while it is being stopped. `banned`: somebody has
    preempted it and has not taken that back.
    """

    key: str
    queue: str
    created: str
    needs: Mapping[str, float]
    runs: bool
    holds: bool
    banned: bool = False


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """The keys of those that begin now, and of those that are stopped."""

    start: tuple[str, ...]
    stop: tuple[str, ...]


def rule(claims: Iterable[Claim], quotas: Mapping[str, Mapping[str, float]]) -> Ruling:
    """Return who begins and who is stopped; a queue that is not among `quotas` admits nobody.

    A resource that a queue does not name is not bounded by it. Who runs without there being room (it was created so) is
    stopped, the youngest first.
    """
    used: dict[str, Counter[str]] = {queue: Counter() for queue in quotas}
    start, stop = [], []
    oldest = sorted(claims, key=lambda claim: (claim.created, claim.key))
    for claim in sorted(oldest, key=lambda claim: not claim.holds):
        if claim.queue not in quotas:
            stop += [claim.key] if claim.runs else []
            continue
        limits, taken = quotas[claim.queue], used[claim.queue]
        fits = all(taken[name] + amount <= limits.get(name, float("inf")) for name, amount in claim.needs.items())
        may = fits and not claim.banned
        if claim.holds or may:
            taken.update(claim.needs)
        if claim.runs and not may:
            stop.append(claim.key)
        if may and not claim.runs and not claim.holds:
            start.append(claim.key)
    return Ruling(start=tuple(start), stop=tuple(stop))
