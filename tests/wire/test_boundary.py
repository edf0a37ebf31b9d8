"""The agreement on a step boundary: all interleavings of two and three ranks, then the store in a file."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rallypoint.wire.boundary import BoundaryAgreement, BoundaryFile, Visit, perform

# --- The model -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The store, as a value; a method that changes it returns the next one beside its result."""

    marks: tuple[int | None, ...]
    joined: frozenset[int] = frozenset()
    agreed: int | None = None


class Store:
    """The store of one operation."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    def mark(self, rank: int, boundary: int) -> None:
        marks = tuple(boundary if place == rank else mark for place, mark in enumerate(self.shared.marks))
        self.shared = dataclasses.replace(self.shared, marks=marks)

    def join(self, rank: int) -> int:
        self.shared = dataclasses.replace(self.shared, joined=self.shared.joined | {rank})
        return self.missing()

    def missing(self) -> int:
        return len(self.shared.marks) - len(self.shared.joined)

    def read_mark(self, rank: int) -> int | None:
        return self.shared.marks[rank]

    def decision(self) -> int | None:
        return self.shared.agreed

    def decide(self, boundary: int) -> int:
        if self.shared.agreed is None:
            self.shared = dataclasses.replace(self.shared, agreed=boundary)
        assert self.shared.agreed is not None
        return self.shared.agreed


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank: at `boundary`, or in the step after it; `replies` are those of its visit so far, None between two visits."""

    boundary: int = 0
    in_step: bool = True
    heard: bool = False
    acted: bool = False
    replies: tuple[Any, ...] | None = None
    patient: bool = True
    agreement: tuple[Any, ...] = (None, None, 0, False)


@dataclass(frozen=True, kw_only=True)
class World:
    ranks: tuple[Rank, ...]
    shared: Shared

    def after(self, number: int, shared: Shared | None = None, **changes: Any) -> World:
        rank = dataclasses.replace(self.ranks[number], **changes)
        return World(ranks=(*self.ranks[:number], rank, *self.ranks[number + 1 :]), shared=shared or self.shared)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """`lag`: how many steps a rank may be behind another at most, None without collectives; `raises`: impatient visits of each.

    Each rank hears of the request before it passes boundary `heard_by`.
    """

    lag: int | None
    raises: int
    heard_by: int = 2


def begin(agreement: tuple[Any, ...], number: int, size: int) -> BoundaryAgreement:
    found = BoundaryAgreement(number, size)
    found.mark, found.agreed, found._raised, found._completed = agreement
    return found


def one_operation(world: World, number: int) -> World:
    """Return the world after the next operation of the visit that rank `number` makes."""
    rank = world.ranks[number]
    agreement = begin(rank.agreement, number, len(world.ranks))
    visit, store = agreement.visit(rank.boundary, patient=rank.patient), Store(world.shared)
    try:
        operation = next(visit)
        for reply in rank.replies or ():
            operation = visit.send(reply)
        reply = operation(store)
        visit.send(reply)
    except StopIteration as end:
        known = (agreement.mark, agreement.agreed, agreement._raised, agreement._completed)
        if end.value is Visit.HOLD:
            return world.after(number, store.shared, replies=None, agreement=known)
        acts = end.value is Visit.ACT
        return world.after(number, store.shared, replies=None, agreement=known, acted=acts, in_step=not acts, patient=True)
    return world.after(number, store.shared, replies=(*(rank.replies or ()), reply))


def moves(world: World, rules: Rules) -> Iterator[World]:
    """Yield each world that the next step of some rank leads to."""
    for number, rank in enumerate(world.ranks):
        if rank.acted:
            continue
        if not rank.heard:
            yield world.after(number, heard=True)
        if rank.in_step:
            behind = rank.boundary - (rules.lag or 0) + 1
            if rules.lag is None or all(other.boundary + other.in_step > behind for other in world.ranks):
                yield world.after(number, boundary=rank.boundary + 1, in_step=False)
        elif rank.replies is not None or rank.heard:
            if rank.replies is not None or not rank.agreement[0] or not rank.patient or world_changed(world, number):
                yield one_operation(world, number)
            if rank.replies is None and rank.patient and rank.agreement[0] and rank.agreement[2] < rules.raises:
                yield world.after(number, patient=False)
        elif rank.boundary < rules.heard_by:
            yield world.after(number, in_step=True)


def world_changed(world: World, number: int) -> bool:
    """Return whether a visit of a rank that holds may end otherwise than before: all have joined, or it passes anyway."""
    return not Store(world.shared).missing() or world.ranks[number].agreement[1] is not None


