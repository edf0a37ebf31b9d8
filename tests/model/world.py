"""One state of the world, and what can happen next: two supervisors, coordinators and agents around one shared store.

Everything that decides is the real thing: `reconcile`, the rendezvous, the agent's `decide.step`. Everything that does is a
model of it, cut into the steps between which a process may be stopped, killed, or overtaken by another:

- a supervisor loads the record and reads the clock; observes; decides and saves by compare-and-swap; then acts, one action at
  a time. It may crash after each of these, or sleep for as long as the others like and go on with what it knew.
- a node or coordinator shows itself first and reads the record only then, as the shim does (backends/local/shim.py).
- a coordinator takes a report, publishes its status by compare-and-swap of (attempt, term), and answers only then.
- an agent that reaches nobody for its fence time-out stops its workers; while it stops them they still run.

A state is a frozen value, so that states can be told apart and remembered; `moves` names all that can happen in one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from rallypoint.agent.node import events
from rallypoint.agent.node.decide import Phase
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous import peers
from rallypoint.supervision.actions import Action, CreateCoordinator, CreateNode, Purge, RemoveCoordinator, RemoveNode
from rallypoint.supervision.observation import NodeSeen, NodeState, Observation
from rallypoint.supervision.reconcile import reconcile
from rallypoint.supervision.record import Phase as JobPhase
from rallypoint.wire.exits import Exit
from rallypoint.wire.messages import AgentReport, AgentState, Reply
from rallypoint.wire.status import JobStatus
from tests.model import workers
from tests.model.state import Agent, Coordinator, Key, Limits, Proc, Supervisor, World, altered, new_world, put, spend

__all__ = ["RUNS", "Limits", "Move", "World", "moves", "new_world", "over", "pass_time"]

#: What happens, and to whom.
Move = tuple[str, object]

#: Seconds that pass at a time: enough for a broken connection to count, and for a lease to be over.
A_MOMENT, A_LEASE = 2.0, 20.0

#: Phases of a process in which it does something.
RUNS = ("alive", "orphan")

_STARTING = (JobPhase.RESUMING, JobPhase.RUNNING)


# --- What can happen -------------------------------------------------------------------------------------------------------


def moves(world: World) -> Iterator[tuple[Move, World]]:
    """Yield all that can happen next, each with the world after it."""
    yield from _supervisor_moves(world)
    yield from _process_moves(world)
    yield from _talk(world)
    yield from _faults(world)
    yield from _time(world)


# --- Supervisors -----------------------------------------------------------------------------------------------------------


def _supervisor_moves(world: World) -> Iterator[tuple[Move, World]]:
    for index, supervisor in enumerate(world.supervisors):
        step, after = _step(world, index, supervisor)
        if after is not None:
            yield (f"supervisor {index} {step}", ""), after
        busy = supervisor.loaded is not None or supervisor.acting
        if busy and world.left.crashes > 0:
            yield (f"supervisor {index} crashes", ""), _set(spend(world, "crashes"), index, Supervisor())


def _set(world: World, index: int, supervisor: Supervisor) -> World:
    supervisors = (*world.supervisors[:index], supervisor, *world.supervisors[index + 1 :])
    return altered(world, supervisors=supervisors)


def _step(world: World, index: int, me: Supervisor) -> tuple[str, World | None]:
    """Return the next step of a supervisor's turn."""
    if me.acting:
        action, *rest = me.acting
        after = act(world, action)
        done = Supervisor(acting=tuple(rest)) if rest else Supervisor()
        return f"acts: {action}", _set(after, index, done)
    if me.loaded is None:
        if world.record is None:
            return "is done", None
        loaded = dataclasses.replace(me, loaded=world.record, version=world.version, now=world.wall)
        after = _set(world, index, loaded)
        return ("loads", after) if world.left.split_supervisors else ("turns", _whole_turn(after, index))
    if me.seen is None:
        return "observes", _set(world, index, dataclasses.replace(me, seen=observe(world)))
    return "saves", _save(world, index, me)


