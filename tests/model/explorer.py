"""Going through the states of a model: all of them up to a depth, or some of them for as long as one likes."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rallypoint.agent.node.decide import Phase
from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobState
from tests.model.workers import whole_worlds
from tests.model.world import RUNS, Limits, Move, World, moves, over, pass_time

#: What happens less often on a random way than anything else: otherwise it has all gone wrong before it has begun.
_RARE = (
    "crashes",
    "killed",
    "shim",
    "in vain",
    "cut off",
    "reached",
    "passes",
    "jumps",
    "is deleted",
    "is suspended",
    "fails",
    "end well",
    "is dead",
    "raises",
    "time enough",
)
_COMMON = 8

__all__ = ["Found", "check", "explore", "follow", "settle", "walk"]

#: Moves of `settle` until a job that is left alone counts as one that never ends.
_PATIENCE = 3000


@dataclass(frozen=True, kw_only=True)
class Found:
    """What an exploration came to: how many states, to which depth all of them, and the first that must not be."""

    states: int
    depth: int
    broken: tuple[str, ...] = ()
    trace: tuple[Move, ...] = ()

    def tell(self) -> str:
        """Return the story of what went wrong, a move a line."""
        lines = [f"{place + 1:>3}. {what} {who}" for place, (what, who) in enumerate(self.trace)]
        return "\n".join((*self.broken, *lines))


def check(world: World) -> tuple[str, ...]:
    """Return what must not be in a state."""
    return (*_attempts(world), *_worlds(world), *_charges(world), *_ends(world))


def _attempts(world: World) -> Iterable[str]:
    alive = {key[0] for key, proc in world.procs if proc.phase in RUNS and key[1] >= 0}
    if len(alive) > 1:
        yield f"attempts {sorted(alive)} live at once"


def _worlds(world: World) -> Iterable[str]:
    """Return whether two whole worlds have workers; a world of which a member is gone, or has left it, can do no step."""
    yield from world.wrong
    whole, twice = whole_worlds(world)
    if len(whole) > 1:
        yield f"two whole worlds have workers: {[place.world for place in whole]}"
    yield from twice


def _charges(world: World) -> Iterable[str]:
    """Return whether more faults of workers were charged than there were: each is charged once, whoever died of it."""
    if not world.living or world.status is None:
        return
    told = sum(i.cause is Cause.PROCESS for i in world.status.incidents) + sum(
        folded.count for folded in world.status.folded if folded.cause is Cause.PROCESS
    )
    if told > world.faults:
        yield f"{told} faults of workers are charged, and {world.faults} things went wrong"


def _ends(world: World) -> Iterable[str]:
    alive = [key for key, proc in world.procs if proc.phase in RUNS]
    if world.record is None and alive:
        yield f"the record is gone, but {alive} live"
    elif world.record is not None and world.record.released and alive:
        yield f"released, but {alive} live"
    if world.record is not None and world.record.retries > world.policy.retry_limit:
        yield f"{world.record.retries} retries"


def explore(
    start: Any,
    *,
    depth: int,
    most: int,
    check_: Callable[[Any], tuple[str, ...]] = check,
    moves_: Callable[[Any], Iterable[tuple[Move, Any]]] = moves,
) -> Found:
    """Go through every state that can be reached in `depth` moves, nearest first, until there are `most` of them."""
    parents: dict[Any, tuple[Any, Move] | None] = {start: None}
    edge = [start]
    for level in range(depth):
        fresh: list[Any] = []
        for world in edge:
            for move, after in moves_(world):
                # One look: a world is large, and its hash takes a while.
                way = (world, move)
                if parents.setdefault(after, way) is not way:
                    continue
                broken = check_(after)
                if broken:
                    return Found(states=len(parents), depth=level, broken=broken, trace=_story(parents, after))
                fresh.append(after)
                if len(parents) >= most:
                    return Found(states=len(parents), depth=level)
        if not fresh:
            return Found(states=len(parents), depth=level)
        edge = fresh
    return Found(states=len(parents), depth=depth)


def _story(parents: dict[Any, tuple[Any, Move] | None], world: Any) -> tuple[Move, ...]:
    told: list[Move] = []
    while (before := parents[world]) is not None:
        world, move = before
        told.append(move)
    return tuple(reversed(told))


def walk(start: World, *, seed: int, steps: int) -> tuple[World, Found]:
    """Go one random way; return where it came to."""
    chance = random.Random(seed)
    world, story = start, []
    for _ in range(steps):
        choices = list(moves(world))
        if not choices:
            break
        weights = [1 if _is_rare(move) else _COMMON for move, _ in choices]
        [(move, world)] = chance.choices(choices, weights)
        story.append(move)
        broken = check(world)
        if broken:
            return world, Found(states=len(story), depth=len(story), broken=broken, trace=tuple(story))
    return world, Found(states=len(story), depth=len(story), trace=tuple(story))


def _is_rare(move: Move) -> bool:
    return any(word in move[0] for word in _RARE)


def settle(start: World, story: Sequence[Move], *, seed: int) -> Found:
    """Let nothing go wrong any more, and see that the job ends and leaves nothing behind; time passes when all else rests."""
    chance = random.Random(seed)
    world, told = _calm(start), list(story)
    for _ in range(_PATIENCE):
        if over(world):
            return Found(states=len(told), depth=len(told), trace=tuple(told))
        choices = [(move, after) for move, after in moves(world) if _is_calm(move, world) and after != world]
        talk = [choice for choice in choices if not choice[0][0].startswith("supervisor")]
        if not choices or (not talk and chance.random() < 0.2):
            world = pass_time(world, 20.0)
            told.append(("time passes", ""))
        else:
            move, world = chance.choice(choices)
            told.append(move)
        broken = check(world)
        if broken:
            return Found(states=len(told), depth=len(told), broken=broken, trace=tuple(told))
    return Found(states=len(told), depth=len(told), broken=("the job does not come to its end",), trace=tuple(told))


def _calm(world: World) -> World:
    split = world.left
    calm = Limits(
        supervisors=split.supervisors,
        split_supervisors=split.split_supervisors,
        split_coordinators=split.split_coordinators,
        crashes=0,
        kills=0,
        leases=0,
        moments=0,
    )
    return dataclasses.replace(world, left=calm)


def _is_calm(move: Move, world: World) -> bool:
    if move[0] == "is suspended":
        return False
    if move[0] != "workers end well":
        return True
    # Training ends when everybody of the world has come to it; who waits for a place in it does not matter.
    status = world.status
    if status is None or status.state is not JobState.RUNNING:
        return False
    names = {(status.fence.attempt, member.node, member.incarnation) for member in status.world}
    agents = [agent.node for key, agent in world.agents if key in names]
    return all(node.round == status.fence.round and node.phase in (Phase.RUNNING, Phase.DONE) for node in agents)


def follow(world: World, *script: str) -> World:
    """Return the world after moves given by the beginnings of their names, each the first of its kind that is possible."""
    for wanted in script:
        found = next((after for (what, who), after in moves(world) if f"{what} {who}".startswith(wanted)), None)
        if found is None:
            possible = "; ".join(f"{what} {who}" for (what, who), _ in moves(world))
            raise AssertionError(f"{wanted!r} cannot happen; but: {possible}")
        world = found
    return world
