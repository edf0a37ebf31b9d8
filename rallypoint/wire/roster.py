"""Where the agents of a job listen, as its supervisor sees it and tells the coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rallypoint.wire.messages import MESSAGES_VERSION
from rallypoint.wire.node_range import Size
from rallypoint.wire.ports import AGENT_PORT
from rallypoint.wire.wish import Wish

__all__ = ["AgentAddress", "LostNode", "Roster"]


@dataclass(frozen=True, order=True, kw_only=True)
class AgentAddress:
    """One agent that may be listening; `host` is its pod's address."""

    node: int
    incarnation: int
    host: str
    port: int = AGENT_PORT


@dataclass(frozen=True, order=True, kw_only=True)
class LostNode:
    """A node that the supervisor has found lost with its machine, up to this incarnation of it."""

    node: int
    incarnation: int


@dataclass(frozen=True, kw_only=True)
class Roster:
    """All agents of `attempt` that have an address, for the coordinator of `term`. Each roster replaces the one before.

    `size` is the bounds that are wanted, None where they are those of the plan; `wish` the last that
    somebody asked of the workers. `lost` are nodes whose end nobody saw, and that need not be waited for.
    """

    neighbours: ClassVar[bool] = True

    version: int = MESSAGES_VERSION
    attempt: int
    term: int
    agents: tuple[AgentAddress, ...] = ()
    size: Size | None = None
    wish: Wish | None = None
    lost: tuple[LostNode, ...] = ()