def _whole_turn(world: World, index: int) -> World:
    for _ in range(50):
        me = world.supervisors[index]
        _, after = _step(world, index, me)
        if after is None:
            return world
        world = after
        if world.supervisors[index] == Supervisor():
            return world
    raise AssertionError("a turn has no end")


def observe(world: World) -> Observation:
    """Return what is seen: a process that has shown itself runs, as far as anybody can tell."""

    def seen(key: Key, proc: Proc) -> NodeSeen:
        attempt, node, incarnation = key
        state = NodeState.ENDING if proc.asked else NodeState.RUNNING
        if proc.phase in ("gone", "orphan"):
            state = {0: NodeState.SUCCEEDED, None: NodeState.LOST}.get(proc.code, NodeState.FAILED)
        return NodeSeen(
            attempt=attempt,
            node=node,
            incarnation=incarnation,
            state=state,
            present=proc.phase != "gone",
            exit_code=proc.code if proc.phase == "gone" else None,
        )

    everyone = [seen(key, proc) for key, proc in world.procs]
    return Observation(
        nodes=tuple(n for n in everyone if n.node >= 0),
        coordinators=tuple(n for n in everyone if n.node < 0),
        status=world.status,
    )


def _save(world: World, index: int, me: Supervisor) -> World:
    assert me.loaded is not None
    assert me.seen is not None
    decision = reconcile(me.loaded, me.seen, world.policy, me.now)
    old, new = me.loaded, decision.record
    idle = dataclasses.replace(new, clock=old.clock, last_now=old.last_now) == old and new.last_now == old.last_now
    if not idle:
        if world.version != me.version or world.record is None:
            return _set(world, index, Supervisor())  # somebody was faster: load again
        world = altered(world, record=new, version=world.version + 1)
    return _set(world, index, Supervisor(acting=decision.actions))


def act(world: World, action: Action) -> World:
    """Do what the local backend does."""
    if isinstance(action, Purge):
        return altered(world, record=None, version=world.version + 1)
    if isinstance(action, (RemoveNode, RemoveCoordinator)):
        last = (action.node, action.incarnation) if isinstance(action, RemoveNode) else (-1, action.term)
        return _remove(world, (action.attempt, *last), force=action.force)
    if world.record is None:
        return world  # "job was deleted"
    last = (action.node, action.incarnation) if isinstance(action, CreateNode) else (-1, _term(action))
    key = (_attempt(action), *last)
    return world if world.proc(key) else altered(world, procs=put(world.procs, key, Proc()))


def _term(action: Action) -> int:
    assert isinstance(action, CreateCoordinator)
    return action.term


def _attempt(action: Action) -> int:
    assert isinstance(action, (CreateNode, CreateCoordinator))
    return action.attempt


def _remove(world: World, key: Key, *, force: bool) -> World:
    proc = world.proc(key)
    if proc is None or proc.phase == "gone":
        return world
    if force:
        return end(world, key, 137)
    if proc.phase == "orphan":
        return world  # nobody is there to pass it on
    return altered(world, procs=put(world.procs, key, dataclasses.replace(proc, asked=True)))


def end(world: World, key: Key, code: int | None) -> World:
    """Let a process end, and all that it is with it; whoever talked to it notices."""
    world = workers.torn_by(world, dict(world.agents).get(key), None)
    procs = put(world.procs, key, Proc(phase="gone", code=code))
    world = altered(world, procs=procs, agents=put(world.agents, key, None), coordinators=put(world.coordinators, key, None))
    for name, coordinator in world.coordinators:
        state = rendezvous.disconnected(coordinator.state, _agent_name(key), world.now)
        if state != coordinator.state:
            world = _know(world, name, state)
    return world


# --- Processes -------------------------------------------------------------------------------------------------------------


