"""One check of all nodes, from its first round to its end: groups of nodes, tasks of the agents, and their reports. Pure.

A round ends when all its groups have ended. A group ends as soon as

- all members have reported a result, or
- a member failed by itself or is lost, because no other report can change that result, or
- `ECHO` seconds have passed since a member failed: in this time, the member that caused the failure can still report it, or
- the time limit of the members and `SLACK` have passed. A member without a report has failed.

An agent that receives a new task drops its old one.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rallypoint.capabilities.node_check.judging import Group, Played, Standing, judge
from rallypoint.wire.check import AllNodes, CheckReport, CheckTask, ProbeState

__all__ = [
    "ECHO",
    "MOST_ROUNDS",
    "SLACK",
    "CheckRun",
    "Seat",
    "Stage",
    "advanced",
    "asked",
    "begun",
    "due",
    "heard",
    "left",
    "next_groups",
    "standing",
]

#: Seconds after the time limit of a test process in which the report of its agent is still accepted.
SLACK = 10.0

#: Seconds after the failure of a member in which reports of the other members still count.
ECHO = 2.0

#: Rounds of a check at the most, where not every pair is asked for.
MOST_ROUNDS = 12

#: So many nodes have no pair beside a pair: of one slow network among three, two of the three pairs are slow.
_FEW = 3


class Stage(enum.Enum):
    """What the check runs now."""

    GROUPS = "groups"  #: pairs, round after round
    WHOLE = "whole"  #: all good nodes at once
    OVER = "over"


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A checked node; `size` is the number of its ranks."""

    agent: str
    node: int
    incarnation: int
    host: str
    size: int


@dataclass(frozen=True, kw_only=True)
class CheckRun:
    """The state of a check. The number of a node is its index in `seats`.

    Attributes:
        number, term, level, reason: of the check.
        limit: time limit of the test processes of a round, in seconds.
        all_pairs: each pair of nodes is tested.
        exclude_straggler: stragglers do not train, so the test of all nodes omits them.
        gone: nodes whose agent is lost.
        task: number of the round's task; `since` is its time.
        groups: groups of the running round; `heard` are the reports of their members, `heard_at` the times of the reports.
        stores: address at which each agent can serve a store.
        history: groups of earlier rounds; `rounds` is the number of these rounds.
        errors: the last error of each node; `whole` is the result of the test of all nodes.
    """

    number: int
    term: int
    level: int
    reason: str
    started_at: float
    limit: float
    seats: tuple[Seat, ...]
    all_pairs: bool = False
    exclude_straggler: bool = False
    stage: Stage = Stage.GROUPS
    gone: frozenset[int] = frozenset()
    task: int = 0
    since: float = 0.0
    groups: tuple[Group, ...] = ()
    heard: Mapping[int, CheckReport] = field(default_factory=dict, hash=False)
    heard_at: Mapping[int, float] = field(default_factory=dict, hash=False)
    stores: Mapping[str, str] = field(default_factory=dict, hash=False)
    history: tuple[Played, ...] = ()
    rounds: int = 0
    errors: Mapping[int, str] = field(default_factory=dict, hash=False)
    whole: AllNodes | None = None

    @property
    def here(self) -> tuple[int, ...]:
        """Numbers of the nodes whose agents are not lost."""
        return tuple(i for i in range(len(self.seats)) if i not in self.gone)


def standing(course: CheckRun) -> Standing:
    """Return the results so far."""
    return judge(course.here, course.history)


def begun(course: CheckRun, now: float) -> CheckRun:
    """Return a new check in its first round; the number of its task is `course.task + 1`."""
    return _next_round(course, now)


# --- Tasks and reports -------------------------------------------------------------------------------------------------------


def asked(course: CheckRun, agent: str, said: CheckReport | None) -> CheckTask | None:
    """Return the task of an agent, None if it has none or has begun it; `said` is its last report."""
    if course.stage is Stage.OVER or said is None or (said.term, said.number) == (course.term, course.task):
        return None
    for group in course.groups:
        seats = [course.seats[i] for i in group]
        place = next((k for k, seat in enumerate(seats) if seat.agent == agent), None)
        if place is not None:
            return CheckTask(
                term=course.term,
                number=course.task,
                store=course.stores[seats[0].agent],
                group_rank=place,
                first_rank=sum(seat.size for seat in seats[:place]),
                world_size=sum(seat.size for seat in seats),
                limit=course.limit,
                whole=course.stage is Stage.WHOLE,
            )
    return None


def heard(course: CheckRun, agent: str, said: CheckReport, now: float) -> CheckRun:
    """Return the check after the report of an agent."""
    index = next((i for i, seat in enumerate(course.seats) if seat.agent == agent), None)
    if index is None:
        return course
    if course.stores.get(agent) != said.store:
        course = dataclasses.replace(course, stores={**course.stores, agent: said.store})
    over = said.state in (ProbeState.OK, ProbeState.FAILED)
    if not over or (said.term, said.number) != (course.term, course.task) or index in course.heard:
        return course
    errors = {**course.errors, index: said.error} if said.error else course.errors
    told, times = {**course.heard, index: said}, {**course.heard_at, index: now}
    return dataclasses.replace(course, heard=told, heard_at=times, errors=errors)


