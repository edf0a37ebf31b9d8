"""Positive evidence that a world can never go on, and what a silent world is answered with. Pure.

A rank that is silent may be at work: a child process, a download, an evaluation and a sleep look alike from outside, and all
other ranks wait for it in a collective that it has not entered. That is no evidence of a hang. Positive evidence is

- a rank whose process is stopped (state T of the kernel),
- threads of one process that wait in a circle for locks of each other,
- ranks that wait in collectives of which none can complete, because each needs a rank of this very set, or one that has ended.

The last one is computed as the largest set of blocked ranks in which each pending call of each rank needs another rank of the
set, or one that has ended. A rank that is not blocked, or of which nothing is known, may still enter a collective, so the ranks
that wait for it are not in the set. This assumes what torch asks of programs anyway: the ranks of a group call its collectives
from corresponding threads, in one order.

What is not provable, and so no positive evidence: all ranks are in the same collective (a large tensor on a slow network looks
like that); a rank waits for a `threading.Lock` (any thread may release one); a rank waits for a key of a store.

`decide` is the one rule for what follows. docs/guides/hangs.md has it as a table.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from rallypoint.capabilities.hang.blame import Ranks, waits
from rallypoint.capabilities.hang.description import ended
from rallypoint.wire.hang import GroupSeen, RankSeen

__all__ = [
    "Clock",
    "Deadlock",
    "DeadlockKind",
    "Decision",
    "RankEvidence",
    "RankState",
    "decide",
    "evidence_of",
    "find_deadlock",
]

#: Ranks that a sentence names.
_NAMED = 4


class RankState(str, enum.Enum):
    """State of a rank, as far as it decides whether it may go on by itself."""

    OWN_CODE = "own code"  #: computes, sleeps, reads, waits for a child process, a lock or a store; or nothing is known of it
    COLLECTIVE = "collective"  #: its main thread is blocked in torch.distributed, or in a backward pass, and calls are pending
    STOPPED = "stopped"  #: by a signal; one that a debugger has stopped is not
    LOCK_CYCLE = "lock cycle"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class RankEvidence:
    """What is known of one rank.

    Attributes:
        rank: its number in the world.
        state: see `RankState`.
        groups: its process groups, with the calls that are pending; empty where that is not known.
        cycle: of a `LOCK_CYCLE`, as a sentence.
    """

    rank: int
    state: RankState = RankState.OWN_CODE
    groups: tuple[GroupSeen, ...] = ()
    cycle: str = ""


class DeadlockKind(str, enum.Enum):
    """Why a world can never go on."""

    STOPPED = "stopped process"
    LOCK_CYCLE = "lock cycle"
    COLLECTIVES = "collectives that cannot complete"


@dataclass(frozen=True, kw_only=True)
class Deadlock:
    """Positive evidence. Two are equal where the same ranks are stuck in the same place.

    Attributes:
        kind: of the evidence.
        ranks: the ranks that can never go on.
        calls: the calls in which they wait, as (rank, group, number).
        reason: for people.
    """

    kind: DeadlockKind
    ranks: tuple[int, ...]
    calls: tuple[tuple[int, str, int], ...] = ()
    reason: str = ""


def evidence_of(ranks: Ranks) -> tuple[RankEvidence, ...]:
    """Return the evidence of all ranks that an agent has looked into."""
    return tuple(
        RankEvidence(rank=rank, state=_state(seen), groups=seen.groups, cycle=seen.cycle)
        for rank, seen in sorted(ranks.items())
    )


def _state(seen: RankSeen) -> RankState:
    if ended(seen):
        return RankState.ENDED
    if seen.state == "T":
        return RankState.STOPPED
    if seen.cycle:
        return RankState.LOCK_CYCLE
    pending = any(group.pending for group in seen.groups)
    return RankState.COLLECTIVE if pending and waits(seen) else RankState.OWN_CODE


# --- Whether a world can go on ---------------------------------------------------------------------------------------------


def find_deadlock(ranks: Iterable[RankEvidence]) -> Deadlock | None:
    """Return the positive evidence that these ranks can never go on, None where there is none."""
    world = {one.rank: one for one in ranks}
    stopped = tuple(sorted(rank for rank, one in world.items() if one.state is RankState.STOPPED))
    if stopped:
        return Deadlock(kind=DeadlockKind.STOPPED, ranks=stopped, reason=f"{_names(stopped)} stopped by a signal")
    cycles = tuple(sorted(rank for rank, one in world.items() if one.state is RankState.LOCK_CYCLE))
    if cycles:
        reason = f"{_names(cycles)} in a lock cycle: {world[cycles[0]].cycle}"
        return Deadlock(kind=DeadlockKind.LOCK_CYCLE, ranks=cycles, reason=reason)
    stuck = _stuck(world)
    if not stuck:
        return None
    calls = tuple((rank, call.name, call.number) for rank in stuck for call in _calls(world[rank]))
    return Deadlock(kind=DeadlockKind.COLLECTIVES, ranks=stuck, calls=calls, reason=_sentence(world, stuck))


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A pending call, as all of its ranks have it: the group, its members, the number in it, and the operation."""

    name: str
    members: range
    number: int
    operation: str