def _process_moves(world: World) -> Iterator[tuple[Move, World]]:
    for key, proc in world.procs:
        if proc.phase == "shown":
            yield ("starts", key), _start(world, key)
        elif proc.phase == "alive" and proc.asked:
            yield ("obeys", key), _obey(world, key)
    for key, agent in world.agents:
        for move, after, code in workers.moves(world, key, agent):
            yield move, _ended(key, after, code)


def _start(world: World, key: Key) -> World:
    """A process that has shown itself reads the record, and runs only if the job still wants it."""
    record = world.record
    wanted = record is not None and record.attempt == key[0] and record.phase in _STARTING and not record.deletion
    if not wanted:
        return end(world, key, None)
    proc = world.proc(key)
    assert proc is not None
    world = altered(world, procs=put(world.procs, key, dataclasses.replace(proc, phase="alive")))
    if key[1] < 0:
        return _start_coordinator(world, key)
    agent = Agent(node=workers.new_node(world), heard=world.now)
    return altered(world, agents=put(world.agents, key, agent))


def _start_coordinator(world: World, key: Key) -> World:
    attempt, _, term = key
    previous = world.status
    if (attempt, term) < max(world.endpoint, _published(previous)):
        return end(world, key, int(Exit.STALE))
    state = rendezvous.new(world.settings, job="digits", uid="u1", attempt=attempt, term=term, now=world.now, previous=previous)
    # The first status is published before anybody can find it.
    world = altered(world, status=rendezvous.status(state, world.now), endpoint=(attempt, term))
    return altered(world, coordinators=put(world.coordinators, key, Coordinator(state=state)))


def _published(status: JobStatus | None) -> tuple[int, int]:
    return (0, 0) if status is None else (status.fence.attempt, status.fence.term)


def _obey(world: World, key: Key) -> World:
    if key[1] < 0 or key not in dict(world.agents):
        return end(world, key, 143)
    return _agent_event(world, key, events.Told(code=143, reason="it was requested to leave", leaving=True))


def _agent_event(world: World, key: Key, event: events.Event) -> World:
    return _ended(key, *workers.deliver(world, key, event))


# --- Talk ------------------------------------------------------------------------------------------------------------------


def _agent_name(key: Key) -> str:
    return ".".join(map(str, key))


def _talk(world: World) -> Iterator[tuple[Move, World]]:
    for key, agent in world.agents:
        for name, coordinator in world.coordinators:
            if not _reaches(world, agent, name) or name[0] != key[0]:
                continue
            report = _report(world, key, agent)
            if not _is_news(coordinator, report):
                continue
            yield ("reports", (key, name)), _deliver(world, key, name, report)
    for name, coordinator in world.coordinators:
        if not coordinator.durable:
            yield ("publishes", name), _publish(world, name)
        else:
            yield from _answers(world, name, coordinator)


def _reaches(world: World, agent: Agent, name: Key) -> bool:
    # It looks the endpoint up again, and never listens to one that is older than one it has heard.
    return not agent.cut and name[2] >= agent.newest and (name[0], name[2]) <= world.endpoint


def _report(world: World, key: Key, agent: Agent) -> AgentReport:
    attempt, node, incarnation = key
    return AgentReport(
        job="digits",
        fence=dataclasses.replace(agent.node.fence, attempt=attempt, term=agent.newest),
        node=node,
        incarnation=incarnation,
        agent=_agent_name(key),
        host="h",
        local_world_size=world.size,
        store=f"h:{node}",
        state=agent.node.state,
        round=agent.node.round,
        failures=agent.node.told_failures,
        reason=agent.node.reason,
        keeps=len(agent.node.keepable),
        resizable=agent.node.keepable <= agent.node.resizable,
    )


def _is_news(coordinator: Coordinator, report: AgentReport) -> bool:
    known = coordinator.state.peers.get(report.agent)
    repeated = known is not None and dataclasses.replace(known.report, fence=report.fence) == report
    return known is None or known.gone_at is not None or known.assigned > 0 or not repeated


