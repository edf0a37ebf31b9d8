"""The published result of a node check: nodes with verdict and reason, and links, short enough for a status. Pure."""

from __future__ import annotations

from rallypoint.capabilities.node_check.check_run import CheckRun, Stage, standing
from rallypoint.capabilities.node_check.judging import FACTOR, Group, Standing
from rallypoint.wire.check import CheckState, Link, NodeCheck, NodeFound, NodeVerdict

__all__ = ["every_node", "sentence", "tell"]

#: Largest numbers of nodes and links in a published result; those with the worst results come first.
_NODES, _LINKS = 96, 160

#: Characters of a reason.
_REASON = 120

_ORDER = (NodeVerdict.FAULT, NodeVerdict.UNKNOWN, NodeVerdict.STRAGGLER, NodeVerdict.GOOD)


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
