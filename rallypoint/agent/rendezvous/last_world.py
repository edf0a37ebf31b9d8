"""Detect whether the last world may still train; only then a new world has to wait. Pure.

An unreachable agent may still run. Without a coordinator its workers continue until `fence_timeout` expires. If the new world
has a member of the last world, this is safe: a world without one of its members cannot make a step. A new world without such a
member must know that the last world has ended, or that at least one member has left it. A member is known to have left

- when it reports so: it waits, or its workers have ended;
- when a later incarnation of its slot reports, and the supervisor has observed the end of the earlier one; if that was lost
  with its machine, the later incarnation reports it as unobserved (`AgentReport.unseen`);
- when `fence_timeout` has expired, after which an agent without contact has stopped its workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.agent.rendezvous.peers import Absent, Peer, State
from rallypoint.wire.messages import AgentReport, AgentState

__all__ = ["blocked", "heard", "lost", "over_at"]


def lost(state: State, peer: Peer, now: float) -> State:
    """Return the state after a peer was lost; call it while `state.world` still contains the peer."""
    report = peer.report
    left = report.round == state.fence.round and report.state in (AgentState.WAITING, AgentState.DONE)
    if left or not any(member.agent == report.agent for member in state.world):
        return state
    limits = state.settings
    # A leaving agent is already stopping its workers.
    patience = 0.0 if report.state is AgentState.LEAVING else limits.fence_timeout
    absent = Absent(agent=report.agent, node=peer.node, incarnation=peer.incarnation, until=now + patience + limits.stop_grace)
    return dataclasses.replace(state, absent=(*(a for a in state.absent if a.agent != absent.agent), absent))


def heard(state: State, report: AgentReport) -> State:
    """Return the state after a report: its agent is reachable, and earlier incarnations of the slot have ended."""
    if not state.absent:
        return state

    def known(absent: Absent) -> bool:
        replaced = absent.node == report.node and report.unseen < absent.incarnation < report.incarnation
        return replaced or absent.agent == report.agent

    return dataclasses.replace(state, absent=tuple(a for a in state.absent if not known(a)))


def over_at(state: State) -> float | None:
    """Return when all unreachable members have stopped their workers, or None if all members are reachable."""
    return max((absent.until for absent in state.absent), default=None)


def blocked(state: State, ready: Iterable[Peer], now: float) -> bool:
    """Return whether a world of these agents has to wait, because the last world may still train without them."""
    members = {member.agent for member in state.world}
    if any(peer.report.agent in members for peer in ready):
        return False
    if any(a in state.peers and state.peers[a].report.state is AgentState.LEAVING for a in members):
        return True
    absent = {one.agent for one in state.absent if now < one.until}
    # A member that is neither absent nor present has left; without it the others cannot make a step.
    return bool(absent) and not members - absent - state.peers.keys()
