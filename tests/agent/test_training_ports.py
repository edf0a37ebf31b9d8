"""The ports that all nodes of a world have free, for the workers of devices that need some."""

from __future__ import annotations

import dataclasses
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.node.parts import TrainingPorts, first_port
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.ports import RANGE, agreed, free_ranges, window
from rallypoint.wire.messages import Assignment
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.sections import build, replaced
from tests.agent.fakes import TWO, new_state, report

PLAN = build(Plan, name="a", role="b", min_nodes=1, max_nodes=1, entry=Entry.SCRIPT, entrypoint="c", accelerator="ascend-npu")


def all_but(*taken: int, start: int = 60000) -> tuple[int, ...]:
    return free_ranges(start, (port for port in window(start) if port not in taken))


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        pytest.param([all_but(), all_but()], 60000, id="all free"),
        pytest.param([all_but(), all_but(60005)], 60006, id="one has a port taken"),
        pytest.param([all_but(60005), all_but(60015)], 60016, id="each has another one taken"),
        pytest.param([all_but(60010, 60030), all_but(60025)], 60031, id="gaps that are too small"),
        pytest.param([all_but(), ()], None, id="one has none"),
        pytest.param([], None, id="nobody"),
    ],
)
def test_the_first_range_that_all_have(offers: list[tuple[int, ...]], expected: int | None) -> None:
    """Sixteen in a row, from where the search began."""
    assert agreed(offers) == expected


@given(st.lists(st.sets(st.integers(60000, 60100), max_size=12), min_size=1, max_size=3))
def test_what_is_agreed_on_is_free_everywhere(taken: list[set[int]]) -> None:
    """And nothing below it is."""
    first = agreed([free_ranges(60000, (port for port in range(60000, 61000) if port not in ports)) for ports in taken])
    assert first is not None
    busy = set().union(*taken)
    assert not busy & set(range(first, first + RANGE))
    assert all(busy & set(range(start, start + RANGE)) for start in range(60000, first))


def test_the_search_ends_before_the_last_ports() -> None:
    """Ten thousand further, or at 65500; only one that begins later looks there."""
    assert window(50000) == range(50000, 60001)
    assert window(60000) == range(60000, 65501)
    assert window(65500) == range(65500, 65516)


def test_a_long_list_is_cut() -> None:
    """A message stays small however torn the ports of a node are."""
    torn = (port for port in range(20000, 30000) if port % (RANGE + 1))
    assert len(free_ranges(20000, torn)) == 128


@pytest.mark.parametrize("port", ["0", "1023", "65521", "-5", "x", ""])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    """The error names where it stands and what is allowed."""
    with pytest.raises(ConfigError, match=f"HCCL_IF_BASE_PORT {port}: not allowed; expected a port from 1024 to 65520"):
        first_port(PLAN, {"HCCL_IF_BASE_PORT": port})


def test_where_the_search_begins() -> None:
    """The workers' own variable comes before the plan's field; other devices need no ports."""
    assert first_port(PLAN, {}) == 60000
    assert first_port(PLAN, {"HCCL_IF_BASE_PORT": "61000"}) == 61000
    assert first_port(dataclasses.replace(PLAN, env={"HCCL_IF_BASE_PORT": "62000"}), {"HCCL_IF_BASE_PORT": "61000"}) == 62000
    with pytest.raises(ConfigError, match="training_port 99: not allowed"):
        first_port(replaced(PLAN, training_port=99), {})


async def test_a_port_that_is_taken_is_not_offered() -> None:
    """By whomever, at any address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        start = max(1024, min(port - 20, 65500))
        ports = TrainingPorts(replaced(PLAN, training_port=start), {})
        await ports.look()
        mine = [range(first, last + 1) for first, last in zip(ports.offer[::2], ports.offer[1::2], strict=True)]
        assert mine
        assert not any(port in free for free in mine)
    none = TrainingPorts(replaced(PLAN, accelerator="cpu"), {})
    await none.look()
    assert none.offer == ()


@pytest.mark.argument("training_port")
def test_every_agent_is_told_the_same_port() -> None:
    """One has the first ports taken: the world begins behind them, and its story says so."""
    state = rendezvous.receive(new_state(TWO, now=0.0), report(0, free_ports=all_but(60003)), 1.0)
    state = rendezvous.receive(state, report(1, free_ports=all_but()), 1.0)

    places = [rendezvous.answer(state, agent) for agent in ("agent-0", "agent-1")]

    assert [place.training_port for place in places if isinstance(place, Assignment)] == [60004, 60004]
    assert "60004 to 60019 on every node" in [event.detail for event in state.events if event.kind == "training-ports"]
    after = rendezvous.new(TWO, job="digits", uid="u1", attempt=1, term=2, now=2.0, previous=rendezvous.status(state, 2.0))
    assert after.closed.training_port == 60004


@pytest.mark.parametrize("offer", [(60000,), (60000, 60015, 60100), (60015, 60000), (-5, 1 << 20)])
def test_a_range_without_its_end_is_ignored(offer: tuple[int, ...]) -> None:
    """Agents report what they like: the other agents of the round get their places all the same."""
    state = rendezvous.receive(new_state(TWO, now=0.0), report(0, free_ports=offer), 1.0)
    state = rendezvous.receive(state, report(1, free_ports=(60000, 60015)), 1.0)

    assert [type(rendezvous.answer(state, agent)) for agent in ("agent-0", "agent-1")] == [Assignment, Assignment]
    assert state.closed.training_port in (0, 60000)


def test_no_range_in_common_is_told() -> None:
    """Workers are left with the port that the plan names."""
    state = rendezvous.receive(new_state(TWO, now=0.0), report(0, free_ports=(60000, 60015)), 1.0)
    state = rendezvous.receive(state, report(1, free_ports=(60100, 60200)), 1.0)

    assert state.closed.training_port == 0
    assert "no 16 consecutive ports are free on all nodes" in [
        event.detail for event in state.events if event.kind == "training-ports"
    ]
