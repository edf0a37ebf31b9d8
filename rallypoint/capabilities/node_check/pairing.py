"""Who is tried with whom next. Pure.

The first round pairs neighbours; of an odd number the last three are one group. Where all goes well, that is all. Otherwise
the next round pairs from the two ends: the fastest node with the slowest, and a failure is slower than everything, so each
suspect meets a node that is known to work. With faults in no more than a quarter of the nodes every suspect meets one in the
second round, and that is the last; with more, each round at least doubles the nodes that are known to work.

Where no group has worked there is nobody to be tried with: everybody is tried alone, which finds those that are broken by
themselves, and then the rest in ever other pairs until one works. Three nodes, or what is left of four, are too few for a
pair beside a pair: each of their pairs is tried in its turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.capabilities.node_check.judging import Group, Played, Standing, judge

__all__ = ["MOST_ROUNDS", "next_groups"]

#: Rounds of a check at the most, where not every pair is asked for.
MOST_ROUNDS = 12

#: So many nodes have no pair beside a pair: of one slow network among three, two of the three pairs are slow.
_FEW = 3


def next_groups(nodes: Sequence[int], history: Sequence[Played], *, rounds: int, all_pairs: bool = False) -> tuple[Group, ...]:
    """Return the groups of the next round, in which each node is at most once; none when the check is over.

    Args:
        nodes: that are still there, in a fixed order.
        history: every group that was tried, of nodes that have gone, too.
        rounds: so many rounds were played.
        all_pairs: try each pair of nodes, for a whole matrix of bandwidths.
    """
    standing = judge(nodes, history)
    playing = tuple(node for node in nodes if node not in standing.fault)
    if all_pairs or len(playing) == _FEW:
        groups = _untried(playing, history)
        if groups:
            return groups
    if rounds == 0:
        return _neighbours(nodes)
    if rounds >= MOST_ROUNDS + (len(nodes) if all_pairs else 0):
        return ()
    if standing.suspect and not standing.good:
        return _strangers(playing, history)
    if standing.suspect or standing.unsure:
        return _ends(playing, standing)
    return _untried(playing, history) if len(playing) > _FEW and _in_every_group(history) else ()


def _in_every_group(history: Sequence[Played]) -> frozenset[int]:
    """Return the nodes that were in every group with a measured transfer; without a group to compare, they may be slow."""
    groups = [frozenset(played.group) for played in history if played.transfer is not None]
    return frozenset.intersection(*groups) if groups else frozenset()


def _neighbours(nodes: Sequence[int]) -> tuple[Group, ...]:
    pairs = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes), 2)]
    if len(pairs) > 1 and len(pairs[-1]) == 1:
        pairs[-2:] = [pairs[-2] + pairs[-1]]
    return tuple(pairs)


def _ends(playing: Sequence[int], standing: Standing) -> tuple[Group, ...]:
    """Pair the fastest with the slowest, the second fastest with the second slowest; who is left in the middle rests."""

    def slowness(node: int) -> tuple[bool, bool, float]:
        relative = max(
            _relative(standing.compute.get(node), standing.usual_compute),
            _relative(standing.transfer.get(node), standing.usual_transfer),
        )
        return node in standing.suspect, node in standing.unsure | standing.slow, relative

    order = sorted(playing, key=slowness)
    half = len(order) // 2
    return tuple((order[i], order[-1 - i]) for i in range(half))


def _relative(seconds: float | None, usual: float) -> float:
    return 0.0 if seconds is None or usual <= 0 else seconds / usual


def _strangers(playing: Sequence[int], history: Sequence[Played]) -> tuple[Group, ...]:
    """Find one pair that works where none did: everybody alone at first, then pairs that were not tried yet."""
    alone = {played.group[0] for played in history if len(played.group) == 1}
    if len(playing) == 1:  # everybody else is at fault, and alone it may work or not: nothing says which
        return () if playing[0] in alone else ((playing[0],),)
    if not alone.issuperset(playing):
        return tuple((node,) for node in playing)
    return _untried(playing, history)


def _untried(playing: Sequence[int], history: Sequence[Played]) -> tuple[Group, ...]:
    """Return pairs that were not tried yet, as many as can be at once; none when each has met each."""
    tried = {frozenset(played.group) for played in history}
    for number in range(len(playing) - 1 + len(playing) % 2):
        groups = tuple(g for g in _turn(playing, number) if len(g) > 1 and frozenset(g) not in tried)
        if groups:
            return groups
    return ()


def _turn(nodes: Sequence[int], number: int) -> tuple[Group, ...]:
    """Return turn `number` of a tournament in which each meets each (the circle method); of an odd number one is alone."""
    seats: list[int | None] = list(nodes)
    if len(seats) % 2:
        seats.append(None)
    fixed, ring = seats[0], seats[1:]
    number %= len(ring)
    table = [fixed, *ring[number:], *ring[:number]]
    pairs = [(table[i], table[-1 - i]) for i in range(len(table) // 2)]
    groups = (tuple(sorted(node for node in pair if node is not None)) for pair in pairs)
    return tuple(sorted(groups))
