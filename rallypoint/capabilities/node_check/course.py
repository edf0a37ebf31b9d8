"""One check of all nodes from its first round to its end: who is asked what, what was heard, and what is told. Pure.

A round is over when each of its groups is. A group is over when all of its members have said how it went; sooner when one
failed by itself or is gone, since nothing that the others say can change that, or `ECHO` after one failed: another may say in
that time that it was to blame, and many only wait for who is not there any more. At the latest it is over when the time is
that the members have, and a little more for the word of it to arrive. Who has said nothing by then has failed.

Who is still busy with an old task drops it when it is given the next.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rallypoint.capabilities.node_check.judging import Group, Played, Standing, judge
from rallypoint.capabilities.node_check.pairing import next_groups
from rallypoint.wire.check import AllNodes, CheckReport, CheckTask, ProbeState

__all__ = ["ECHO", "SLACK", "Course", "Seat", "Stage", "advanced", "asked", "begun", "due", "heard", "left", "standing"]

#: Seconds that a node's word may take beyond the time that its probe has.
SLACK = 10.0

#: Seconds for which the members of a group are listened to after one of them failed.
ECHO = 2.0


class Stage(enum.Enum):
    """What is tried."""

    GROUPS = "groups"  #: pairs, round after round
    WHOLE = "whole"  #: all good nodes at once
    OVER = "over"


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A node that is checked; `size` is the number of its ranks."""

    agent: str
    node: int
    incarnation: int
    host: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Course:
    """A check as it stands. Nodes are numbered as their seats are.

    Attributes:
        number, term, level, reason: of the check.
        limit: seconds that a round's probes have.
        all_pairs: each pair is tried.
        exclude_straggler: stragglers will not train, so that they are left out of the run of all nodes.
        gone: seats whose agent is lost.
        task: number of the round's task; `since` when it was given out.
        groups: of the round that is played; `heard` what its members have said, and `heard_at` when.
        stores: where each agent can serve a store.
        history: all groups before; `rounds` how many rounds they were.
        errors: the last error of each seat; `whole` the run of all nodes.
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
        """The seats whose agents are still there."""
        return tuple(i for i in range(len(self.seats)) if i not in self.gone)


def standing(course: Course) -> Standing:
    """Return what is known so far."""
    return judge(course.here, course.history)


def begun(course: Course, now: float) -> Course:
    """Return a new check in its first round; its task is the one after `course.task`."""
    return _next_round(course, now)


# --- What is said ----------------------------------------------------------------------------------------------------------


def asked(course: Course, agent: str, said: CheckReport | None) -> CheckTask | None:
    """Return what an agent is asked to try, None when it has nothing to do or has begun already; `said` is its last word."""
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


def heard(course: Course, agent: str, said: CheckReport, now: float) -> Course:
    """Return the check after an agent's word."""
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


def left(course: Course, present: Collection[str]) -> Course:
    """Return the check without the agents that are not `present` any more."""
    gone = frozenset(i for i, seat in enumerate(course.seats) if seat.agent not in present)
    return course if gone <= course.gone else dataclasses.replace(course, gone=course.gone | gone)


# --- What follows ----------------------------------------------------------------------------------------------------------


def due(course: Course) -> float | None:
    """Return when something follows if nothing is heard; None when the check is over."""
    if course.stage is Stage.OVER:
        return None
    return min((_closes(course, group) for group in course.groups if not _is_settled(course, group)), default=course.since)


def advanced(course: Course, now: float) -> Course:
    """Return the check with every round closed that is over; the very same where none is."""
    while course.stage is not Stage.OVER and all(_is_over(course, group, now) for group in course.groups):
        course = _close_whole(course) if course.stage is Stage.WHOLE else _close_round(course, now)
    return course


def _is_over(course: Course, group: Group, now: float) -> bool:
    return now >= _closes(course, group) or _is_settled(course, group)


def _is_settled(course: Course, group: Group) -> bool:
    said = [course.heard[i] for i in group if i in course.heard]
    return len(said) == len(group) or any(one.own for one in said) or bool(course.gone.intersection(group))


def _closes(course: Course, group: Group) -> float:
    """Return when a group is over though some of it have said nothing."""
    failed = [course.heard_at[i] for i in group if i in course.heard and course.heard[i].state is ProbeState.FAILED]
    return min((course.since + course.limit + SLACK, *(at + ECHO for at in failed)))


def _close_round(course: Course, now: float) -> Course:
    played = tuple(_played(course, group) for group in course.groups)
    errors = dict(course.errors)
    if now >= course.since + course.limit + SLACK:
        errors.update({i: _silent(course) for group in course.groups for i in group if i not in course.heard})
    course = dataclasses.replace(course, history=course.history + played, rounds=course.rounds + 1, errors=errors)
    return _next_round(course, now)


def _silent(course: Course) -> str:
    return f"the test process of this node sent no result within {course.limit:g} s"


def _played(course: Course, group: Group) -> Played:
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
        # What one node does within itself says nothing of its network.
        transfer=transfer if len(group) > 1 and transfer > 0 else None,
        bandwidth=moved / transfer if transfer > 0 else 0.0,
        latency=max(one.latency for one in said.values()),
    )


def _next_round(course: Course, now: float) -> Course:
    groups = next_groups(course.here, course.history, rounds=course.rounds, all_pairs=course.all_pairs)
    if groups:
        return dataclasses.replace(course, groups=groups, heard={}, heard_at={}, task=course.task + 1, since=now)
    return _whole(dataclasses.replace(course, groups=(), heard={}), now)


def _whole(course: Course, now: float) -> Course:
    """Go on to the run of all nodes that will train, where one is asked for and there are ranks to talk to each other."""
    found = standing(course)
    chosen = tuple(sorted(found.good - (found.slow if course.exclude_straggler else frozenset())))
    if course.level < 2 or sum(course.seats[i].size for i in chosen) < 2:
        return dataclasses.replace(course, stage=Stage.OVER)
    return dataclasses.replace(course, stage=Stage.WHOLE, groups=(chosen,), task=course.task + 1, since=now)


def _close_whole(course: Course) -> Course:
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


def _first_error(course: Course, group: Sequence[int]) -> str:
    for i in group:
        said = course.heard.get(i)
        if said is not None and said.error:
            return f"node {course.seats[i].node} on {course.seats[i].host}: {said.error}"
    silent = next((i for i in group if i not in course.heard), group[0])
    return f"node {course.seats[silent].node} on {course.seats[silent].host}: {_silent(course)}"