def explored(size: int, rules: Rules) -> tuple[int, set[tuple[int, ...]]]:
    """Return how many worlds there are, and where the ranks stand in those that go nowhere; every one must be an agreement."""
    first = World(ranks=(Rank(),) * size, shared=Shared(marks=(None,) * size))
    seen, open_, ends = {first}, [first], set()
    while open_:
        world = open_.pop()
        after = set(moves(world, rules))
        if not after:
            assert all(rank.acted for rank in world.ranks), f"blocked: {world}"
            ends.add(tuple(rank.boundary for rank in world.ranks))
        acted = {rank.boundary for rank in world.ranks if rank.acted}
        assert len(acted) <= 1, f"acted at several boundaries: {world}"
        assert not acted or all(rank.boundary <= min(acted) for rank in world.ranks), f"a rank has passed: {world}"
        fresh = after - seen
        seen |= fresh
        open_ += fresh
    return len(seen), ends


@pytest.mark.parametrize(
    ("size", "rules"),
    [
        pytest.param(2, Rules(lag=1, raises=0), id="two ranks in step"),
        pytest.param(3, Rules(lag=1, raises=0), id="three ranks in step"),
        pytest.param(2, Rules(lag=None, raises=0, heard_by=3), id="two ranks without collectives"),
        pytest.param(3, Rules(lag=None, raises=0, heard_by=1), id="three ranks without collectives"),
        pytest.param(2, Rules(lag=1, raises=2), id="two ranks in step, patience over at any time"),
        pytest.param(2, Rules(lag=None, raises=2), id="two ranks without collectives, patience over at any time"),
        pytest.param(3, Rules(lag=1, raises=1, heard_by=1), id="three ranks in step, patience over at any time"),
        pytest.param(2, Rules(lag=3, raises=4, heard_by=4), id="a pipeline, whose ranks are up to three steps apart"),
    ],
)
def test_all_ranks_act_at_one_boundary_in_every_interleaving(size: int, rules: Rules) -> None:
    """No order of their operations lets a rank pass the agreed boundary, and none blocks them."""
    worlds, ends = explored(size, rules)

    assert worlds > 100
    assert ends
    assert all(len(set(end)) == 1 for end in ends)


# --- The store in a file ---------------------------------------------------------------------------------------------------


def test_the_file_is_one_store_for_all_processes(tmp_path: Path) -> None:
    """Ranks that are processes of their own come to one decision, however they interleave."""
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        for number in range(5):
            path = tmp_path / str(number)
            acted = pool.starmap(_act, [(str(path), rank, 3) for rank in range(3)])
            assert len(set(acted)) == 1


def _act(path: str, rank: int, size: int) -> int:
    """Train without collectives, a boundary at a time, and return the one at which the request is carried out."""
    agreement, store = BoundaryAgreement(rank, size), BoundaryFile(Path(path), size)
    boundary = 10 * rank
    while (visit := perform(agreement.visit(boundary), store)) is not Visit.ACT:
        boundary += visit is Visit.PASS
    return boundary


def test_a_line_that_a_killed_process_left_incomplete_has_no_effect(tmp_path: Path) -> None:
    """It is not completed by the next one."""
    store = BoundaryFile(tmp_path / "agreement", 2)
    store.mark(0, 7)
    with store._path.open("a") as file:
        file.write("mark 0 12")  # of "mark 0 1234"
    assert store.read_mark(0) == 7

    store.mark(1, 9)

    assert (store.read_mark(0), store.read_mark(1)) == (7, 9)
    assert store._path.stat().st_mode & 0o777 == 0o600


def test_a_rank_that_has_finished_is_not_missing(tmp_path: Path) -> None:
    """It counts once, whether it had joined or not; its marks stay below the decision."""
    finished: set[int] = set()
    store = BoundaryFile(tmp_path / "agreement", 3, lambda: finished)
    store.mark(0, 5)
    assert store.join(0) == 2
    finished.add(0)
    assert store.missing() == 2
    finished.add(1)
    assert store.missing() == 1
    agreement = BoundaryAgreement(2, 3)

    visits = [perform(agreement.visit(boundary), store) for boundary in (3, 4, 5, 6)]

    assert visits == [Visit.PASS, Visit.PASS, Visit.PASS, Visit.ACT]
    assert (store.decision(), store.decide(99)) == (6, 6)


def test_a_rank_by_itself_acts_at_once() -> None:
    """It has nobody to agree with."""
    assert perform(BoundaryAgreement(0, 1).visit(3), Store(Shared(marks=(None,)))) is Visit.ACT
