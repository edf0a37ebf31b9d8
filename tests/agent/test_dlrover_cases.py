"""DLRover's cases of rendezvous and node unit, in our own words: the same nodes, the same outcome.

Source of the figures: `dlrover/python/tests/test_rdzv_manager.py` of intelligent-machine-learning/dlrover at 7c3e9648 (August
2026). Its pending rules and its classes of exits are in tests/supervision/test_dlrover_cases.py,
those of the node check in tests/capabilities/node_check/.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import Settings, State
from rallypoint.wire.fence import Fence
from rallypoint.wire.messages import AgentReport, AgentState, Regroup
from rallypoint.wire.status import JobState

#: Seconds of the last call, as `rdzv_waiting_timeout` there.
LAST_CALL = 60.0


def settings(low: int, high: int, unit: int = 1, **more: object) -> Settings:
    return Settings(min_nodes=low, max_nodes=high, node_unit=unit, last_call=LAST_CALL, node_lease=1e6, **more)  # type: ignore[arg-type]


def new(low: int, high: int, unit: int = 1, **more: object) -> State:
    return rendezvous.new(settings(low, high, unit, **more), job="digits", uid="u1", attempt=1, term=1, now=0.0)


def report(node: int, state: AgentState = AgentState.WAITING, round_: int = 0, **more: object) -> AgentReport:
    fields: dict[str, object] = {
        "job": "digits",
        "fence": Fence(attempt=1, term=1, round=round_),
        "node": node,
        "incarnation": 1,
        "agent": f"agent-{node}",
        "host": f"host-{node}",
        "local_world_size": 8,
        "store": f"host-{node}:{1000 + round_}",
        "state": state,
        "round": round_,
    }
    return AgentReport(**{**fields, **more})  # type: ignore[arg-type]


def join(state: State, nodes: Iterable[int], now: float = 0.0) -> State:
    for node in nodes:
        state = rendezvous.receive(state, report(node), now)
    return state


def leave(state: State, nodes: Iterable[int], now: float = 0.0) -> State:
    for node in nodes:
        state = rendezvous.receive(state, report(node, AgentState.LEAVING, sequence=1), now)
    return state


def world(state: State) -> list[int]:
    return [member.node for member in state.world] if state.state is JobState.RUNNING else []


def runs(state: State, now: float = LAST_CALL) -> State:
    """Let all members of the world train."""
    for node in world(state):
        state = rendezvous.receive(state, report(node, AgentState.RUNNING, state.fence.round), now)
    return state


def regroups(state: State) -> bool:
    return isinstance(rendezvous.answer(state, f"agent-{state.world[0].node}"), Regroup)


@pytest.mark.parametrize(
    ("low", "high", "unit", "joined", "now", "formed"),
    [
        pytest.param(3, 3, 1, 2, LAST_CALL, 0, id="two of three are no world, however late"),
        pytest.param(2, 2, 1, 1, LAST_CALL, 0, id="one of two is none"),
        pytest.param(3, 3, 1, 3, 0.0, 3, id="the largest world is formed at once"),
        pytest.param(2, 3, 1, 2, LAST_CALL - 1, 0, id="the smallest waits for the last call"),
        pytest.param(2, 3, 1, 2, LAST_CALL, 2, id="the smallest is formed after the last call"),
        pytest.param(8, 12, 4, 10, LAST_CALL, 8, id="ten nodes in units of four are eight"),
        pytest.param(8, 12, 4, 11, LAST_CALL, 8, id="eleven are eight, too"),
        pytest.param(8, 12, 4, 12, 0.0, 12, id="twelve are twelve, at once"),
        pytest.param(8, 12, 4, 7, LAST_CALL, 0, id="seven are fewer than the fewest"),
        pytest.param(4, 8, 4, 4, LAST_CALL, 4, id="one unit is enough where four are"),
        pytest.param(1, 1, 1, 1, 0.0, 1, id="a single node is a world"),
    ],
)
def test_the_world_that_is_formed(low: int, high: int, unit: int, joined: int, now: float, formed: int) -> None:
    """It has the lowest nodes, as many whole units as there are, and its first round is 1."""
    state = rendezvous.tick(join(new(low, high, unit), range(joined)), now)

    assert world(state) == list(range(formed))
    assert state.fence.round == (1 if formed else 0)


@pytest.mark.parametrize(
    ("high", "waiting", "lacking"),
    [
        pytest.param(4, range(4), [], id="none of four"),
        pytest.param(5, range(4), [4], id="the fifth"),
        pytest.param(6, range(4), [4, 5], id="the last two"),
        pytest.param(4, (), [0, 1, 2, 3], id="all"),
    ],
)
def test_the_nodes_that_are_lacking(high: int, waiting: Iterable[int], lacking: list[int]) -> None:
    """The status names each node that the job wants and that has not joined."""
    state = join(new(high, high), waiting)

    assert [absent.node for absent in rendezvous.status(state, 0.0).missing] == lacking


def test_less_than_a_unit_waits_and_a_unit_is_let_in() -> None:
    """Two nodes beyond eight change nothing; two more make the unit of four for which the world is formed anew."""
    state = runs(rendezvous.tick(join(new(8, 12, 4), range(10)), LAST_CALL))
    assert not regroups(state)

    state = join(state, (10, 11), LAST_CALL + 1)
    assert regroups(state)


def test_a_unit_that_leaves_again_is_not_let_in() -> None:
    """Waiting nodes that have gone count no more."""
    state = runs(rendezvous.tick(join(new(8, 12, 4), range(10)), LAST_CALL))
    state = leave(state, (8, 9), LAST_CALL + 1)

    state = join(state, (10, 11), LAST_CALL + 2)
    assert not regroups(state)


def test_a_node_that_left_before_the_world_was_formed_is_not_in_it() -> None:
    """Of three that could be, the two that stay are the world after the last call."""
    state = leave(join(new(2, 4), range(3)), (2,))

    assert world(rendezvous.tick(state, LAST_CALL)) == [0, 1]


def test_a_node_whose_container_failed_is_not_counted() -> None:
    """Two are needed, and one of those that joined is gone: no world is formed until its successor has joined."""
    state = leave(join(new(2, 3), (0, 1)), (1,))
    assert world(rendezvous.tick(state, LAST_CALL)) == []

    state = rendezvous.receive(state, report(1, agent="agent-1.2", incarnation=2), LAST_CALL + 1)
    assert world(rendezvous.tick(state, 2 * LAST_CALL + 1)) == [0, 1]


@pytest.mark.extended
def test_of_a_thousand_nodes_nine_hundred_leave() -> None:
    """A hundred are left, those that did not leave."""
    state = leave(join(new(1000, 1001), range(1000)), range(900))

    absent = {missing.node for missing in rendezvous.status(state, 0.0).missing}
    assert not absent & set(range(900, 1000))
    assert world(rendezvous.tick(state, LAST_CALL)) == []


def test_an_agent_that_joins_twice_is_one_node() -> None:
    """A report that is repeated does not fill the world."""
    state = join(new(2, 2), (0, 0, 0))

    assert world(rendezvous.tick(state, LAST_CALL)) == []
