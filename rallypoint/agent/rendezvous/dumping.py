"""The rung `dump`: before an attempt ends for want of anything cheaper, its last snapshot becomes a checkpoint. Pure.

Theory of operation
===================

The verdict is known and kept back (`Dumping.verdict`). No round is formed meanwhile; agents stop their workers as at the end of
any round, and waiting agents are asked. First each one names the snapshots in its memory, those of other nodes too. An agent
that has not regrouped may hold a snapshot that its last report does not mention, so this phase ends when all survivors have
answered or regrouped without one. The newest complete snapshot is taken, and each of its parts is given to one agent to write.
When all are written, one agent verifies that and renames the checkpoint. Then the verdict is given, with the outcome of the
checkpoint. An agent that is lost meanwhile or cannot write ends the dump without a checkpoint, and so does `DUMP_TIMEOUT`;
earlier checkpoints stay as they are.

A coordinator that takes over begins again, with the reason that its predecessor left in the incident.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rallypoint.agent.rendezvous import journal
from rallypoint.agent.rendezvous.dump_course import Dumping
from rallypoint.agent.rendezvous.peers import Peer, State, living, members
from rallypoint.agent.rendezvous.profile import rules
from rallypoint.wire.dump import DUMP_TIMEOUT, DumpAsk, DumpPhase, Kept
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Cause, Incident, Rung
from rallypoint.wire.messages import AgentReport, AgentState, Continue
from rallypoint.wire.status import NODE_LOST, JobState, JobStatus, Outcome, Verdict

__all__ = ["advanced", "asks", "begun", "choose", "due", "heard", "inherited", "possible", "regrouped"]


def possible(state: State) -> bool:
    """Return whether the job allows it, and some agent has a snapshot and knows where to."""
    return Rung.DUMP in rules(state).permitted(state) and bool(_holders(state))


def regrouped(state: State) -> bool:
    """Return whether all survivors of the last world wait without workers: from then on `possible` is certain.

    The report of an agent that trains is as old as its report interval, and its first snapshot may be newer.
    """
    return all(peer.report.state is AgentState.WAITING for peer in _survivors(state))


def _survivors(state: State) -> tuple[Peer, ...]:
    """Return the agents of the last world that can still be asked for something."""
    left = (peer for peer in members(state) if peer.report.state is not AgentState.LEAVING)
    return tuple(peer for peer in left if peer.report.agent not in state.away)


def _holders(state: State) -> frozenset[str]:
    """Return the survivors that hold a snapshot; agents of an earlier version never report one and are not asked."""
    return frozenset(peer.report.agent for peer in _survivors(state) if peer.report.dumps)


def begun(state: State, told: Incident, verdict: Verdict, now: float) -> State:
    """Return the state of a job that ends with `verdict` once its last checkpoint is written."""
    return _begun(state, told, verdict, _holders(state), now)


def _begun(state: State, told: Incident, verdict: Verdict, agents: frozenset[str], now: float) -> State:
    state = journal.incident(state, dataclasses.replace(told, rung=Rung.DUMP))
    state = journal.event(state, "dump", f"saving a last checkpoint, because the job ends: {verdict.message}", now)
    dumping = Dumping(number=state.fence.round, since=now, verdict=verdict, agents=agents)
    return dataclasses.replace(state.with_forming(keep=False), dumping=dumping, echoes=None)


def inherited(state: State, previous: JobStatus, now: float) -> State:
    """Return the state of a coordinator that takes over from one that was about it."""
    found = [i for i in previous.incidents if i.rung is Rung.DUMP and i.id.attempt == state.fence.attempt]
    if not found or previous.verdict is not None:
        return state
    last = found[-1]
    message = f"{last.reason}; no cheaper recovery is left"
    reason = NODE_LOST if last.cause in (Cause.NODE, Cause.SCALE) else "WorkersFailed"
    verdict = Verdict(outcome=Outcome.FAILED, reason=reason, message=message, culprit=last.culprit)
    # Nobody has spoken yet, so nobody is left out.
    state = _begun(state, last, verdict, frozenset(member.agent for member in previous.world), now)
    state = state.with_forming(reason=last.reason, dead=True, since=now)
    return dataclasses.replace(state, state=JobState.FORMING)


def asks(state: State, peer: Peer) -> Continue | None:
    """Return what an agent that waits is asked, None where that is nothing."""
    dumping, agent = state.dumping, peer.report.agent
    if dumping is None or agent not in dumping.asked or agent in dumping.told:
        return None
    ask = DumpAsk(
        number=dumping.number,
        phase=dumping.phase,
        fence=dumping.fence,
        step=dumping.step,
        ranks=dumping.shares.get(agent, ()),
    )
    return Continue(fence=state.fence, dump=ask)


def heard(state: State, report: AgentReport) -> State:
    """Return the state with what a report tells of it."""
    dumping, told = state.dumping, report.dump
    if dumping is not None and dumping.phase is DumpPhase.TELL:
        dumping = dataclasses.replace(dumping, agents=dumping.agents | _holders(state))
        state = dataclasses.replace(state, dumping=dumping)
    if dumping is None or told is None or (told.number, told.phase) != (dumping.number, dumping.phase):
        return state
    return _with(state, told={**dumping.told, report.agent: told})


def advanced(state: State, now: float) -> State:
    """Draw every conclusion that is due: ask the next question, or give the verdict."""
    while state.dumping is not None and state.verdict is None:
        dumping = state.dumping
        lost = dumping.asked - {peer.report.agent for peer in living(state)}
        if lost and dumping.phase is not DumpPhase.TELL:
            return _over(state, "a node that stores a part of the snapshot was lost", now)
        if now >= dumping.since + DUMP_TIMEOUT:
            return _over(state, f"the checkpoint was not written within {DUMP_TIMEOUT:g} s", now)
        if dumping.asked - lost - set(dumping.told):
            return state
        if dumping.phase is DumpPhase.TELL and not regrouped(state):
            return state
        failed = next((told for told in dumping.told.values() if told.error), None)
        if failed is not None:
            return _over(state, failed.error, now)
        if dumping.phase is DumpPhase.COMMIT:
            return _over(state, "", now)
        state = _committing(state) if dumping.phase is DumpPhase.WRITE else _chosen(state, now)
    return state


def due(state: State) -> float | None:
    """Return when time is over, None where nothing is dumped."""
    return None if state.dumping is None or state.verdict is not None else state.dumping.since + DUMP_TIMEOUT


def choose(held: Mapping[str, Sequence[Kept]]) -> tuple[Fence, int, dict[str, tuple[int, ...]]] | None:
    """Return the newest snapshot of which nothing is missing, and which agent writes which ranks' parts; None for none."""
    every = [(kept.fence, kept.step) for parts in held.values() for kept in parts]
    for age in sorted(set(every), reverse=True):
        shares: dict[str, list[int]] = {}
        owner: dict[int, str] = {}
        found = [(agent, kept) for agent, parts in sorted(held.items()) for kept in parts if (kept.fence, kept.step) == age]
        whole = next(((agent, kept) for agent, kept in found if kept.whole), None)
        if whole is not None:
            return *age, {whole[0]: whole[1].ranks[:1]}
        for agent, kept in found:
            for rank in kept.ranks:
                if owner.setdefault(rank, agent) == agent:
                    shares.setdefault(agent, []).append(rank)
        if set(owner) == set(range(found[0][1].world_size)):
            return *age, {agent: tuple(sorted(set(ranks))) for agent, ranks in shares.items()}
    return None


