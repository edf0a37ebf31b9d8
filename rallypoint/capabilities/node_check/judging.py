"""What follows from groups that worked and groups that failed: who is at fault, and who is slow. Pure.

Theory of operation
===================

A group fails as a whole: a collective that one member does not take part in fails for all of them. So a failure alone blames
nobody. What clears a node is a group in which it worked together with another: it is *good*. What convicts one is

- that it failed by itself, before it met anybody, or alone, or
- that it failed in a group whose other members are all good.

Everybody else is *suspect*, and is tried with somebody good in the next round (`check_run.py`). A node that was good once is
never at fault, so no good node is, as long as failures come from broken nodes.

Slowness goes the same way. How fast a node computes is its own; a collective is as slow as its slowest member, so a group
that is slow makes its members *unsure*. A node is fast when one group of it was, and *slow* when groups were in which all
others are fast. Slow is more than `FACTOR` times the median, and the median is the lower one: of two nodes the slower one
must not hide behind an average that it makes itself. Noise only ever adds time, so the best of a node's times counts, and
nobody is slow before that was so `SURE` times, in as many rounds: a machine may be busy for a moment with something else.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["FACTOR", "SURE", "Group", "Played", "Standing", "judge"]

#: More than so many times the median is slow.
FACTOR = 2.0

#: Slow times that make a straggler.
SURE = 3

#: Numbers of nodes.
Group = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Played:
    """A group that was tried.

    Attributes:
        failed: whether it failed.
        own: members that failed by themselves.
        compute: seconds of each member's arithmetic, as far as it told.
        transfer: seconds of the collective; None where it failed, or there is only one member.
        bandwidth: bytes per second, `latency` seconds; 0.0 where they are not known.
    """

    group: Group
    failed: bool = False
    own: frozenset[int] = frozenset()
    compute: Mapping[int, float] = field(default_factory=dict, hash=False)
    transfer: float | None = None
    bandwidth: float = 0.0
    latency: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What is known of the nodes so far.

    Attributes:
        good: they worked with others; `fault` they are at fault; `suspect` neither is known.
        slow: they are stragglers; `unsure` they may be.
        compute, transfer: the best times of each node, in seconds; `usual` the medians that they are compared with.
    """

    good: frozenset[int]
    fault: frozenset[int]
    suspect: frozenset[int]
    slow: frozenset[int]
    unsure: frozenset[int]
    compute: Mapping[int, float]
    transfer: Mapping[int, float]
    usual_compute: float
    usual_transfer: float


def judge(nodes: Iterable[int], history: Sequence[Played]) -> Standing:
    """Return what follows from all groups that were tried so far."""
    everyone = frozenset(nodes)
    good = _good(everyone, history)
    fault = (_convicted(good, history) & everyone) - good
    good |= _last(everyone - good - fault, good, history)
    computes = _computes(history)
    compute = {node: min(times) for node, times in computes.items() if node in everyone - fault}
    transfer = _best_transfers(history)
    usual_compute, usual_transfer = _median(compute.values()), _usual(history, transfer)
    lame = {node for node, best in compute.items() if best > FACTOR * usual_compute}
    certain = {node for node in lame if len(computes[node]) >= SURE}
    slow, unsure = _slow(history, transfer, usual_transfer)
    return Standing(
        good=good,
        fault=fault,
        suspect=everyone - good - fault,
        slow=frozenset(certain | slow) & good,
        unsure=frozenset((lame - certain) | unsure) & good,
        compute=compute,
        transfer=transfer,
        usual_compute=usual_compute,
        usual_transfer=usual_transfer,
    )


def _good(everyone: frozenset[int], history: Sequence[Played]) -> frozenset[int]:
    """Return who worked together with another; a node that has nobody is good by itself."""
    enough = min(2, len(everyone))
    return frozenset(node for played in history if not played.failed and len(played.group) >= enough for node in played.group)


def _last(rest: frozenset[int], good: frozenset[int], history: Sequence[Played]) -> frozenset[int]:
    """Return the one node that is left when all others are at fault, where it works alone: there is nobody to try it with."""
    alone = any(not played.failed and frozenset(played.group) == rest for played in history)
    return rest if alone and len(rest) == 1 and not good else frozenset()


def _convicted(good: frozenset[int], history: Sequence[Played]) -> frozenset[int]:
    found: set[int] = set()
    for played in history:
        if not played.failed:
            continue
        found |= played.own
        found.update(node for node in played.group if good.issuperset(other for other in played.group if other != node))
    return frozenset(found)


def _computes(history: Sequence[Played]) -> dict[int, list[float]]:
    times: dict[int, list[float]] = {}
    for played in history:
        for node, seconds in played.compute.items():
            times.setdefault(node, []).append(seconds)
    return times


def _best_transfers(history: Sequence[Played]) -> dict[int, float]:
    best: dict[int, float] = {}
    for played in history:
        if played.transfer is not None:
            for node in played.group:
                best[node] = min(played.transfer, best.get(node, played.transfer))
    return best


def _usual(history: Sequence[Played], best: Mapping[int, float]) -> float:
    """Return the median over nodes or over groups, whichever is lower.

    After one round a slow node has slowed its whole group down, which may be most of five nodes; after a few rounds of three
    nodes it has slowed down most of the groups.
    """
    groups = [played.transfer for played in history if played.transfer is not None]
    return min(_median(groups), _median(best.values()))


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.median_low(known) if known else 0.0


def _slow(history: Sequence[Played], best: Mapping[int, float], usual: float) -> tuple[set[int], set[int]]:
    """Return whose links are slow, and whose may be."""
    fast = {node for node, seconds in best.items() if seconds <= FACTOR * usual}
    doubtful = set(best) - fast
    times = Counter(
        node
        for played in history
        if played.transfer is not None
        for node in played.group
        if node in doubtful and fast.issuperset(other for other in played.group if other != node)
    )
    slow = {node for node, count in times.items() if count >= SURE}
    return slow, doubtful - slow