@dataclass(frozen=True, kw_only=True)
class _Needs:
    """What a pending call needs to complete.

    Attributes:
        late: living members of the group that have not called it.
        conflicts: members that have called another operation under its number.
        living: members that have not ended.
        gone: a member has ended; `unknown`: of a member nothing is known, so it may be anywhere.
    """

    late: frozenset[int]
    conflicts: frozenset[int]
    living: frozenset[int]
    gone: bool
    unknown: bool


def _stuck(world: Mapping[int, RankEvidence]) -> tuple[int, ...]:
    """Return the largest set of blocked ranks of which each call needs another one of the set, or one that has ended."""
    blocked = {rank for rank, one in world.items() if one.state is RankState.COLLECTIVE}
    known: dict[_Call, _Needs] = {}
    for rank in blocked:
        for call in _calls(world[rank]):
            if call not in known:
                known[call] = _needs(world, call)
    while True:
        left = {rank for rank in blocked if all(_never(rank, call, known[call], blocked) for call in _calls(world[rank]))}
        if left == blocked:
            return tuple(sorted(blocked))
        blocked = left


def _calls(one: RankEvidence) -> Iterator[_Call]:
    for group in one.groups:
        for call in group.pending:
            yield _Call(name=group.name, members=_members(group), number=call.number, operation=call.operation)


def _members(group: GroupSeen) -> range:
    return range(group.first, group.first + group.step * group.size, group.step)


def _needs(world: Mapping[int, RankEvidence], call: _Call) -> _Needs:
    here = {rank: one for rank, one in world.items() if rank in call.members}
    living = {rank: _same(one, call) for rank, one in here.items() if one.state is not RankState.ENDED}
    return _Needs(
        late=frozenset(rank for rank, own in living.items() if own is not None and own.called < call.number),
        conflicts=frozenset(rank for rank, own in living.items() if own is not None and _differs(own, call)),
        living=frozenset(living),
        gone=len(living) < len(here),
        unknown=len(here) < len(call.members) or None in living.values(),
    )


def _same(one: RankEvidence, call: _Call) -> GroupSeen | None:
    """Return the group of a call as another rank knows it."""
    return next((group for group in one.groups if group.name == call.name and _members(group) == call.members), None)


def _differs(own: GroupSeen, call: _Call) -> bool:
    return any(one.number == call.number and one.operation != call.operation for one in own.pending)


def _never(rank: int, call: _Call, needs: _Needs, blocked: AbstractSet[int]) -> bool:
    """Return whether a call of `rank` can complete only if another one of the `blocked` ranks goes on, or never."""
    if call.number == 0:
        # A send or receive has one other side, and torch does not say which: it may be any member.
        return not needs.unknown and len(call.members) > 1 and needs.living - {rank} <= blocked
    if not needs.late.isdisjoint(blocked) or not needs.conflicts.isdisjoint(blocked):
        return True
    # A collective that all living members have called, and that has not completed, needs the one that has ended.
    return needs.gone and not needs.late and not needs.unknown


def _sentence(world: Mapping[int, RankEvidence], stuck: Sequence[int]) -> str:
    """Return where the ranks wait: `ranks 0, 2 wait in all_reduce #41 of group 0, rank 1 waits in barrier #3 of group 1`."""
    places: dict[str, list[int]] = {}
    for rank in stuck:
        call = next(_calls(world[rank]))
        number = f" #{call.number}" if call.number else ""
        places.setdefault(f"{call.operation}{number} of group {call.name}", []).append(rank)
    parts = [f"{_names(ranks, 'waits', 'wait')} in {place}" for place, ranks in places.items()]
    gone = tuple(rank for rank, one in world.items() if one.state is RankState.ENDED)
    parts += [f"{_names(gone, 'has', 'have')} ended"] if gone else []
    return ", ".join(parts)


def _names(ranks: Sequence[int], one: str = "is", many: str = "are") -> str:
    named = ", ".join(map(str, ranks[:_NAMED])) + (f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else "")
    return f"rank {named} {one}" if len(ranks) == 1 else f"ranks {named} {many}"


# --- What follows ----------------------------------------------------------------------------------------------------------


class Clock(str, enum.Enum):
    """The clock that has expired."""

    LEARNED = "learned"  #: the bound that was learned for the phase of the ranks
    DOWNTIME = "downtime"  #: `hang_downtime`


class Decision(str, enum.Enum):
    """Answer to a silence."""

    WAIT = "wait"  #: nothing; look again after twice the time
    CONFIRM = "confirm"  #: nothing; look again soon, whether the positive evidence is still the same
    NOTIFY = "notify"  #: tell; nothing is restarted
    ACT = "act"  #: do what `hang_detection` asks for: a restart with 2


def decide(*, clock: Clock, found: Deadlock | None, before: Deadlock | None, plausible: bool) -> Decision:
    """Return what a silent world is answered with.

    Args:
        clock: the one that has expired.
        found: the positive evidence of this look; `before` that of the look before it, within the same silence.
        plausible: the ranks seem to wait (`plausibility.looks_hung`); if not, nothing is published before `hang_downtime`.
    """
    if clock is Clock.DOWNTIME:
        return Decision.ACT
    if found is not None:
        if before is None:
            return Decision.CONFIRM
        if (found.kind, found.ranks, found.calls) == (before.kind, before.ranks, before.calls):
            return Decision.ACT
    return Decision.NOTIFY if plausible else Decision.WAIT