def _chosen(state: State, now: float) -> State:
    assert state.dumping is not None
    chosen = choose({agent: told.kept for agent, told in state.dumping.told.items()})
    if chosen is None:
        return _over(state, "no complete snapshot is available", now)
    fence, step, shares = chosen
    return _with(state, phase=DumpPhase.WRITE, told={}, fence=fence, step=step, shares=shares)


def _committing(state: State) -> State:
    return _with(state, phase=DumpPhase.COMMIT, told={})


def _over(state: State, why_not: str, now: float) -> State:
    """Give the verdict, with what became of the checkpoint."""
    dumping = state.dumping
    assert dumping is not None
    if why_not:
        said = f"cannot save a last checkpoint: {why_not}"
        given_up = [
            dataclasses.replace(i, rung=Rung.EXIT)
            for i in state.incidents
            if i.rung is Rung.DUMP and i.id.attempt == state.fence.attempt
        ]
        for incident in given_up:
            state = journal.incident(state, incident)
    else:
        name = next((told.checkpoint for told in dumping.told.values()), "")
        said = f"saved a last checkpoint of step {dumping.step}: {name}"
    state = journal.event(state, "dump", said, now)
    message = f"{dumping.verdict.message}; {said}"
    return journal.verdict(state, dataclasses.replace(dumping.verdict, message=message), now)


def _with(state: State, **changes: object) -> State:
    assert state.dumping is not None
    return dataclasses.replace(state, dumping=dataclasses.replace(state.dumping, **changes))  # type: ignore[arg-type]
