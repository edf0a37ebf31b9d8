"""What thousands of agents ask of a coordinator: to be heard together, and not to be lost because it is slow."""

from __future__ import annotations

import asyncio
import dataclasses

from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.errors import UnreachableError
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.agent.rendezvous.lookup import Draft, places, world_size
from rallypoint.agent.rendezvous.peers import TAKEOVER, holder, opened, sealed
from rallypoint.agent.transport.client import CoordinatorClient
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import AgentReport, AgentState, Assignment, Continue, Reply, Stop
from rallypoint.wire.status import JobState
from tests.agent.fakes import ListedEndpoints, MemorySink, new_state, report
from tests.waiting import eventually_async

LEASED = Settings(min_nodes=1, max_nodes=8, last_call=0.0, node_lease=3.0)


def joined(count: int, *, at_once: bool, nodes: int = -1) -> State:
    """Return a state after `count` agents asked for any slot, each by itself or all in one turn."""
    state = new_state(Settings(min_nodes=count, max_nodes=count, last_call=0.0), now=0.0)
    reports = [report(nodes if nodes < 0 else number, agent=f"agent-{number}") for number in range(count)]
    if not at_once:
        for one in reports:
            state = rendezvous.receive(state, one, 1.0)
        return state
    state = opened(state)
    for one in reports:
        state = rendezvous.hear(state, one, 1.0)
    return rendezvous.tick(sealed(state), 1.0)


def test_who_is_heard_in_one_turn_is_heard_as_if_alone() -> None:
    """The same world, slots and events, whether the conclusions are drawn after each report or once."""
    assert joined(9, at_once=True) == joined(9, at_once=False)
    assert joined(9, at_once=True).state is JobState.RUNNING


def test_a_slot_that_changes_hands_within_a_turn_has_one_holder() -> None:
    """A later incarnation takes the slot, and the one before is forgotten."""
    state = opened(rendezvous.tick(new_state(LEASED, now=0.0), 0.0))
    state = rendezvous.hear(state, report(3, agent="old", incarnation=1), 1.0)
    state = rendezvous.hear(state, report(3, agent="new", incarnation=2), 1.0)
    assert [peer.report.agent for peer in sealed(state).peers.values()] == ["new"]
    held = holder(state, 3)
    assert held is not None
    assert held.report.agent == "new"


def test_a_draft_gives_the_lowest_free_slot() -> None:
    """As a search would: also where some were taken by name."""
    peers = joined(4, at_once=True, nodes=0).peers
    draft = Draft({name: dataclasses.replace(peer, node=2 * peer.node) for name, peer in peers.items()})
    assert draft.free_slot() == 1


def test_what_is_derived_from_a_world_belongs_to_that_world() -> None:
    """Two worlds of the same size are told apart, and the same one is not looked at twice."""
    one, other = joined(2, at_once=True).world, joined(3, at_once=True).world
    assert (world_size(one), world_size(other)) == (2, 3)
    assert places(one) is places(one)
    assert set(places(other)) == {"agent-0", "agent-1", "agent-2"}


def test_many_are_told_in_one_turn() -> None:
    """Each what it was told: a place, or the verdict."""
    state = joined(2, at_once=True)
    assignment = rendezvous.answer(state, "agent-0")
    assert isinstance(assignment, Assignment)
    state = rendezvous.told_all(state, [("agent-0", assignment), ("agent-9", assignment)])
    assert (state.peers["agent-0"].assigned, state.peers["agent-1"].assigned) == (1, 0)


def test_nobody_is_lost_for_what_waits_to_be_read() -> None:
    """The lease is over, but what was said since has not been read; once it has, silence counts."""
    state = rendezvous.receive(new_state(LEASED, now=0.0), report(0), 10.0)
    assert rendezvous.deadline(state) == 13.0
    assert rendezvous.tick(state, 20.0, listened=12.9).peers
    assert not rendezvous.tick(state, 20.0, listened=13.0).peers


def test_a_leap_of_the_coordinator_is_nobodys_silence() -> None:
    """What passed while it listened to nobody is added to every lease."""
    state = rendezvous.delayed(rendezvous.receive(new_state(LEASED, now=0.0), report(0), 10.0), 7.5)
    assert rendezvous.deadline(state) == 20.5


def test_thousands_are_held_back_longer_and_may_be_silent_longer() -> None:
    """A small job keeps its lease to the second."""
    state = joined(2, at_once=True)
    peer = state.peers["agent-0"]
    many = dataclasses.replace(state, peers={f"agent-{n}": peer for n in range(4000)})
    more = dataclasses.replace(state, peers={f"agent-{n}": peer for n in range(40000)})
    assert [rendezvous.stretch(one) for one in (state, many, more)] == [0.0, 3.5, 5.0]
    assert rendezvous.deadline(many) == 1.0 + LEASED.node_lease + 3.5