def left(course: CheckRun, present: Collection[str]) -> CheckRun:
    """Return the check in which agents that are not `present` are lost."""
    gone = frozenset(i for i, seat in enumerate(course.seats) if seat.agent not in present)
    return course if gone <= course.gone else dataclasses.replace(course, gone=course.gone | gone)


# --- Ends of groups and rounds -----------------------------------------------------------------------------------------------


def due(course: CheckRun) -> float | None:
    """Return when the check changes without a report; None when it is over."""
    if course.stage is Stage.OVER:
        return None
    return min((_closes(course, group) for group in course.groups if not _is_settled(course, group)), default=course.since)


def advanced(course: CheckRun, now: float) -> CheckRun:
    """Return the check with all ended rounds closed; the same object if no round has ended."""
    while course.stage is not Stage.OVER and all(_is_over(course, group, now) for group in course.groups):
        course = _close_whole(course) if course.stage is Stage.WHOLE else _close_round(course, now)
    return course


def _is_over(course: CheckRun, group: Group, now: float) -> bool:
    return now >= _closes(course, group) or _is_settled(course, group)


def _is_settled(course: CheckRun, group: Group) -> bool:
    said = [course.heard[i] for i in group if i in course.heard]
    return len(said) == len(group) or any(one.own for one in said) or bool(course.gone.intersection(group))


def _closes(course: CheckRun, group: Group) -> float:
    """Return when a group ends even without the reports of all members."""
    failed = [course.heard_at[i] for i in group if i in course.heard and course.heard[i].state is ProbeState.FAILED]
    return min((course.since + course.limit + SLACK, *(at + ECHO for at in failed)))


def _close_round(course: CheckRun, now: float) -> CheckRun:
    played = tuple(_played(course, group) for group in course.groups)
    errors = dict(course.errors)
    if now >= course.since + course.limit + SLACK:
        errors.update({i: _silent(course) for group in course.groups for i in group if i not in course.heard})
    course = dataclasses.replace(course, history=course.history + played, rounds=course.rounds + 1, errors=errors)
    return _next_round(course, now)


def _silent(course: CheckRun) -> str:
    return f"the test process of this node sent no result within {course.limit:g} s"


def _played(course: CheckRun, group: Group) -> Played:
    said = {i: course.heard[i] for i in group if i in course.heard}
    failed = len(said) < len(group) or any(one.state is ProbeState.FAILED for one in said.values())
    failed = failed or bool(course.gone.intersection(group))
    own = frozenset(i for i, one in said.items() if one.own)
    compute = {i: one.compute for i, one in said.items() if one.compute > 0}
    if failed:
        return Played(group=group, failed=True, own=own, compute=compute)
    transfer = max(one.transfer for one in said.values())
    moved = max(one.moved for one in said.values())
    return Played(
        group=group,
        compute=compute,
        # A group of one node does not measure the network.
        transfer=transfer if len(group) > 1 and transfer > 0 else None,
        bandwidth=moved / transfer if transfer > 0 else 0.0,
        latency=max(one.latency for one in said.values()),
    )


def _next_round(course: CheckRun, now: float) -> CheckRun:
    groups = next_groups(course.here, course.history, rounds=course.rounds, all_pairs=course.all_pairs)
    if groups:
        return dataclasses.replace(course, groups=groups, heard={}, heard_at={}, task=course.task + 1, since=now)
    return _whole(dataclasses.replace(course, groups=(), heard={}), now)


def _whole(course: CheckRun, now: float) -> CheckRun:
    """Begin the test of all nodes that will train, if it was requested and they have at least two ranks."""
    found = standing(course)
    chosen = tuple(sorted(found.good - (found.slow if course.exclude_straggler else frozenset())))
    if course.level < 2 or sum(course.seats[i].size for i in chosen) < 2:
        return dataclasses.replace(course, stage=Stage.OVER)
    return dataclasses.replace(course, stage=Stage.WHOLE, groups=(chosen,), task=course.task + 1, since=now)


def _close_whole(course: CheckRun) -> CheckRun:
    group = course.groups[0]
    played, ranks = _played(course, group), sum(course.seats[i].size for i in group)
    whole = AllNodes(nodes=len(group), ranks=ranks)
    if played.failed:
        whole = dataclasses.replace(whole, error=_first_error(course, group))
    else:
        seconds = max(course.heard[i].transfer for i in group)
        moved = max(course.heard[i].moved for i in group)
        rate = moved / seconds if seconds > 0 else 0.0
        whole = dataclasses.replace(
            whole, moved=moved, seconds=seconds, latency=played.latency, algbw=rate, busbw=rate * (ranks - 1) / ranks
        )
    return dataclasses.replace(course, stage=Stage.OVER, groups=(), heard={}, whole=whole)


