"""A node whose end nobody has seen: a world without any member of the last one waits for the fence, and no other does."""

from __future__ import annotations

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import AgentReport, AgentState, Assignment

#: Both nodes are in the world at second 0, and are lost at second 4.
PAIR = Settings(min_nodes=1, max_nodes=2, last_call=1.0, node_lease=3.0, fence_timeout=60.0, stop_grace=5.0)


def report(
    node: int, incarnation: int = 1, round_: int = 0, unseen: int = 0, state: AgentState = AgentState.WAITING
) -> AgentReport:
    return AgentReport(
        job="digits",
        fence=Fence(attempt=1, term=1, round=round_),
        node=node,
        incarnation=incarnation,
        unseen=unseen,
        agent=f"agent-{node}.{incarnation}",
        host=f"host-{node}",
        local_world_size=1,
        store=f"host-{node}:1000",
        state=state,
        round=round_,
    )


def lost(*, alive: tuple[int, ...] = ()) -> State:
    """Return a world of two at second 4, of whom only those in `alive` were heard since second 0."""
    state = rendezvous.new(PAIR, job="digits", uid="u1", attempt=1, term=1, now=0.0)
    for now, said in ((0.0, AgentState.WAITING), (0.1, AgentState.RUNNING)):
        for node in (0, 1):
            state = rendezvous.receive(state, report(node, round_=int(said is AgentState.RUNNING), state=said), now)
    for node in alive:
        state = rendezvous.receive(state, report(node, round_=1, state=AgentState.RUNNING), 3.0)
    return rendezvous.tick(state, 4.0)


def placed(state: State, agent: str, now: float) -> bool:
    return isinstance(rendezvous.answer(rendezvous.tick(state, now), agent), Assignment)


@pytest.mark.parametrize(
    ("unseen", "at_once"), [pytest.param(0, True, id="both ends were seen"), pytest.param(1, False, id="no end was")]
)
def test_a_world_that_takes_over_nobody_waits_where_no_end_was_seen(unseen: int, at_once: bool) -> None:
    """Those of the last world may still train, until the fence and the stop grace are over."""
    state = lost()
    for node in (0, 1):
        state = rendezvous.receive(state, report(node, incarnation=2, unseen=unseen), 10.0)

    assert placed(state, "agent-0.2", 10.0) is at_once
    for node in (0, 1):
        state = rendezvous.receive(state, report(node, incarnation=2, unseen=unseen), 68.0)
    assert placed(state, "agent-0.2", 68.0) is at_once
    for node in (0, 1):
        state = rendezvous.receive(state, report(node, incarnation=2, unseen=unseen), 70.0)
    assert placed(state, "agent-0.2", 70.0)


def test_a_world_with_a_member_of_the_last_one_does_not_wait() -> None:
    """The world that may still be somewhere lacks that member, so it can make no step."""
    state = lost(alive=(0,))
    state = rendezvous.receive(state, report(0, round_=1), 5.0)
    state = rendezvous.receive(state, report(1, incarnation=2, unseen=1), 5.1)

    assert placed(state, "agent-0.1", 5.1)


def test_one_member_whose_end_was_seen_is_enough() -> None:
    """The last world lacks it, whatever the other one does, so a world that takes over nobody need not wait."""
    state = lost()
    state = rendezvous.receive(state, report(0, incarnation=2), 10.0)
    state = rendezvous.receive(state, report(1, incarnation=2, unseen=1), 10.1)

    assert placed(state, "agent-0.2", 10.1)


def test_the_end_of_an_earlier_one_that_was_seen_counts() -> None:
    """What is not known of the first incarnation says nothing of the second, whose end was seen."""
    state = lost()
    for incarnation, unseen in ((2, 0), (3, 2)):
        for node in (0, 1):
            state = rendezvous.receive(state, report(node, incarnation=incarnation, unseen=unseen), 10.0 + incarnation)

    assert placed(state, "agent-0.3", 13.0)
