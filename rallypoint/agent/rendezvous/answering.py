"""What the rendezvous says to an agent, read from the state alone, and what it remembers of having said it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.agent.rendezvous import capabilities, journal, picture
from rallypoint.agent.rendezvous.lookup import places, world_size
from rallypoint.agent.rendezvous.peers import Peer, State, living, opened, sealed, with_peer
from rallypoint.wire.messages import AgentState, Assignment, Regroup, Reply, Stop
from rallypoint.wire.status import JobState

__all__ = ["answer", "dismissed", "told", "told_all"]


def answer(state: State, agent: str) -> Reply | None:
    """Return what there is to say to an agent, or None while there is nothing."""
    if state.verdict is not None:
        return Stop(fence=state.fence, verdict=state.verdict)
    if agent in state.away:
        return Stop(fence=state.fence, verdict=journal.farewell(state, agent))
    peer = state.peers.get(agent)
    if peer is None or peer.report.state is AgentState.LEAVING:
        return None
    if peer.report.state is AgentState.WAITING:
        return _assignment(state, peer) or capabilities.reply_for_waiting(state, peer.report)
    if state.state is JobState.FORMING:
        forming = state.forming
        reason = forming.reason or "a new round is forming"
        return Regroup(fence=state.fence, reason=reason, keep=forming.keep, dead=forming.dead)
    if _is_current(state, peer) and agent in places(state.world):
        running = peer.report.state is AgentState.RUNNING
        asked = capabilities.reply_for(state, peer.report)
        return asked if running else None
    return Regroup(fence=state.fence, reason=f"the other nodes continue in round {state.fence.round}")


def _is_current(state: State, peer: Peer) -> bool:
    """Return whether an agent speaks of the round that is running, or was running last."""
    return peer.report.round == state.fence.round


def _assignment(state: State, peer: Peer) -> Assignment | None:
    member = places(state.world).get(peer.report.agent)
    if state.state is not JobState.RUNNING or member is None or _is_current(state, peer):
        return None
    budgets = (state.settings.restarts, state.settings.hangs)
    restarts = sum(b.total(state.incidents, state.fence.attempt, folded=state.folded) for b in budgets)
    return Assignment(
        fence=state.fence,
        node=member.node,
        group_rank=member.group_rank,
        group_world_size=len(state.world),
        first_rank=member.first_rank,
        world_size=world_size(state.world),
        store=state.closed.store,
        restart_count=restarts,
        max_restarts=state.settings.max_restarts,
        digest=picture.digest(state),
        kept=state.closed.kept,
        training_port=state.closed.training_port,
        sections=capabilities.assignment_sections(state, member),
    )


def told(state: State, agent: str, reply: Reply | None = None) -> State:
    """Note that an agent was told the verdict, or else `reply`: with a place in a round it may train before it speaks again."""
    peer = state.peers.get(agent)
    if peer is None:
        return state
    if isinstance(reply, Assignment):
        return with_peer(state, dataclasses.replace(peer, assigned=reply.fence.round))
    return with_peer(state, dataclasses.replace(peer, told=True)) if reply is None or isinstance(reply, Stop) else state


def told_all(state: State, replies: Iterable[tuple[str, Reply]]) -> State:
    """Note what many agents were told, each with its reply; see `told`."""
    state = opened(state)
    for agent, reply in replies:
        state = told(state, agent, reply)
    return sealed(state)


def dismissed(state: State) -> bool:
    """Return whether there is a verdict and every living agent was told."""
    return state.verdict is not None and all(peer.told for peer in living(state))