def _deliver(world: World, key: Key, name: Key, report: AgentReport) -> World:
    coordinator = dict(world.coordinators)[name]
    refused = rendezvous.refusal(coordinator.state, report)
    if refused is not None:
        return _hear(world, key, name, events.Answered(reply=refused))
    return _know(world, name, rendezvous.receive(coordinator.state, report, world.now))


def _know(world: World, name: Key, state: rendezvous.State) -> World:
    """Let a coordinator know something; where its steps are not split it publishes and answers at once."""
    before = dict(world.coordinators)[name].state
    if state.fence.round > before.fence.round and len(world.coordinators) == 1:
        world = workers.closed(world, {key for key, _ in world.agents if _is_heard(state, name, key)}, state.fence.round)
    world = altered(world, coordinators=put(world.coordinators, name, Coordinator(state=state, durable=False)))
    return world if world.left.split_coordinators else _publish(world, name)


def _is_heard(state: rendezvous.State, name: Key, key: Key) -> bool:
    """Return whether a coordinator hears an agent that wants to go on: nobody waits for one that leaves."""
    peer = state.peers.get(_agent_name(key))
    if key[0] != name[0] or peer is None or peer.gone_at is not None:
        return False
    return peer.report.state is not AgentState.LEAVING


def _publish(world: World, name: Key) -> World:
    coordinator = dict(world.coordinators)[name]
    if (name[0], name[2]) < _published(world.status):
        return end(world, name, int(Exit.STALE))
    durable = dataclasses.replace(coordinator, durable=True)
    status = rendezvous.status(coordinator.state, 0.0)
    return altered(world, status=status, coordinators=put(world.coordinators, name, durable))


def _answers(world: World, name: Key, coordinator: Coordinator) -> Iterator[tuple[Move, World]]:
    for key, agent in world.agents:
        if key[0] != name[0] or not _reaches(world, agent, name) or _agent_name(key) not in coordinator.state.peers:
            continue
        reply = rendezvous.answer(coordinator.state, _agent_name(key))
        if reply is not None:
            told = _tell(world, name, key, reply)
            after = _hear(told, key, name, events.Answered(reply=reply))
            if after != world:
                yield ("answers", (name, key, type(reply).__name__)), after
            if told != world and world.left.losses > 0:
                yield ("answers in vain", (name, key, type(reply).__name__)), spend(told, "losses")
    if rendezvous.dismissed(coordinator.state):
        yield ("ends", name), end(world, name, 0)


def _hear(world: World, key: Key, name: Key, event: events.Answered) -> World:
    agent = dataclasses.replace(dict(world.agents)[key], heard=world.now, newest=name[2])
    world = altered(world, agents=put(world.agents, key, agent))
    return _agent_event(world, key, event)


def _tell(world: World, name: Key, key: Key, reply: Reply) -> World:
    coordinator = dict(world.coordinators)[name]
    state = rendezvous.told(coordinator.state, _agent_name(key), reply)
    return altered(world, coordinators=put(world.coordinators, name, dataclasses.replace(coordinator, state=state)))


# --- What goes wrong -------------------------------------------------------------------------------------------------------


def _faults(world: World) -> Iterator[tuple[Move, World]]:
    for key, proc in world.procs:
        if world.left.kills > 0 and proc.phase in RUNS:
            struck = spend(altered(world, faults=world.faults + 1), "kills")
            yield ("is killed", key), end(struck, key, None)
        if world.left.shims > 0 and proc.phase == "alive":
            orphaned = put(world.procs, key, Proc(phase="orphan"))
            yield ("loses its shim", key), altered(spend(world, "shims"), procs=orphaned)
    for key, agent in world.agents:
        yield from _agent_faults(world, key, agent)
    yield from _wishes(world)


