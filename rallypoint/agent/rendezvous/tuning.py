"""The tuned batch within the rendezvous: when every node has measured, the next one is chosen and told to all. Pure."""

from __future__ import annotations

import dataclasses

from rallypoint.agent.rendezvous import telling
from rallypoint.agent.rendezvous.batch import next_batch
from rallypoint.agent.rendezvous.peers import State, members
from rallypoint.wire.incident import FaultKind
from rallypoint.wire.messages import AgentReport, Continue
from rallypoint.wire.status import JobStatus
from rallypoint.wire.tuning import NodeTuning, Seen, Tuned, Tuning

__all__ = ["asks", "heard", "inherited", "tuned"]

#: Observations that are kept.
_KEPT = 16


def inherited(state: State, previous: JobStatus | None) -> State:
    """Return the state that begins with the batch that is known: also that of an earlier attempt."""
    if previous is None or previous.uid != state.uid or previous.tuning is None:
        return state
    return dataclasses.replace(state, tuning=previous.tuning)


def heard(state: State, before: AgentReport | None, report: AgentReport, now: float) -> State:
    """Take over what an agent measured; `before` is what it said last."""
    ours = report.tuning
    if ours is None:
        return state
    if report.failures and not (before is not None and before.failures):
        return _failed(state, report, now)
    if before is not None and before.tuning == ours:
        return state
    measured = _together(state)
    known = state.tuning or Tuning()
    if measured is None or known.settled or measured.version != known.version:
        return state
    seen = (*known.seen, Seen(batch=measured.batch, memory=measured.memory))[-_KEPT:]
    choice = next_batch(seen, measured.limit, known.ceiling)
    known = dataclasses.replace(known, batch=measured.batch, seen=seen, limit=measured.limit, settled=choice.settled)
    used = f"{measured.memory >> 20} of {measured.limit >> 20} MiB"
    if choice.batch == measured.batch:
        told = f"batch size per worker stays {choice.batch} ({used}): {choice.settled}"
        return telling.event(dataclasses.replace(state, tuning=known), "tuned", told, now)
    return _changed(state, known, choice.batch, f"batch size {measured.batch} used {used}", now)


def tuned(state: State) -> Tuned | None:
    """Return what workers are to use, None while that is what their script began with."""
    known = state.tuning
    return Tuned(version=known.version, batch=known.batch) if known is not None and known.version else None


def asks(state: State, agent: str) -> Continue | None:
    """Return the answer to an agent that has not heard of the batch, None where there is nothing to say."""
    wanted, peer = tuned(state), state.peers.get(agent)
    if wanted is None or peer is None or peer.report.tuning is None or peer.report.tuning.version >= wanted.version:
        return None
    return Continue(fence=state.fence, tuned=wanted)


def _changed(state: State, known: Tuning, batch: int, why: str, now: float) -> State:
    known = dataclasses.replace(known, version=known.version + 1, batch=batch)
    told = f"batch size per worker set to {batch}: {why}"
    return telling.event(dataclasses.replace(state, tuning=known), "tuned", told, now)


def _together(state: State) -> NodeTuning | None:
    """Return what was measured on all nodes of the world: the most that was used, and the least that there is."""
    told = [peer.report.tuning for peer in members(state)]
    nodes = [one for one in told if one is not None and one.memory > 0]
    if len(nodes) < len(state.world) or not nodes or len({(one.version, one.batch) for one in nodes}) > 1:
        return None
    return dataclasses.replace(nodes[0], memory=max(one.memory for one in nodes), limit=min(one.limit for one in nodes))


def _failed(state: State, report: AgentReport, now: float) -> State:
    """Go back to the last batch that worked where memory ran out with a larger one."""
    known = state.tuning
    if known is None or not known.version or not any(failure.kind is FaultKind.OOM for failure in report.failures):
        return state
    fitting = max((one.batch for one in known.seen if one.batch < known.batch), default=0)
    if not fitting:
        return state
    known = dataclasses.replace(known, ceiling=known.batch - 1, settled="a larger batch ran out of memory")
    return _changed(state, known, fitting, f"memory ran out with batch size {known.batch}", now)
