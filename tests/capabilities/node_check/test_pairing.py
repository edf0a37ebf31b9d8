"""Who is tried with whom, and what follows: on simulated clusters of up to 1,000 nodes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rallypoint.capabilities.node_check.check_run import MOST_ROUNDS, next_groups
from rallypoint.capabilities.node_check.judging import Played, judge
from tests.capabilities.node_check.simulated import BROKEN, SLOW, Cluster, Ill

#: A thousand nodes take a while: few, and in each run.
FEW = settings(max_examples=40, deadline=None)

SIZES = st.one_of(st.integers(2, 12), st.integers(2, 1000))
SEEDS = st.integers(0, 2**32)
WAYS = st.sampled_from(BROKEN)


@FEW
@given(size=SIZES, seed=SEEDS)
@example(size=1000, seed=1)
def test_a_cluster_without_a_flaw_needs_one_round(size: int, seed: int) -> None:
    """All are good. Three nodes are tried in each of their pairs."""
    found = Cluster(size=size, seed=seed).check()

    assert found.standing.good == set(range(size))
    assert not found.standing.slow
    assert found.rounds == (3 if size == 3 else 1)


@FEW
@given(size=st.integers(4, 1000), seed=SEEDS, way=WAYS, data=st.data(), names_itself=st.booleans())
def test_one_fault_is_found_in_two_rounds(size: int, seed: int, way: Ill, data: st.DataObject, *, names_itself: bool) -> None:
    """And nobody else is. Of five nodes or fewer some may need a third round to be cleared: there are few witnesses."""
    broken = data.draw(st.integers(0, size - 1))

    found = Cluster(size=size, seed=seed, ill={broken: way}, names_itself=names_itself).check()

    assert found.standing.fault == {broken}
    assert found.early.fault == {broken}
    assert found.standing.good == set(range(size)) - {broken}
    assert found.rounds <= (3 if size < 6 else 2)


@FEW
@given(size=st.integers(2, 1000), seed=SEEDS, data=st.data(), names_itself=st.booleans())
def test_no_good_node_is_ever_at_fault(size: int, seed: int, data: st.DataObject, *, names_itself: bool) -> None:
    """However many are broken; where two good ones are left, and a quarter is not exceeded, all broken ones are found."""
    broken = data.draw(st.dictionaries(st.integers(0, size - 1), WAYS, max_size=size))

    cluster = Cluster(size=size, seed=seed, ill=broken, names_itself=names_itself)
    found = cluster.check()

    assert found.standing.fault <= set(broken)
    if len(broken) <= size // 4:
        assert found.standing.fault == set(broken)
        assert found.standing.good == set(range(size)) - set(broken)
        assert found.rounds <= (2 if size > 9 else 3)
    elif len(found.standing.good) > 1 and found.rounds < MOST_ROUNDS:
        assert found.standing.fault == set(broken)


@pytest.mark.parametrize("size", range(2, 7))
def test_every_way_to_be_broken_in_a_small_cluster(size: int) -> None:
    """Whoever can be told apart is: two good nodes are enough to find all others; a single good one has no witness."""
    for kinds in itertools.product((None, *BROKEN), repeat=size):
        ill = {node: kind for node, kind in enumerate(kinds) if kind is not None}
        for names_itself in (True, False):
            found = Cluster(size=size, ill=ill, names_itself=names_itself).check().standing
            assert found.fault <= set(ill), (kinds, found)
            if size - len(ill) >= 2:
                assert found.fault == set(ill), (kinds, found)
                assert not found.suspect
            else:
                assert found.fault >= {node for node, kind in ill.items() if kind is Ill.DEVICE}
                healthy = set(range(size)) - set(ill)
                # Who is left alone has no witness, and is good as far as anybody can tell.
                assert found.good <= healthy or len(found.good) == 1


@FEW
@given(size=st.integers(3, 1000), seed=SEEDS, way=st.sampled_from(SLOW), data=st.data())
def test_a_straggler_is_found_and_its_partners_are_not_blamed(size: int, seed: int, way: Ill, data: st.DataObject) -> None:
    """Whichever of its parts is slow; times vary by half."""
    slow = data.draw(st.integers(0, size - 1))

    found = Cluster(size=size, seed=seed, ill={slow: way}).check()

    assert found.standing.slow == {slow}
    assert not found.standing.unsure
    assert not found.standing.fault
    assert found.rounds <= 4


@FEW
@given(size=st.integers(4, 1000), seed=SEEDS, data=st.data())
def test_a_straggler_and_a_fault_are_told_apart(size: int, seed: int, data: st.DataObject) -> None:
    """Both at once, in any places."""
    one, other = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True))
    ill = {one: data.draw(WAYS), other: data.draw(st.sampled_from(SLOW))}

    found = Cluster(size=size, seed=seed, ill=ill).check()

    assert found.standing.fault == {one}
    assert found.standing.slow == {other}


@pytest.mark.parametrize("slow", [2, 3, 4])
@pytest.mark.parametrize("seed", range(30))
def test_a_straggler_that_was_in_every_working_group_is_found(slow: int, seed: int) -> None:
    """Of five nodes with a fault, the straggler may be in each group that works: another pair is measured."""
    found = Cluster(size=5, seed=seed, ill={0: Ill.NETWORK, slow: Ill.SLOW_NETWORK}).check()

    assert found.standing.fault == {0}
    assert found.standing.slow == {slow}


@FEW
@given(size=st.integers(8, 1000), seed=SEEDS, data=st.data())
def test_many_stragglers_are_all_found(size: int, seed: int, data: st.DataObject) -> None:
    """Up to an eighth of the nodes."""
    slow = data.draw(st.dictionaries(st.integers(0, size - 1), st.sampled_from(SLOW), max_size=size // 8))

    found = Cluster(size=size, seed=seed, ill=slow).check()

    assert found.standing.slow == set(slow)
    assert not found.standing.fault


def test_of_two_nodes_the_slower_device_is_the_straggler() -> None:
    """The lower median: an average would hide it behind itself. The network of two nodes is one and blames neither."""
    assert Cluster(size=2, ill={1: Ill.SLOW_DEVICE}).check().standing.slow == {1}
    assert Cluster(size=2, ill={1: Ill.SLOW_NETWORK}).check().standing.slow == set()


def test_one_node_is_tried_alone() -> None:
    """It is good when it works."""
    assert Cluster(size=1).check().standing.good == {0}
    assert Cluster(size=1, ill={0: Ill.DEVICE}).check().standing.fault == {0}


def test_two_nodes_that_only_fail_together_blame_nobody() -> None:
    """Alone both work: it may be either, or what is between them."""
    found = Cluster(size=2, ill={0: Ill.NETWORK}).check()

    assert found.standing.suspect == {0, 1}
    assert not found.standing.fault
    assert found.rounds == 2


def test_a_broken_link_between_good_nodes_excludes_nobody() -> None:
    """They work with others, and the pair itself stays in the history."""
    history = [Played(group=(0, 1), failed=True), Played(group=(2, 3), transfer=1.0)]
    assert next_groups(range(4), history, rounds=1) == ((2, 1), (3, 0))
    history += [Played(group=(2, 1), transfer=1.0), Played(group=(3, 0), transfer=1.0)]

    assert judge(range(4), history).good == {0, 1, 2, 3}
    assert next_groups(range(4), history, rounds=2) == ()


def test_noise_in_one_round_makes_no_straggler() -> None:
    """A node that was fast once is fast."""
    history = [
        Played(group=(0, 1), transfer=9.0, compute={0: 1, 1: 9}),
        Played(group=(2, 3), transfer=1.0, compute={2: 1, 3: 1}),
    ]
    assert judge(range(4), history).unsure == {0, 1}
    again = ((g, 1.0) for g in next_groups(range(4), history, rounds=1))
    history += [Played(group=g, transfer=t, compute=dict.fromkeys(g, 1.0)) for g, t in again]

    standing = judge(range(4), history)
    assert (standing.slow, standing.unsure) == (frozenset(), frozenset())


@pytest.mark.parametrize("size", [2, 3, 6, 9])
def test_all_pairs_are_tried_where_they_are_asked_for(size: int) -> None:
    """A tournament: as few rounds as there can be."""
    found = Cluster(size=size).check(all_pairs=True)

    met = {frozenset(played.group) for played in found.history if len(played.group) == 2}
    assert met == {frozenset(pair) for pair in itertools.combinations(range(size), 2)}
    assert found.rounds == size - 1 + size % 2


@FEW
@given(size=st.integers(2, 40), seed=SEEDS, data=st.data())
def test_all_pairs_find_the_same_faults(size: int, seed: int, data: st.DataObject) -> None:
    """And nobody else."""
    broken = data.draw(st.dictionaries(st.integers(0, size - 1), WAYS, max_size=max(0, size - 2)))

    found = Cluster(size=size, seed=seed, ill=broken).check(all_pairs=True)

    assert found.standing.fault == set(broken)
