"""The workers that continue in the next round instead of being restarted. Pure.

A worker reports whether it can continue, and its agent counts those workers (`AgentReport.keeps`). The profile of the job
decides for which rungs they may (`profile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from rallypoint.agent.rendezvous.lookup import world_size
from rallypoint.agent.rendezvous.peers import Peer, State
from rallypoint.agent.rendezvous.profile import SPARING, rules
from rallypoint.wire.incident import Rung
from rallypoint.wire.status import Member

__all__ = ["kept_in", "spares"]


def spares(state: State, rung: Rung) -> bool:
    """Return whether workers may continue after `rung`."""
    return rung in SPARING and rung in rules(state).permitted(state)


def kept_in(state: State, chosen: Iterable[Peer], world: tuple[Member, ...]) -> int:
    """Return the number of workers that continue in the next world; 0 if the job or the new shape does not allow it."""
    keeping = [peer for peer in chosen if peer.report.keeps and peer.report.round == state.fence.round]
    if not keeping or not state.forming.keep:
        return 0
    before = {member.agent: member.first_rank for member in state.world}
    after = {member.agent: member.first_rank for member in world}
    moved = any(before.get(peer.report.agent) != after[peer.report.agent] for peer in keeping)
    if (moved or world_size(state.world) != world_size(world)) and not all(peer.report.resizable for peer in keeping):
        return 0
    return sum(peer.report.keeps for peer in keeping)
