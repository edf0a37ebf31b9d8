"""What follows from groups that worked and groups that failed: who is at fault, who is slow, and what is published. Pure.

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

from rallypoint.capabilities.node_check.check_run import CheckRun, Stage, standing
from rallypoint.wire.check import CheckState, Link, NodeCheck, NodeFound, NodeVerdict

__all__ = ["FACTOR", "SURE", "Group", "Played", "Standing", "every_node", "judge", "sentence", "tell"]

#: More than so many times the median is slow.
FACTOR = 2.0

#: Slow times that make a straggler.
SURE = 3

#: Numbers of nodes.
Group = tuple[int, ...]

#: Largest numbers of nodes and links in a published result; those with the worst results come first.
_NODES, _LINKS = 96, 160

#: Characters of a reason.
_REASON = 120

_ORDER = (NodeVerdict.FAULT, NodeVerdict.UNKNOWN, NodeVerdict.STRAGGLER, NodeVerdict.GOOD)


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


def tell(course: CheckRun, now: float) -> NodeCheck:
    """Return the published form of a check at `now`."""
    over, nodes, links = course.stage is Stage.OVER, every_node(course), _links(course)
    good = any(one.verdict in (NodeVerdict.GOOD, NodeVerdict.STRAGGLER) for one in nodes)
    state = CheckState.RUNNING if not over else CheckState.PASSED if good else CheckState.FAILED
    return NodeCheck(
        number=course.number,
        level=course.level,
        state=state,
        reason=course.reason,
        started_at=course.started_at,
        finished_at=now if over else None,
        rounds=course.rounds,
        count=len(nodes),
        nodes=tuple(nodes[:_NODES]),
        links=tuple(links[:_LINKS]),
        left_out=max(0, len(nodes) - _NODES) + max(0, len(links) - _LINKS),
        whole=course.whole,
    )


def every_node(course: CheckRun) -> list[NodeFound]:
    """Return the result of each node; nodes that did not pass come first."""
    found = standing(course)
    return sorted((_node(course, found, i) for i in course.here), key=lambda one: (_ORDER.index(one.verdict), one.node))


def sentence(told: NodeCheck) -> str:
    """Return one line with the result of a check."""
    bad = [
        f"{word} {', '.join(str(one.node) for one in named)}"
        for word, verdict in (
            ("faulty:", NodeVerdict.FAULT),
            ("slow:", NodeVerdict.STRAGGLER),
            ("no result:", NodeVerdict.UNKNOWN),
        )
        if (named := told.named(verdict))
    ]
    rounds = f"{told.rounds} round{'' if told.rounds == 1 else 's'}"
    return f"node check {told.number}: {told.count} nodes, {rounds}; {'; '.join(bad) or 'all passed'}"


def _node(course: CheckRun, found: Standing, index: int) -> NodeFound:
    seat = course.seats[index]
    verdict = _verdict(found, index)
    return NodeFound(
        node=seat.node,
        incarnation=seat.incarnation,
        host=seat.host,
        verdict=verdict,
        compute=_figures(found.compute.get(index)),
        transfer=_figures(found.transfer.get(index)),
        reason=_shortened(_reason(course, found, index, verdict)),
    )


def _verdict(found: Standing, index: int) -> NodeVerdict:
    if index in found.fault:
        return NodeVerdict.FAULT
    if index in found.slow:
        return NodeVerdict.STRAGGLER
    return NodeVerdict.GOOD if index in found.good else NodeVerdict.UNKNOWN


def _reason(course: CheckRun, found: Standing, index: int, verdict: NodeVerdict) -> str:
    error = course.errors.get(index, "")
    if verdict is NodeVerdict.FAULT:
        return error or "the test process of this node failed"
    if verdict is NodeVerdict.UNKNOWN:
        return error
    if verdict is NodeVerdict.STRAGGLER:
        return "; ".join(_slow_parts(found, index))
    return ""


def _slow_parts(found: Standing, index: int) -> list[str]:
    parts = (
        ("compute", found.compute.get(index, 0.0), found.usual_compute),
        ("data exchange", found.transfer.get(index, 0.0), found.usual_transfer),
    )
    return [
        f"{word} took {seconds / usual:.1f} times the median of {1000 * usual:.3g} ms"
        for word, seconds, usual in parts
        if usual > 0 and seconds > FACTOR * usual
    ]


def _links(course: CheckRun) -> list[Link]:
    """Return each pair once, with its best measurement; the slowest pairs come first."""
    best: dict[Group, Link] = {}
    for played in course.history:
        if len(played.group) < 2:
            continue
        nodes = tuple(sorted(course.seats[i].node for i in played.group))
        link = Link(nodes=nodes, bandwidth=_figures(played.bandwidth), latency=_figures(played.latency))
        known = best.get(nodes)
        if known is None or link.bandwidth > known.bandwidth:
            best[nodes] = link
    return sorted(best.values(), key=lambda link: (link.bandwidth, link.nodes))


def _figures(value: float | None) -> float:
    return 0.0 if value is None else float(f"{value:.4g}")


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _REASON else f"{text[: _REASON - 1]}…"
