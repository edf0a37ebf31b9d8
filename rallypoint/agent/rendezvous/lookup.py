"""Finding one among thousands without searching: a member of a world by its agent, a peer by its slot. Pure.

Worlds are tuples and the peers a mapping that is replaced as a whole, which is what a reader wants and what a search pays for.
A world is looked at far more often than it changes, so what is derived from one is kept as long as that very tuple is in use.
Of the peers a `Draft` is made while many reports are taken over at a time: it changes in place, and nobody else holds it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from rallypoint.wire.status import Member

__all__ = ["Draft", "of_world", "places", "world_size"]

T = TypeVar("T")
World = tuple[Member, ...]

#: Worlds whose derived values are kept: the last one and those of other jobs in the same process.
_KEPT = 16


class _Same:
    """A world as a key: only the very same tuple is equal, so that nobody compares or hashes thousands of members."""

    __slots__ = ("world",)

    def __init__(self, world: World) -> None:
        self.world = world

    def __hash__(self) -> int:
        return id(self.world)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.world is other.world


def of_world(derive: Callable[[World], T]) -> Callable[[World], T]:
    """Let a pure function of a world remember what it returned for the last few."""
    remembered = functools.lru_cache(maxsize=_KEPT)(lambda key: derive(key.world))

    @functools.wraps(derive)
    def look_up(world: World) -> T:
        return remembered(_Same(world))

    return look_up


@of_world
def places(world: World) -> Mapping[str, Member]:
    """Return the members of a world by the names of their agents."""
    return {member.agent: member for member in world}


@of_world
def world_size(world: World) -> int:
    """Return the number of ranks of a world."""
    return sum(member.local_world_size for member in world)


class _InSlot(Protocol):
    @property
    def node(self) -> int: ...


P = TypeVar("P", bound=_InSlot)


class Draft(dict[str, P]):
    """Peers by the names of their agents, with an index of their slots. Only `put` may change it."""

    def __init__(self, peers: Mapping[str, P]) -> None:
        super().__init__(peers)
        self._slots = {peer.node: name for name, peer in peers.items()}
        self._lowest = 0

    def put(self, name: str, peer: P) -> None:
        """Add a peer or replace it; its slot is that of the peer from now on."""
        self[name] = peer
        self._slots[peer.node] = name

    def holder(self, node: int) -> P | None:
        """Return the peer in a slot, the newest where two claim it."""
        name = self._slots.get(node)
        return None if name is None else self.get(name)

    def free_slot(self) -> int:
        """Return the lowest slot that nobody holds."""
        while self._lowest in self._slots:
            self._lowest += 1
        return self._lowest
