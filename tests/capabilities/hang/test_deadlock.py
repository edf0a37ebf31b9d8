"""Positive evidence of a hang: what proves that a world can never go on, and what a silence is answered with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.capabilities.hang.deadlock import (
    Clock,
    Deadlock,
    DeadlockKind,
    Decision,
    RankEvidence,
    RankState,
    decide,
    evidence_of,
    find_deadlock,
)
from rallypoint.wire.hang import CallSeen, GroupSeen, RankSeen

REDUCE = ("torch/distributed/distributed_c10d.py:3252 all_reduce", "train.py:20 step")


def call(number: int, operation: str = "all_reduce") -> CallSeen:
    return CallSeen(operation=operation, number=number)


def group(called: int, *pending: CallSeen, name: str = "0", size: int = 2, first: int = 0, step: int = 1) -> GroupSeen:
    return GroupSeen(name=name, first=first, step=step, size=size, called=called, pending=pending)


def blocked(rank: int, *groups: GroupSeen) -> RankEvidence:
    return RankEvidence(rank=rank, state=RankState.COLLECTIVE, groups=groups)


def own(rank: int, *groups: GroupSeen) -> RankEvidence:
    return RankEvidence(rank=rank, groups=groups)


def gone(rank: int) -> RankEvidence:
    return RankEvidence(rank=rank, state=RankState.ENDED)


def trio(name: str, called: int, *pending: CallSeen) -> GroupSeen:
    return group(called, *pending, name=name, size=3)


@pytest.mark.parametrize(
    ("ranks", "stuck"),
    [
        pytest.param([], (), id="nothing is known"),
        pytest.param(
            [blocked(0, group(7, call(7))), own(1, group(6))], (), id="one is in its own code, the other waits for it"
        ),
        pytest.param([blocked(0, group(7, call(7))), own(1)], (), id="of one nothing is known"),
        pytest.param([blocked(0, group(7, call(7)))], (), id="one agent has not answered"),
        pytest.param(
            [blocked(0, group(7, call(7))), blocked(1, group(7, call(7)))],
            (),
            id="all are in the same collective: it may be large, and the network slow",
        ),
        pytest.param(
            [blocked(0, group(7, call(7))), blocked(1, group(7, call(7, "broadcast")))],
            (0, 1),
            id="different operations under one number",
        ),
        pytest.param(
            [
                blocked(0, group(8, call(8)), group(3, name="1")),
                blocked(1, group(7), group(4, call(4, "barrier"), name="1")),
            ],
            (0, 1),
            id="each waits in a group that the other has not come to",
        ),
        pytest.param(
            [
                blocked(0, trio("0", 8, call(8)), trio("1", 3)),
                blocked(1, trio("0", 7), trio("1", 4, call(4))),
                blocked(2, trio("0", 8, call(8)), trio("1", 3)),
            ],
            (0, 1, 2),
            id="one of three has left a collective out",
        ),
        pytest.param(
            [
                blocked(0, trio("0", 8, call(8)), trio("1", 3)),
                blocked(1, trio("0", 7), trio("1", 4, call(4))),
                own(2, trio("0", 7), trio("1", 3)),
            ],
            (0, 1),
            id="two wait for each other, whatever the third does",
        ),
        pytest.param([blocked(0, group(7, call(7))), gone(1)], (0,), id="one has ended while the other waits for it"),
        pytest.param(
            [blocked(0, trio("0", 7, call(7))), gone(1), own(2, trio("0", 6))],
            (),
            id="one has ended, and another one may still come",
        ),
        pytest.param(
            [blocked(0, trio("0", 7, call(7))), gone(1), blocked(2, trio("0", 7, call(7)))],
            (0, 2),
            id="one has ended, all others wait",
        ),
        pytest.param([own(0, group(7)), gone(1)], (), id="one has ended, and nobody waits for it"),
        pytest.param(
            [blocked(0, group(7, call(7))), blocked(1, group(6, call(0, "recv")))],
            (0, 1),
            id="one receives from a rank that waits for it",
        ),
        pytest.param(
            [
                blocked(0, trio("0", 7, call(7))),
                blocked(1, trio("0", 6, call(0, "recv"))),
                own(2, trio("0", 6)),
            ],
            (),
            id="one receives, and the sender may be the rank that is in its own code",
        ),
        pytest.param(
            [
                blocked(0, group(8, call(8)), group(3, name="1")),
                blocked(1, group(7), group(4, call(4), name="1", size=1, first=1)),
            ],
            (),
            id="groups of one name with other members are not the same",
        ),
        pytest.param(
            [blocked(0, group(8, call(8), name="a", step=2)), own(2, group(7, name="a", step=2)), own(1)],
            (),
            id="members that are two apart",
        ),
        pytest.param(
            [
                blocked(0, group(8, call(8)), group(5, call(5), name="1")),
                own(1, group(7), group(5, name="1")),
            ],
            (),
            id="of two calls that are pending one may complete",
        ),
    ],
)
def test_which_ranks_can_never_go_on(ranks: list[RankEvidence], stuck: tuple[int, ...]) -> None:
    """A rank that may still come is never part of a proof, nor is one that waits for it alone."""
    found = find_deadlock(ranks)

    assert (() if found is None else found.ranks) == stuck


def test_a_large_world_is_judged_in_time() -> None:
    """Two thousand ranks, one of which has left a collective out; a group that a rank invents is no reason to count to it."""
    ranks = [blocked(n, group(8, call(8), size=2000), group(3, name="1", size=2000)) for n in range(2000)]
    ranks[1] = blocked(1, group(7, size=2000), group(4, call(4), name="1", size=2000))
    found = find_deadlock(ranks)
    invented = find_deadlock([blocked(0, group(8, call(8), size=10**15)), own(1, group(7))])

    assert found is not None
    assert (len(found.ranks), invented) == (2000, None)


def test_a_stopped_process_and_a_lock_cycle_are_positive_evidence() -> None:
    """They are named before collectives: who waits for them, waits because of them."""
    stopped = [blocked(0, group(7, call(7))), RankEvidence(rank=1, state=RankState.STOPPED)]
    cycle = [RankEvidence(rank=0, state=RankState.LOCK_CYCLE, cycle="thread 7 waits for thread 8, which waits for thread 7")]

    assert find_deadlock(stopped) == Deadlock(kind=DeadlockKind.STOPPED, ranks=(1,), reason="rank 1 is stopped by a signal")
    found = find_deadlock(cycle)
    assert found is not None
    assert (found.kind, found.ranks) == (DeadlockKind.LOCK_CYCLE, (0,))
    assert "thread 8" in found.reason


def test_the_reason_says_where_each_rank_waits() -> None:
    """In one sentence."""
    found = find_deadlock(
        [
            blocked(0, trio("0", 8, call(8)), trio("1", 3)),
            blocked(1, trio("0", 7), trio("1", 4, call(4, "barrier"))),
            blocked(2, trio("0", 8, call(8)), trio("1", 3)),
        ]
    )

    assert found is not None
    assert found.reason == "ranks 0, 2 wait in all_reduce #8 of group 0, rank 1 waits in barrier #4 of group 1"


def seen(**more: object) -> RankSeen:
    fields: dict[str, object] = {"local_rank": 0, "pid": 7, "state": "S", "frames": REDUCE, **more}
    return RankSeen(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rank", "state"),
    [
        pytest.param(seen(groups=(group(7, call(7)),)), RankState.COLLECTIVE, id="in a collective that has not completed"),
        pytest.param(seen(groups=(group(7),)), RankState.OWN_CODE, id="in torch.distributed, and nothing is pending"),
        pytest.param(seen(), RankState.OWN_CODE, id="in torch.distributed, and torch was not asked"),
        pytest.param(
            seen(frames=("train.py:9 load",), groups=(group(7, call(7)),)), RankState.OWN_CODE, id="a call in the background"
        ),
        pytest.param(seen(frames=(), groups=(group(7, call(7)),)), RankState.OWN_CODE, id="no stack"),
        pytest.param(seen(state="T"), RankState.STOPPED, id="stopped"),
        pytest.param(seen(state="t"), RankState.OWN_CODE, id="a debugger looks at it"),
        pytest.param(seen(state="D"), RankState.OWN_CODE, id="waits for a disk"),
        pytest.param(seen(state=""), RankState.ENDED, id="ended"),
        pytest.param(seen(cycle="thread 1 waits for thread 1"), RankState.LOCK_CYCLE, id="a lock cycle"),
    ],
)
def test_the_state_of_a_rank(rank: RankSeen, state: RankState) -> None:
    """Only a rank that is blocked for certain counts as blocked."""
    assert evidence_of({3: rank}) == (RankEvidence(rank=3, state=state, groups=rank.groups, cycle=rank.cycle),)


STOPPED = Deadlock(kind=DeadlockKind.STOPPED, ranks=(1,))


@pytest.mark.parametrize(
    ("clock", "found", "before", "plausible", "expected"),
    [
        pytest.param(Clock.LEARNED, None, None, True, Decision.NOTIFY, id="no positive evidence: it is notified"),
        pytest.param(Clock.LEARNED, None, None, False, Decision.WAIT, id="all compute: nothing is told"),
        pytest.param(Clock.LEARNED, STOPPED, None, True, Decision.CONFIRM, id="positive evidence is looked at twice"),
        pytest.param(Clock.LEARNED, STOPPED, STOPPED, True, Decision.ACT, id="the same again"),
        pytest.param(
            Clock.LEARNED, STOPPED, Deadlock(kind=DeadlockKind.STOPPED, ranks=(2,)), True, Decision.NOTIFY, id="another one"
        ),
        pytest.param(Clock.LEARNED, None, STOPPED, True, Decision.NOTIFY, id="it is gone"),
        pytest.param(Clock.DOWNTIME, None, None, False, Decision.ACT, id="hang_downtime is over"),
    ],
)
def test_what_a_silence_is_answered_with(
    clock: Clock, found: Deadlock | None, before: Deadlock | None, plausible: bool, expected: Decision
) -> None:
    """The table of docs/guides/hangs.md."""
    assert decide(clock=clock, found=found, before=before, plausible=plausible) is expected


@given(
    clock=st.sampled_from(Clock),
    found=st.sampled_from([None, STOPPED]),
    before=st.sampled_from([None, STOPPED]),
    plausible=st.booleans(),
)
def test_nothing_is_restarted_early_without_evidence_that_was_found_twice(
    clock: Clock, found: Deadlock | None, before: Deadlock | None, plausible: bool
) -> None:
    """Whatever the other inputs are."""
    acts = decide(clock=clock, found=found, before=before, plausible=plausible) is Decision.ACT

    assert acts <= (clock is Clock.DOWNTIME or (found is not None and found == before))
    assert acts or clock is Clock.LEARNED


# --- A model of ranks that call collectives, for the soundness of a proof ---------------------------------------------------

Program = list[tuple[str, str]]

GROUPS = {"0": range(3), "1": range(2), "2": range(0, 3, 2)}


@dataclass
class Rank:
    """A rank that runs a program: `work`, `end`, or an operation on a group, which it waits for at once or with `wait`."""

    program: Program
    at: int = 0
    called: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUPS, 0))
    pending: list[tuple[str, int, str]] = field(default_factory=list)
    waiting: bool = False
    ended: bool = False


@dataclass
class Model:
    """Ranks that take turns. A collective completes when all of its members have called the same operation under its number."""

    ranks: list[Rank]
    calls: dict[tuple[str, int], dict[int, str]] = field(default_factory=dict)

    def takes_turn(self, number: int) -> bool:
        """Let a rank go on by one operation; return whether it could."""
        rank = self.ranks[number]
        rank.pending = [one for one in rank.pending if not self._is_complete(one)]
        if rank.ended or (rank.waiting and rank.pending):
            return False
        rank.waiting = False
        if rank.at == len(rank.program):
            rank.ended = True
            return True
        kind, name = rank.program[rank.at]
        rank.at += 1
        if kind == "wait":
            rank.waiting = True
        elif kind != "work" and number in GROUPS[name]:
            operation = kind.removesuffix(" async")
            rank.called[name] += 1
            self.calls.setdefault((name, rank.called[name]), {})[number] = operation
            rank.pending.append((name, rank.called[name], operation))
            rank.waiting = operation == kind
        return True

    def _is_complete(self, one: tuple[str, int, str]) -> bool:
        name, number, operation = one
        called = self.calls[name, number]
        return set(called) == set(GROUPS[name]) and set(called.values()) == {operation}

    def evidence(self) -> list[RankEvidence]:
        """Return what agents would find now."""
        found = []
        for number, rank in enumerate(self.ranks):
            rank.pending = [one for one in rank.pending if not self._is_complete(one)]
            blocked_now = rank.waiting and bool(rank.pending)
            state = RankState.ENDED if rank.ended else RankState.COLLECTIVE if blocked_now else RankState.OWN_CODE
            groups = tuple(
                group(
                    rank.called[name],
                    *(call(n, operation) for in_group, n, operation in rank.pending if in_group == name),
                    name=name,
                    first=members[0],
                    step=members.step,
                    size=len(members),
                )
                for name, members in GROUPS.items()
                if number in members
            )
            found.append(RankEvidence(rank=number, state=state, groups=() if rank.ended else groups))
        return found


OPERATIONS = st.tuples(
    st.sampled_from(["work", "all_reduce", "barrier", "all_reduce async", "wait"]), st.sampled_from(sorted(GROUPS))
)
PROGRAMS = st.lists(OPERATIONS, max_size=8)


@st.composite
def programs(draw: st.DrawFn) -> list[Program]:
    """Return three programs: equal ones, of which some leave an operation out or do one twice."""
    common = draw(PROGRAMS)
    found: list[Program] = []
    for _ in range(3):
        mine = list(common)
        differs = draw(st.booleans())
        if mine and differs:
            where = draw(st.integers(0, len(mine) - 1))
            instead: list[Program] = [[], [mine[where]] * 2, [("work", "0")] * 3]
            mine[where : where + 1] = draw(st.sampled_from(instead))
        found.append(mine)
    return found


@settings(deadline=None)
@given(programs(), st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=60))
def test_a_rank_that_is_called_stuck_never_goes_on(code: list[Program], before: Sequence[int], after: Sequence[int]) -> None:
    """Looked at in any moment, and whatever order the others go on in."""
    model = Model(ranks=[Rank(program=list(one)) for one in code])
    for number in before:
        model.takes_turn(number)
    found = find_deadlock(model.evidence())
    stuck = () if found is None else found.ranks

    for number in (*after, *(n for _ in range(20) for n in range(3))):
        assert not (model.takes_turn(number) and number in stuck)


@settings(deadline=None)
@given(programs(), st.lists(st.integers(0, 2), max_size=40))
def test_a_world_in_which_no_rank_can_go_on_is_called_stuck(code: list[Program], before: Sequence[int]) -> None:
    """And one whose ranks have all ended is not; with equal programs no world is."""
    model = Model(ranks=[Rank(program=list(one)) for one in code])
    for number in (*before, *(n for _ in range(40) for n in range(3))):
        model.takes_turn(number)
    living = tuple(number for number, rank in enumerate(model.ranks) if not rank.ended)
    found = find_deadlock(model.evidence())

    assert (() if found is None else found.ranks) == living
    assert not (living and code[0] == code[1] == code[2])
