"""Whether the last world may still train somewhere: the one reason for which a new world has to wait. Pure.

An agent that is out of reach is not an agent that has ended. While it hears no coordinator, its workers go on until its fence
time-out is over. As long as one member of the last world is in the new one, that does no harm: it is missing in the old world,
and a world in which somebody is missing can do no step. But a world that takes over nobody must know that the last one is over,
or that one member of it at least has left. A member is known to have left

- when it says so itself: it waits, or its workers have ended;
- when a later incarnation of its slot speaks, and its supervisor has seen the end of the one before; where that was lost with
  its machine, the later one says that nobody has (`AgentReport.unseen`);
- when the time is over after which it has stopped its workers by itself, whatever it can reach.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.agent.rendezvous.peers import Absent, Peer, State
from rallypoint.wire.messages import AgentReport, AgentState

__all__ = ["blocked", "heard", "lost", "over_at"]


def lost(state: State, peer: Peer, now: float) -> State:
    """Return the state after a peer was given up; call it while `state.world` is still the one that it was in."""
    report = peer.report
    left = report.round == state.fence.round and report.state in (AgentState.WAITING, AgentState.DONE)
    if left or not any(member.agent == report.agent for member in state.world):
        return state
    limits = state.settings
    # One that leaves has begun to stop already.
    patience = 0.0 if report.state is AgentState.LEAVING else limits.fence_timeout
    absent = Absent(agent=report.agent, node=peer.node, incarnation=peer.incarnation, until=now + patience + limits.stop_grace)
    return dataclasses.replace(state, absent=(*(a for a in state.absent if a.agent != absent.agent), absent))


def heard(state: State, report: AgentReport) -> State:
    """Return the state after an agent spoke: it is not out of reach, and neither is any earlier one of its slot."""
    if not state.absent:
        return state

    def known(absent: Absent) -> bool:
        replaced = absent.node == report.node and report.unseen < absent.incarnation < report.incarnation
        return replaced or absent.agent == report.agent

    return dataclasses.replace(state, absent=tuple(a for a in state.absent if not known(a)))


def over_at(state: State) -> float | None:
    """Return when all members that are out of reach have stopped by themselves, or None where none is."""
    return max((absent.until for absent in state.absent), default=None)


def blocked(state: State, ready: Iterable[Peer], now: float) -> bool:
    """Return whether a world of these agents has to wait, because one without any of them may still train."""
    members = {member.agent for member in state.world}
    if any(peer.report.agent in members for peer in ready):
        return False
    if any(a in state.peers and state.peers[a].report.state is AgentState.LEAVING for a in members):
        return True
    absent = {one.agent for one in state.absent if now < one.until}
    # Of whoever is neither absent nor here it is known that it has left: without it the others can do no step.
    return bool(absent) and not members - absent - state.peers.keys()
