"""The ports that all nodes of a world have free, agreed upon when a round is closed. Pure.

Each agent tells the ranges that are free on its node, so the coordinator needs to ask nobody twice: it takes the first range
that is free on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rallypoint.agent.rendezvous import journal
from rallypoint.agent.rendezvous.peers import Peer, State, members

__all__ = ["RANGE", "agreed", "common", "free_ranges", "noted", "window"]

#: Ports in a row that the workers of a node need: Ascend's HCCL takes one for each device, of which a node has at most 16.
RANGE = 16

#: How far from where it begins the search goes, and the last port that is looked at.
_REACH, _LAST = 10_000, 65_500

#: Ranges that are told at the most.
_TOLD = 64


def free_ranges(start: int, free: Iterable[int]) -> tuple[int, ...]:
    """Return the ranges of at least `RANGE` free ports from `start` on as first, last, first, last, ...; at most 64 of them.

    `free` are ports in ascending order.
    """
    found: list[int] = []
    first = last = -1
    for port in (*(one for one in free if one >= start), -1):
        if first >= 0 and port == last + 1:
            last = port
            continue
        if first >= 0 and last - first + 1 >= RANGE:
            found += (first, last)
        if len(found) == 2 * _TOLD:
            break
        first = last = port
    return tuple(found)


def window(start: int) -> range:
    """Return the ports that are looked at from `start` on."""
    return range(start, min(start + _REACH, max(_LAST, start + RANGE - 1), 65_535) + 1)


def agreed(offers: Sequence[Sequence[int]]) -> int | None:
    """Return the first port of the first range that every offer has, None where there is none; offers as by `free_ranges`."""
    starts = sorted({first for offer in offers for first in offer[::2]})
    return next((start for start in starts if all(_within(start, offer) for offer in offers)), None)


def _within(start: int, offer: Sequence[int]) -> bool:
    pairs = zip(offer[::2], offer[1::2], strict=False)  # an agent may report a range without its end
    return any(first <= start and start + RANGE - 1 <= last for first, last in pairs)


def common(chosen: Sequence[Peer]) -> int:
    """Return what the agents of a world agree on; 0 where somebody needs no ports, or there are none in common."""
    return agreed([peer.report.free_ports for peer in chosen]) or 0


def noted(state: State, now: float) -> State:
    """Tell in the job's story which ports a round has, and where it would need some and has none."""
    if not any(peer.report.free_ports for peer in members(state)):
        return state
    first = state.closed.training_port
    what = f"{first} to {first + RANGE - 1} on every node" if first else f"no {RANGE} consecutive ports are free on all nodes"
    return journal.event(state, "training-ports", what, now)
