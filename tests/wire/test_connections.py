"""Which connections of a port are ended, as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.wire.connections import Connections, Limits, peer_of

LIMITS = Limits(most=6, strangers=4, per_peer=3, patience=10.0, held=100)


def test_the_oldest_stranger_of_a_peer_makes_room() -> None:
    """A peer that opens many ends its own first."""
    table: Connections[str] = Connections(LIMITS)
    assert [table.opened(name, peer, 0.0) for name, peer in (("a", "x"), ("b", "y"), ("c", "y"), ("d", "y"))] == [[]] * 4

    assert table.opened("e", "y", 1.0) == ["b"]
    assert table.opened("f", "z", 1.0) == ["a"]
    assert table.strangers == 4


def test_who_has_proven_it_is_never_ended() -> None:
    """However many strangers come; and where there is no room, a new stranger is the one to go."""
    table: Connections[str] = Connections(LIMITS)
    for name in "abcdef":
        table.opened(name, "agents", 0.0)
        table.proven(name)

    assert [table.opened(f"s{n}", f"peer {n}", 1.0) for n in range(3)] == [["s0"], ["s1"], ["s2"]]
    assert table.expired(1e9) == []
    assert set(table) == set("abcdef")


def test_four_thousand_agents_of_one_address_are_let_in() -> None:
    """Each proves itself before a hundred others have come."""
    table: Connections[int] = Connections(Limits(most=8000, strangers=200, per_peer=100, patience=10.0))
    ended = []
    for number in range(4000):
        ended += table.opened(number, "10.0.0.1", 0.0)
        if number >= 99:
            table.proven(number - 99)

    assert (ended, len(table)) == ([], 4000)


def test_a_stranger_has_a_deadline() -> None:
    """Counted from when it came; who proves itself has none any more."""
    table: Connections[str] = Connections(LIMITS)
    table.opened("a", "x", 0.0)
    table.opened("b", "x", 1.0)
    table.opened("c", "x", 2.0)
    table.proven("b")

    assert table.next_deadline() == 10.0
    assert (table.expired(9.9), table.expired(11.0), table.next_deadline()) == ([], ["a"], 12.0)
    assert (table.expired(12.0), table.next_deadline(), len(table)) == (["c"], None, 1)


def test_half_of_the_strangers_are_shed() -> None:
    """The older half, where the process has no descriptor left."""
    table: Connections[str] = Connections(LIMITS)
    for name in "abc":
        table.opened(name, name, 0.0)

    assert (table.shed(), table.shed(), table.shed()) == (["a", "b"], ["c"], [])


def test_answered_strangers_leave_first() -> None:
    """They take no place of their peer, and a stranger without a response stays where one with a response can go."""
    table: Connections[str] = Connections(LIMITS)
    assert [table.opened(name, "x", 0.0) for name in "abc"] == [[]] * 3
    assert [table.answered(name, 1.0) for name in "bc"] == [[], []]

    assert [table.opened(name, "x", 2.0) for name in "de"] == [[], ["b"]]
    assert [table.opened(name, "y", 3.0) for name in "fg"] == [["c"], ["a"]]
    assert set(table) == set("defg")


def test_at_most_half_of_the_strangers_are_answered() -> None:
    """The one that was answered first is closed for another."""
    table: Connections[str] = Connections(LIMITS)
    ended = []
    for name in "abcd":
        table.opened(name, name, 0.0)
        ended += table.answered(name, 1.0)

    assert (ended, set(table), table.strangers) == (["a", "b"], {"c", "d"}, 2)
    assert (table.answered("c", 2.0), table.answered("nobody", 2.0)) == ([], [])


def test_an_answered_stranger_has_a_deadline_and_may_authenticate() -> None:
    """The deadline begins with the response."""
    table: Connections[str] = Connections(LIMITS)
    for name in "abc":
        table.opened(name, name, 0.0)
        table.holding(name, 30)
    table.answered("a", 4.0)
    table.answered("b", 5.0)
    table.proven("b")

    assert (table.held, table.next_deadline()) == (60, 10.0)
    assert (table.expired(13.9), table.next_deadline(), table.expired(14.0)) == (["c"], 14.0, ["a"])
    assert (table.held, table.next_deadline(), set(table)) == (0, None, {"b"})


def test_answered_strangers_are_shed_first() -> None:
    """Where the process has no descriptor left."""
    table: Connections[str] = Connections(LIMITS)
    for name in "abc":
        table.opened(name, name, 0.0)
    table.answered("c", 1.0)

    assert (table.shed(), table.shed()) == (["c", "a"], ["b"])


def test_the_memory_of_strangers_is_limited() -> None:
    """The peer that uses most loses its oldest that uses some; a size that is set again replaces the one before."""
    table: Connections[str] = Connections(LIMITS)
    for name, peer in (("a", "x"), ("b", "y"), ("c", "y"), ("d", "y")):
        table.opened(name, peer, 0.0)
    assert [table.holding(*one) for one in (("a", 30), ("c", 20), ("c", 30), ("d", 40))] == [[]] * 4
    assert table.held == 100

    assert table.holding("a", 31) == ["c"]
    assert (table.held, "b" in table) == (71, True)
    assert table.holding("b", 0) == []


def test_one_stranger_above_the_limit_is_ended() -> None:
    """Itself."""
    table: Connections[str] = Connections(LIMITS)
    table.opened("a", "x", 0.0)

    assert (table.holding("a", 101), table.held, len(table)) == (["a"], 0, 0)
    assert table.holding("a", 5) == []


def test_who_has_proven_it_may_hold_any_memory() -> None:
    """What it used before does not count any more."""
    table: Connections[str] = Connections(LIMITS)
    table.opened("a", "x", 0.0)
    table.holding("a", 100)
    table.proven("a")

    assert (table.held, table.holding("a", 1 << 40), set(table)) == (0, [], {"a"})


def test_a_replaced_stranger_keeps_its_memory() -> None:
    """It is the same connection."""
    table: Connections[str] = Connections(LIMITS)
    table.opened("a", "x", 0.0)
    table.holding("a", 60)
    table.replaced("a", "b")
    assert (table.held, table.holding("b", 70), table.held) == (60, [], 70)
    table.closed("b")
    assert table.held == 0


WHAT = ("open", "answer", "prove", "close", "expire", "shed", "hold")
EVENTS = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 30), st.integers(0, 3)), max_size=80)


class _Model:
    """What a table must hold: the peer of each open connection, and what each of them is."""

    def __init__(self) -> None:
        self.table: Connections[int] = Connections(LIMITS)
        self.alive: dict[int, int] = {}
        self.proven: set[int] = set()
        self.answered: set[int] = set()
        self.sizes: dict[int, int] = {}

    def happen(self, what: str, name: int, peer: int, now: float) -> list[int]:
        """Carry out an event, and return the connections that are closed."""
        if what in ("expire", "shed"):
            return self.table.expired(now) if what == "expire" else self.table.shed()
        if what == "open" and name not in self.alive:
            self.alive[name] = peer
            return self.table.opened(name, str(peer), now)
        if name not in self.alive or what == "open":
            return []
        if what == "answer":
            self.answered |= {name} - self.proven
            return self.table.answered(name, now)
        if what == "hold":
            self.sizes[name] = 40 * peer
            return self.table.holding(name, 40 * peer)
        if what == "prove":
            self.table.proven(name)
            self.proven.add(name)
            return []
        self.table.closed(name)
        return [name]

    def forget(self, ended: list[int]) -> None:
        """Forget closed connections."""
        for one in ended:
            del self.alive[one]
        self.proven &= set(self.alive)
        self.answered = (self.answered & set(self.alive)) - self.proven
        self.sizes = {one: size for one, size in self.sizes.items() if one in self.alive and one not in self.proven}

    def waiting(self, peer: int) -> int:
        """Return how many strangers of a peer have no response."""
        return sum(at == peer for one, at in self.alive.items() if one not in self.proven | self.answered)


@given(EVENTS)
def test_limits_hold_in_every_order(events: list[tuple[str, int, int]]) -> None:
    """Counts are those of what is open, limits are kept, and nothing is ended that has proven itself."""
    model = _Model()
    for now, (what, name, peer) in enumerate(events):
        ended = model.happen(what, name, peer, float(now))
        if what != "close":
            assert not model.proven & set(ended)
        if what == "open" and ended and ended[0] not in model.answered:  # it is closed only if no answered one can go
            assert model.waiting(peer) > LIMITS.per_peer or not model.answered
        model.forget(ended)
        strangers = set(model.alive) - model.proven
        assert set(model.table) == set(model.alive)
        assert sum(model.sizes.values()) == model.table.held <= LIMITS.held
        assert len(strangers) == model.table.strangers <= LIMITS.strangers
        assert len(model.answered) <= LIMITS.strangers // 2
        assert all(model.waiting(each) <= LIMITS.per_peer for each in model.alive.values())


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        pytest.param("10.0.0.1", "10.0.0.1", id="IPv4"),
        pytest.param("::ffff:10.0.0.1", "10.0.0.1", id="IPv4 within IPv6"),
        pytest.param("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64", id="IPv6 counts by network"),
        pytest.param("fe80::1%eth0", "fe80::/64", id="zone"),
        pytest.param("?", "?", id="no address"),
    ],
)
def test_what_counts_as_one_peer(host: str, peer: str) -> None:
    """Connections are counted per IPv4 address or per 64-bit IPv6 network."""
    assert peer_of(host) == peer