def _agent_faults(world: World, key: Key, agent: Agent) -> Iterator[tuple[Move, World]]:
    if agent.cut:
        yield ("is reached again", key), _cut(world, key, cut=False)
    elif world.left.cuts > 0:
        yield ("is cut off", key), _cut(spend(world, "cuts"), key, cut=True)
    if agent.node.phase is not Phase.RUNNING:
        return
    if not agent.inbox and agent.workers and not any(worker.free or worker.told for _, worker in agent.workers):
        yield ("workers end well", key), _ended(key, *workers.end_well(world, key))
    if world.left.worker_faults > 0 and 0 in dict(agent.workers):
        struck = spend(altered(world, faults=world.faults + 1), "worker_faults")
        yield ("a worker fails", key), _ended(key, *workers.fail(struck, key))


def _ended(key: Key, world: World, code: int | None) -> World:
    return world if code is None else end(world, key, code)


def _cut(world: World, key: Key, *, cut: bool) -> World:
    agent = dataclasses.replace(dict(world.agents)[key], cut=cut)
    world = altered(world, agents=put(world.agents, key, agent))
    if cut:
        for name, coordinator in world.coordinators:
            state = rendezvous.disconnected(coordinator.state, _agent_name(key), world.now)
            if state != coordinator.state:
                world = _know(world, name, state)
    return world


def _wishes(world: World) -> Iterator[tuple[Move, World]]:
    """What a person may change in the record at any time, by compare-and-swap."""
    record = world.record
    left = world.left
    if record is None or record.deletion:
        return
    if left.deletions > 0:
        wish = dataclasses.replace(record, deletion=True)
        yield ("is deleted", ""), altered(spend(world, "deletions"), record=wish, version=world.version + 1)
    if left.suspensions > 0 or record.suspend:
        wish = dataclasses.replace(record, suspend=not record.suspend)
        spent = world if record.suspend else spend(world, "suspensions")
        word = "is resumed" if record.suspend else "is suspended"
        yield (word, ""), altered(spent, record=wish, version=world.version + 1)


# --- Time ------------------------------------------------------------------------------------------------------------------


def _time(world: World) -> Iterator[tuple[Move, World]]:
    if world.left.moments > 0:
        yield ("a moment passes", ""), pass_time(spend(world, "moments"), A_MOMENT)
    if world.left.leases > 0:
        yield ("a lease passes", ""), pass_time(spend(world, "leases"), A_LEASE)
    if world.left.jumps > 0:
        # Only supervisors read the wall clock; coordinators and agents have clocks that cannot jump.
        for seconds in (-1000.0, 100_000.0):
            jumped = altered(spend(world, "jumps"), wall=world.wall + seconds)
            yield (f"the wall clock jumps by {seconds:g} s", ""), jumped


def pass_time(world: World, seconds: float) -> World:
    """Let time pass for everybody: leases are over, and who reached nobody for the fence time-out stops its workers."""
    world = altered(world, now=world.now + seconds, wall=world.wall + seconds)
    for key, agent in world.agents:
        if any(_reaches(world, agent, name) for name, _ in world.coordinators):
            world = altered(world, agents=put(world.agents, key, dataclasses.replace(agent, heard=world.now)))
        elif world.now - agent.heard >= world.fence_timeout and agent.node.phase is not Phase.ENDING:
            told = events.Told(code=int(Exit.LOST_CONTACT), reason="no coordinator answered", leaving=False)
            world = _agent_event(world, key, told)
            if key in dict(world.agents):  # its workers are gone by the time that anybody may count on it
                world = _ended(key, *workers.finish(world, key))
    for name, coordinator in world.coordinators:
        state = coordinator.state
        for key, agent in world.agents:  # a living agent says so every few seconds
            if _reaches(world, agent, name) and _agent_name(key) in state.peers and key[0] == name[0]:
                peer = state.peers[_agent_name(key)]
                state = peers.with_peer(state, dataclasses.replace(peer, heard_at=world.now, gone_at=None))
        ticked = rendezvous.tick(state, world.now)
        if ticked != coordinator.state:
            world = _know(world, name, ticked)
    return world


def over(world: World) -> bool:
    """Return whether the job is over and nobody has anything left to do."""
    released = world.record is None or world.record.released
    return released and all(proc.phase == "gone" for _, proc in world.procs)
