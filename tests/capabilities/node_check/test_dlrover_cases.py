"""DLRover's cases of node check and stragglers, in our own words: the same nodes, the same outcome.

Source of the figures: see tests/agent/test_dlrover_cases.py.
"""

from __future__ import annotations

import pytest

from rallypoint.capabilities.node_check.check_run import next_groups
from rallypoint.capabilities.node_check.judging import Played, judge
from tests.capabilities.node_check.simulated import Cluster, Ill


@pytest.mark.parametrize(
    ("size", "groups"),
    [
        pytest.param(4, ((0, 1), (2, 3)), id="four"),
        pytest.param(5, ((0, 1), (2, 3, 4)), id="five: the last three together"),
        pytest.param(6, ((0, 1), (2, 3), (4, 5)), id="six"),
        pytest.param(1, ((0,),), id="one alone"),
    ],
)
def test_the_first_round_of_the_check(size: int, groups: tuple[tuple[int, ...], ...]) -> None:
    """Neighbours are tried together."""
    assert next_groups(range(size), (), rounds=0) == groups


def test_a_suspect_meets_a_good_node() -> None:
    """Of four, 3 failed with 2: in the second round neither is with the other."""
    first = (Played(group=(0, 1), transfer=1.0), Played(group=(2, 3), failed=True))
    second = next_groups(range(4), first, rounds=1)

    assert len(second) == 2
    assert all(len({0, 1} & set(group)) == len({2, 3} & set(group)) == 1 for group in second)


@pytest.mark.parametrize("broken", range(4))
@pytest.mark.parametrize("ill", [Ill.DEVICE, Ill.NETWORK])
def test_one_broken_node_of_four_is_found(broken: int, ill: Ill) -> None:
    """After two rounds it alone is at fault."""
    found = Cluster(size=4, ill={broken: ill}).check()

    assert found.early.fault == {broken}


def test_a_check_of_good_nodes_is_one_round() -> None:
    """Nobody is at fault, and a single node is good by itself."""
    for size in (1, 4, 6):
        found = Cluster(size=size).check()
        assert (set(found.standing.good), set(found.standing.fault), found.rounds) == (set(range(size)), set(), 1)


def test_a_check_of_nobody_finds_nothing() -> None:
    """Before any node has joined there is neither a fault nor a round."""
    assert next_groups((), (), rounds=0) == ()
    assert judge((), ()).fault == frozenset()


def test_a_failure_is_at_first_of_both() -> None:
    """While the second round is awaited both of a failed pair are suspects, and no node is at fault."""
    standing = judge(range(4), (Played(group=(0, 1), transfer=1.0), Played(group=(2, 3), failed=True)))

    assert (set(standing.suspect), set(standing.fault)) == ({2, 3}, set())


FAST, LAME = 5.0, 15.0


def played(*groups: tuple[tuple[int, ...], float]) -> tuple[Played, ...]:
    return tuple(Played(group=group, transfer=seconds) for group, seconds in groups)


@pytest.mark.parametrize(
    ("size", "first", "unsure", "second", "slow"),
    [
        pytest.param(
            6,
            played(((0, 1), FAST), ((2, 3), FAST), ((4, 5), LAME)),
            {4, 5},
            played(((0, 5), LAME), ((1, 4), FAST), ((2, 3), FAST)),
            {5},
            id="six nodes",
        ),
        pytest.param(
            5,
            played(((0, 1), LAME), ((2, 3, 4), FAST)),
            {0, 1},
            played(((2, 1), LAME), ((0, 3, 4), FAST)),
            {1},
            id="five nodes",
        ),
    ],
)
def test_a_straggler_is_told_from_its_partner(
    size: int, first: tuple[Played, ...], unsure: set[int], second: tuple[Played, ...], slow: set[int]
) -> None:
    """Both of a slow group may be it after one round; after the second the one that was slow with another partner is."""
    assert judge(range(size), first).unsure | judge(range(size), first).slow == unsure
    assert judge(range(size), first + second).slow | judge(range(size), first + second).unsure == slow