def test_who_comes_first_waits_as_long_as_all_who_are_awaited() -> None:
    """Before the thousands are there, which may take a while."""
    alone = new_state(Settings(min_nodes=2000, max_nodes=2000), now=0.0)
    assert rendezvous.stretch(rendezvous.receive(alone, report(0), 0.0)) == 1.5


async def test_who_came_before_the_thousands_waits_as_long_as_they_do() -> None:
    """Its answer is held back for what it asked for, and as much longer as those of all who are there by then."""
    clock = monotone_clock()
    settings = Settings(min_nodes=2, max_nodes=1000, node_lease=1000.0)
    shell = Coordinator(new_state(settings, now=clock()), sink=MemorySink(), clock=clock)
    serve = asyncio.create_task(shell.serve())
    try:
        began = clock()
        first = asyncio.create_task(shell.report(report(0, hold=1.0)))
        await eventually_async(lambda: shell.status().waiting)
        later = shell.change(lambda state, _: crowded(state, 600))
        assert isinstance(await first, Continue)

        assert rendezvous.stretch(later) == 0.1
        assert clock() - began >= 1.0 + rendezvous.stretch(later)
    finally:
        shell.stop()
        await serve


def crowded(state: State, count: int) -> State:
    """Return the state with `count` agents, all of them like the first."""
    peer = state.peers["agent-0"]
    others = {f"agent-{n}": peer for n in range(1, count)}
    return dataclasses.replace(state, peers={**state.peers, **others})


def test_a_world_has_longer_than_a_lease_to_find_its_next_coordinator() -> None:
    """It may hear of it only from the coordinator itself."""
    told = rendezvous.status(joined(2, at_once=True), 1.0)
    after = rendezvous.new(LEASED, job="digits", uid="u1", attempt=1, term=2, now=50.0, previous=told)
    assert rendezvous.deadline(after) == 50.0 + TAKEOVER
    after = rendezvous.receive(after, report(0, AgentState.RUNNING, agent="agent-0", round=1), 51.0)
    assert rendezvous.deadline(after) == 51.0 + LEASED.node_lease


async def test_a_coordinator_that_slept_loses_nobody() -> None:
    """Its clock leaps over every lease at once; the agents have spoken meanwhile, or wait for its answer."""
    ahead, base = [0.0], monotone_clock()

    def clock() -> float:
        return base() + ahead[0]

    settings = Settings(min_nodes=2, max_nodes=2, last_call=0.0, node_lease=0.3)
    shell = Coordinator(new_state(settings, now=clock()), sink=MemorySink(), clock=clock)
    serve = asyncio.create_task(shell.serve())
    try:
        asked = asyncio.create_task(shell.report(report(0, hold=30.0)))
        await asyncio.sleep(0)
        ahead[0] = 60.0
        places_given = await asyncio.gather(asked, shell.report(report(1)))
        assert [type(reply) for reply in places_given] == [Assignment, Assignment]
        assert not [event for event in shell.status().events if "lost" in event.kind or "regroup" in event.kind]
    finally:
        shell.stop()
        await serve


async def test_the_verdict_reaches_all_who_wait() -> None:
    """One broadcast, whoever came when."""
    clock = monotone_clock()
    settings = Settings(min_nodes=40, max_nodes=40, join_timeout=0.2, node_lease=1000.0)
    shell = Coordinator(new_state(settings, now=clock()), sink=MemorySink(), clock=clock)
    serve = asyncio.create_task(shell.serve())
    replies = await asyncio.gather(*(shell.report(report(node)) for node in range(30)))
    await serve
    assert {type(reply) for reply in replies} == {Stop}


class SlowExchange:
    """The first answer never comes, the next one at once; whether the first was given up is known."""

    def __init__(self) -> None:
        self.asked, self.first_ended = 0, asyncio.Event()
        self.open_at_second = False

    async def exchange(self, endpoint: Endpoint, report: AgentReport, *, timeout: float) -> Reply:
        self.asked += 1
        if self.asked == 1:
            try:
                await asyncio.Event().wait()
            finally:
                self.first_ended.set()
        self.open_at_second = not self.first_ended.is_set()
        if self.asked == 2:
            raise UnreachableError(endpoint.address)
        return Continue(fence=Fence(attempt=1, term=1))

    async def close(self) -> None: ...


async def test_a_late_answer_is_left_open_until_another_one_came() -> None:
    """To the coordinator the end of an agent's last connection is the end of the agent."""
    exchange = SlowExchange()
    source = ListedEndpoints(Endpoint(attempt=1, term=1, host="one", port=1))
    client = CoordinatorClient(source=source, exchange=exchange, fence_timeout=0.5, attempt=1, clock=lambda: 0.0)
    assert await client.ask(report(hold=0.0)) == Continue(fence=Fence(attempt=1, term=1))
    assert exchange.open_at_second
    await asyncio.wait_for(exchange.first_ended.wait(), timeout=60)