def _first_error(course: CheckRun, group: Sequence[int]) -> str:
    for i in group:
        said = course.heard.get(i)
        if said is not None and said.error:
            return f"node {course.seats[i].node} on {course.seats[i].host}: {said.error}"
    silent = next((i for i in group if i not in course.heard), group[0])
    return f"node {course.seats[silent].node} on {course.seats[silent].host}: {_silent(course)}"


def next_groups(nodes: Sequence[int], history: Sequence[Played], *, rounds: int, all_pairs: bool = False) -> tuple[Group, ...]:
    """Return the groups of the next round, in which each node is at most once; none when the check is over.

    Args:
        nodes: that are still there, in a fixed order.
        history: every group that was tried, of nodes that have gone, too.
        rounds: so many rounds were played.
        all_pairs: try each pair of nodes, for a whole matrix of bandwidths.

    The first round pairs neighbours; of an odd number the last three are one group. Where all goes well, that is all. Otherwise
    the next round pairs from the two ends: the fastest node with the slowest, and a failure is slower than everything, so each
    suspect meets a node that is known to work. With faults in no more than a quarter of the nodes every suspect meets one in
    the second round, and that is the last; with more, each round at least doubles the nodes that are known to work.

    Where no group has worked there is nobody to be tried with: everybody is tried alone, which finds those that are broken by
    themselves, and then the rest in ever other pairs until one works. Three nodes, or what is left of four, are too few for a
    pair beside a pair: each of their pairs is tried in its turn.
    """
    standing = judge(nodes, history)
    playing = tuple(node for node in nodes if node not in standing.fault)
    if all_pairs or len(playing) == _FEW:
        groups = _untried(playing, history)
        if groups:
            return groups
    if rounds == 0:
        return _neighbours(nodes)
    if rounds >= MOST_ROUNDS + (len(nodes) if all_pairs else 0):
        return ()
    if standing.suspect and not standing.good:
        return _strangers(playing, history)
    if standing.suspect or standing.unsure:
        return _ends(playing, standing)
    return _untried(playing, history) if len(playing) > _FEW and _in_every_group(history) else ()


def _in_every_group(history: Sequence[Played]) -> frozenset[int]:
    """Return the nodes that were in every group with a measured transfer; without a group to compare, they may be slow."""
    groups = [frozenset(played.group) for played in history if played.transfer is not None]
    return frozenset.intersection(*groups) if groups else frozenset()


def _neighbours(nodes: Sequence[int]) -> tuple[Group, ...]:
    pairs = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes), 2)]
    if len(pairs) > 1 and len(pairs[-1]) == 1:
        pairs[-2:] = [pairs[-2] + pairs[-1]]
    return tuple(pairs)


def _ends(playing: Sequence[int], standing: Standing) -> tuple[Group, ...]:
    """Pair the fastest with the slowest, the second fastest with the second slowest; who is left in the middle rests."""

    def slowness(node: int) -> tuple[bool, bool, float]:
        relative = max(
            _relative(standing.compute.get(node), standing.usual_compute),
            _relative(standing.transfer.get(node), standing.usual_transfer),
        )
        return node in standing.suspect, node in standing.unsure | standing.slow, relative

    order = sorted(playing, key=slowness)
    half = len(order) // 2
    return tuple((order[i], order[-1 - i]) for i in range(half))


def _relative(seconds: float | None, usual: float) -> float:
    return 0.0 if seconds is None or usual <= 0 else seconds / usual


def _strangers(playing: Sequence[int], history: Sequence[Played]) -> tuple[Group, ...]:
    """Find one pair that works where none did: everybody alone at first, then pairs that were not tried yet."""
    alone = {played.group[0] for played in history if len(played.group) == 1}
    if len(playing) == 1:  # everybody else is at fault, and alone it may work or not: nothing says which
        return () if playing[0] in alone else ((playing[0],),)
    if not alone.issuperset(playing):
        return tuple((node,) for node in playing)
    return _untried(playing, history)


def _untried(playing: Sequence[int], history: Sequence[Played]) -> tuple[Group, ...]:
    """Return pairs that were not tried yet, as many as can be at once; none when each has met each."""
    tried = {frozenset(played.group) for played in history}
    for number in range(len(playing) - 1 + len(playing) % 2):
        groups = tuple(g for g in _turn(playing, number) if len(g) > 1 and frozenset(g) not in tried)
        if groups:
            return groups
    return ()


def _turn(nodes: Sequence[int], number: int) -> tuple[Group, ...]:
    """Return turn `number` of a tournament in which each meets each (the circle method); of an odd number one is alone."""
    seats: list[int | None] = list(nodes)
    if len(seats) % 2:
        seats.append(None)
    fixed, ring = seats[0], seats[1:]
    number %= len(ring)
    table = [fixed, *ring[number:], *ring[:number]]
    pairs = [(table[i], table[-1 - i]) for i in range(len(table) // 2)]
    groups = (tuple(sorted(node for node in pair if node is not None)) for pair in pairs)
    return tuple(sorted(groups))
