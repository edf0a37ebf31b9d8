"""What is published of the state, and the name that its members give their world. Pure."""

from __future__ import annotations

import collections
import dataclasses
import hashlib

from rallypoint.agent.rendezvous.lookup import of_world
from rallypoint.agent.rendezvous.peers import State, living, members
from rallypoint.wire.messages import AgentState
from rallypoint.wire.status import JobState, JobStatus, Member, RankStatus

__all__ = ["digest", "status"]


def digest(state: State) -> str:
    """Return a name of the set of members and the round, equal for all of them."""
    return hashlib.sha256(f"{state.uid} {state.fence} {_in_words(state.world)}".encode()).hexdigest()[:16]


@of_world
def _in_words(world: tuple[Member, ...]) -> str:
    text = " ".join(f"{m.node}.{m.incarnation}.{m.agent}" for m in world)
    return hashlib.sha256(text.encode()).hexdigest()


def status(state: State, now: float) -> JobStatus:
    """Return what is published."""
    world = tuple(dataclasses.replace(m, done=_done(state, m)) for m in state.world)
    known = {m.agent for m in state.world}
    waiting = tuple(
        Member(
            node=p.node,
            incarnation=p.incarnation,
            agent=p.report.agent,
            host=p.report.host,
            local_world_size=p.report.local_world_size,
        )
        for p in sorted(living(state), key=lambda p: p.node)
        if p.report.state is AgentState.WAITING and (state.state is JobState.FORMING or p.report.agent not in known)
    )
    return JobStatus(
        job=state.job,
        uid=state.uid,
        fence=state.fence,
        state=state.state,
        world=world,
        waiting=waiting,
        store=state.closed.store,
        ranks=_ranks(state),
        phases=_phases(state),
        progress=state.progress,
        incidents=state.incidents,
        folded=state.folded,
        lost=dict(state.lost),
        events=state.events,
        samples=state.samples,
        verdict=state.verdict,
        training_port=state.closed.training_port,
        updated_at=now,
        result=state.result,
    )


def _done(state: State, member: Member) -> bool:
    peer = state.peers.get(member.agent)
    done = peer is not None and peer.report.state is AgentState.DONE and peer.report.round == state.fence.round
    return done or (peer is None and member.done)


def _ranks(state: State) -> tuple[RankStatus, ...]:
    return tuple(
        RankStatus(rank=m.first_rank + w.local_rank, node=m.node, local_rank=w.local_rank, pid=w.pid, step=w.step)
        for m in state.world
        if m.agent in state.peers and state.peers[m.agent].report.round == state.fence.round
        for w in state.peers[m.agent].report.workers
    )


def _phases(state: State) -> dict[str, int]:
    """Return how many workers of the running round are in which phase."""
    told = (
        worker.phase.value
        for peer in members(state)
        if peer.report.round == state.fence.round
        for worker in peer.report.workers
        if worker.phase is not None
    )
    return dict(sorted(collections.Counter(told).items()))
