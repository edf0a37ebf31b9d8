"""The workers of one modelled node: processes that live, leave a world, live on into the next, raise and die.

What decides is the real `decide.step`. Here is what `agent.py`, `group.py` and a worker's session do about it, cut into the
steps between which something else may happen: a worker is told to leave and leaves later, or dies instead; its agent hears
either of it later still, in the order in which it happened (the inbox). Stopping is done when everybody who is not spared is
gone; a second stop before that replaces the first.

What must never be is noted in `World.wrong` by whoever does it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rallypoint.agent.node import decide, events
from rallypoint.agent.node.decide import Node, Phase
from rallypoint.wire.incident import Culprit, FaultKind
from rallypoint.wire.messages import Assignment
from tests.model.state import Agent, Key, Place, Worker, World, altered, put, spend

__all__ = ["Move", "closed", "deliver", "end_well", "fail", "finish", "moves", "new_node", "perform", "torn_by", "whole_worlds"]

Move = tuple[str, object]


# --- What the agent does ---------------------------------------------------------------------------------------------------


def deliver(world: World, key: Key, event: events.Event) -> tuple[World, int | None]:
    """Let an agent decide on an event and do what follows; returns with what code it ended, None while it lives."""
    agent = dict(world.agents)[key]
    node, to_do = decide.step(agent.node, event)
    world = _with(world, key, dataclasses.replace(agent, node=node))
    return perform(world, key, to_do)


def perform(world: World, key: Key, to_do: tuple[events.Action, ...]) -> tuple[World, int | None]:
    """Do what an agent has decided; returns with what code it ended."""
    for action in to_do:
        if isinstance(action, events.StartWorkers):
            world = _start(world, key, action)
        elif isinstance(action, events.LeaveWorld):
            world = _tell_to_leave(world, key, action)
        elif isinstance(action, events.StopWorkers):
            world = _changed(world, key, spare=action.spare)
        elif isinstance(action, events.End):
            return world, action.code
    agent = dict(world.agents)[key]
    if agent.spare is not None and not set(dict(agent.workers)) - agent.spare:
        return _stopped(world, key, at_once=True)
    return world, None


def _start(world: World, key: Key, action: events.StartWorkers) -> World:
    agent = dict(world.agents)[key]
    assignment, known = action.assignment, dict(agent.workers)
    workers: list[tuple[int, Worker]] = []
    inbox: list[events.Event] = []
    for local_rank in range(agent.node.local_world_size):
        place = _place(key, assignment, local_rank)
        worker = known.pop(local_rank, None)
        if local_rank in action.kept and worker is None:
            continue  # it is dead, which its agent is about to hear
        if local_rank in action.kept and worker is not None and not worker.free:
            world = _wrong(world, f"rank {local_rank} of {key} is given a place in {place}, and has not left {worker.place}")
        if local_rank not in action.kept and worker is not None:
            world = _wrong(world, f"rank {local_rank} of {key} is started in {place}, and {worker} lives")
        if local_rank not in action.kept and world.living:
            round_ = assignment.fence.round
            inbox.append(events.Announced(round=round_, local_rank=local_rank, able=True, resizable=world.resizable))
        workers.append((local_rank, Worker(place=place)))
    return _changed(world, key, workers=tuple(workers), inbox=(*agent.inbox, *inbox), overdue=())


def _place(key: Key, assignment: Assignment, local_rank: int) -> Place:
    fence = assignment.fence
    return Place(
        world=(key[0], fence.term, fence.round, assignment.digest),
        rank=assignment.first_rank + local_rank,
        size=assignment.world_size,
    )


def _tell_to_leave(world: World, key: Key, action: events.LeaveWorld) -> World:
    agent = dict(world.agents)[key]
    workers = tuple((r, dataclasses.replace(w, told=True) if r in action.ranks else w) for r, w in agent.workers)
    return _changed(world, key, workers=workers, overdue=(*agent.overdue, action.round))


def _stopped(world: World, key: Key, *, at_once: bool = False) -> tuple[World, int | None]:
    """Let everybody be gone who is not spared."""
    agent = dict(world.agents)[key]
    assert agent.spare is not None
    dead = frozenset(rank for rank, _ in agent.workers if rank not in agent.spare)
    workers = tuple((r, w) for r, w in agent.workers if r not in dead)
    seen: tuple[events.Event, ...] = (events.WorkersEnded(ranks=dead),) if dead else ()
    gone = events.WorkersGone(spared=agent.spare)
    world = _changed(world, key, workers=workers, spare=None, inbox=(*agent.inbox, *seen, gone))
    # Where nothing was left to be stopped and nothing else waits to be heard, this is one step and not two.
    return _hear(world, key) if at_once and not agent.inbox else (world, None)


def _hear(world: World, key: Key) -> tuple[World, int | None]:
    event, *rest = dict(world.agents)[key].inbox
    return deliver(_changed(world, key, inbox=tuple(rest)), key, event)


# --- What can happen to its workers ----------------------------------------------------------------------------------------


def moves(world: World, key: Key, agent: Agent) -> Iterator[tuple[Move, World, int | None]]:
    """Yield all that can happen to the workers of a node; with the exit code of the agent where that ends of it."""
    if agent.inbox:
        yield (("hears of its workers", key), *_hear(world, key))
    if agent.spare is not None:
        yield (("workers are stopped", key), *_stopped(world, key))
    if agent.overdue and world.left.overdue > 0:
        round_, *rest = agent.overdue
        late = events.LeaveOverdue(round=round_)
        told = _changed(spend(world, "overdue"), key, overdue=tuple(rest), inbox=(*agent.inbox, late))
        yield ("workers had time enough to leave", key), told, None
    for local_rank, worker in agent.workers:
        for move, after in _worker_moves(world, key, agent, local_rank, worker):
            yield move, after, None


def _worker_moves(world: World, key: Key, agent: Agent, rank: int, worker: Worker) -> Iterator[tuple[Move, World]]:
    round_, who = worker.place.world[2], (key, rank)
    if worker.told and not worker.free:
        yield ("leaves its world", who), _frees(world, key, rank, events.Freed(round=round_, local_rank=rank))
    if world.left.worker_kills > 0:
        struck = spend(altered(world, faults=world.faults + 1), "worker_kills")
        yield ("is dead", who), _dies(struck, key, rank, agent, line_first=True)
        yield ("is dead, and its line ends last", who), _dies(struck, key, rank, agent, line_first=False)
    if not world.living or worker.free or agent.node.phase in (Phase.ENDING, Phase.ENDED):
        return
    if world.left.raises > 0:
        failed = events.StepFailed(round=round_, failure=_culprit(key, rank, error="ValueError: loss is nan"))
        yield ("raises", who), _frees(spend(altered(world, faults=world.faults + 1), "raises"), key, rank, failed)
    if world.left.echoes > 0 and worker.place in world.torn:
        error = "RuntimeError: [/src/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"
        echo = events.StepFailed(round=round_, failure=_culprit(key, rank, error=error))
        yield ("misses its peer", who), _frees(spend(world, "echoes"), key, rank, echo)


def _frees(world: World, key: Key, rank: int, said: events.Event) -> World:
    agent = dict(world.agents)[key]
    workers = tuple((r, dataclasses.replace(w, free=True) if r == rank else w) for r, w in agent.workers)
    return _changed(world, key, workers=workers, inbox=(*agent.inbox, said))


def _dies(world: World, key: Key, rank: int, agent: Agent, *, line_first: bool) -> World:
    worker = dict(agent.workers)[rank]
    round_ = worker.place.world[2]
    stopped = agent.spare is not None and rank not in agent.spare
    failures = () if stopped else (_culprit(key, rank, signal=9),)
    ended = events.WorkersEnded(ranks=frozenset({rank}), failures=failures)
    closed = events.Announced(round=round_, local_rank=rank, able=False)
    seen: tuple[events.Event, ...] = (closed, ended) if line_first else (ended, closed)
    workers = tuple((r, w) for r, w in agent.workers if r != rank)
    return _changed(world, key, workers=workers, inbox=(*agent.inbox, *(seen if world.living else (ended,))))


def _culprit(key: Key, rank: int, *, signal: int | None = None, error: str = "") -> Culprit:
    return Culprit(
        node=key[1],
        incarnation=key[2],
        rank=rank,
        local_rank=rank,
        signal=signal,
        error=error,
        kind=FaultKind.APPLICATION_ERROR if error else None,
        lives=bool(error),
    )


# --- What is true of the worlds --------------------------------------------------------------------------------------------


def whole_worlds(world: World) -> tuple[list[Place], list[str]]:
    """Return the worlds that nobody misses, which alone can do a step, and who is there twice."""
    members: dict[Place, list[int]] = {}
    for _, agent in world.agents:
        for _, worker in agent.workers:
            if not worker.free:
                members.setdefault(worker.place, []).append(worker.place.rank)
    twice = [f"ranks {ranks} in {place.world}" for place, ranks in members.items() if len(set(ranks)) < len(ranks)]
    return [place for place, ranks in members.items() if len(set(ranks)) == place.size], twice


def closed(world: World, heard: set[Key], round_: int) -> World:
    """Note who of those that the one coordinator hears has not left an earlier round, now that it has closed this one."""
    for key, agent in world.agents:
        if key in heard and any(not worker.free for _, worker in agent.workers):
            world = _wrong(world, f"round {round_} is closed, and a worker of {key} has not left the one before")
    return world


def _wrong(world: World, what: str) -> World:
    return altered(world, wrong=(*world.wrong, what))


def _changed(world: World, key: Key, **changes: object) -> World:
    return _with(world, key, dataclasses.replace(dict(world.agents)[key], **changes))  # type: ignore[arg-type]


def _with(world: World, key: Key, agent: Agent) -> World:
    return torn_by(altered(world, agents=put(world.agents, key, agent)), dict(world.agents)[key], agent)


def torn_by(world: World, before: Agent | None, after: Agent | None) -> World:
    """Remember the worlds of which an agent had a worker that is dead now, or has left; only echoes ask for it."""
    if not world.left.echoes or before is None:
        return world
    stay = dict(() if after is None else after.workers)
    gone = {w.place for rank, w in before.workers if not w.free and (rank not in stay or stay[rank].free)}
    return altered(world, torn=world.torn | gone)


def end_well(world: World, key: Key) -> tuple[World, int | None]:
    """Let all workers of a node end with 0."""
    ranks = frozenset(rank for rank, _ in dict(world.agents)[key].workers)
    return deliver(_changed(world, key, workers=()), key, events.WorkersEnded(ranks=ranks))


def fail(world: World, key: Key) -> tuple[World, int | None]:
    """Let the first worker of a node end with 1, and its agent hear of it at once."""
    culprit = Culprit(node=key[1], rank=0, local_rank=0, exit_code=1)
    others = tuple((rank, worker) for rank, worker in dict(world.agents)[key].workers if rank != 0)
    return deliver(_changed(world, key, workers=others), key, events.WorkersEnded(ranks=frozenset({0}), failures=(culprit,)))


def finish(world: World, key: Key) -> tuple[World, int | None]:
    """Let an agent that ends come to its end."""
    code: int | None = None
    while code is None:
        agent = dict(world.agents)[key]
        if agent.inbox:
            world, code = _hear(world, key)
        elif agent.spare is not None:
            world, code = _stopped(world, key)
        else:
            break
    return world, code


def new_node(world: World) -> Node:
    """Return a node agent before its first round."""
    return Node(local_world_size=world.size, keeps=world.living)
