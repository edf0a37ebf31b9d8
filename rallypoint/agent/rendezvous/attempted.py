"""The last strategy that answered a process fault, and whether it worked (profile `mindcluster`). Pure.

A strategy has failed when the next process fault is the same once more (`inplace.is_same_fault`). Then a strategy further down
answers (`strategy.after_failure`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from rallypoint.agent.culprit import culprit_first
from rallypoint.agent.rendezvous.peers import Attempted, Peer, State
from rallypoint.supervision.inplace import is_same_fault
from rallypoint.supervision.strategy import Strategy
from rallypoint.wire.incident import Cause, Rung
from rallypoint.wire.plan import Profile
from rallypoint.wire.status import JobStatus

__all__ = ["failed", "inherited", "noted"]

#: What the rungs of process faults are called as strategies; a restart of all workers is none.
_STRATEGIES: Mapping[Rung, Strategy] = {
    Rung.RETRY: Strategy.RETRY,
    Rung.RECOVER_IN_PLACE: Strategy.RECOVER_IN_PLACE,
    Rung.RECOVER: Strategy.RECOVER,
    Rung.DUMP: Strategy.DUMP,
    Rung.EXIT: Strategy.EXIT,
}


def failed(state: State, broken: Sequence[Peer], now: float) -> Strategy | None:
    """Return the strategy that has failed now that the workers of `broken` agents ended or raised; None where none has."""
    last = state.attempted
    if last is None or state.settings.profile is not Profile.MINDCLUSTER:
        return None
    return last.strategy if is_same_fault(last.step, _step(broken), now - last.at) else None


def noted(state: State, broken: Sequence[Peer], rung: Rung, now: float) -> State:
    """Return the state that remembers how a process fault is answered."""
    strategy = _STRATEGIES.get(rung)
    last = None if strategy is None else Attempted(strategy=strategy, step=_step(broken), at=now)
    return dataclasses.replace(state, attempted=last)


def inherited(state: State, previous: JobStatus, now: float) -> State:
    """Return the state of a coordinator that takes over: the last incident tells what was attempted."""
    ours = [i for i in previous.incidents if i.id.attempt == state.fence.attempt and i.cause is Cause.PROCESS]
    last = max(ours, key=lambda incident: incident.id.round, default=None)
    strategy = None if last is None else _STRATEGIES.get(last.rung)
    if last is None or strategy is None:
        return state
    return dataclasses.replace(state, attempted=Attempted(strategy=strategy, step=last.last_step, at=now))


def _step(broken: Sequence[Peer]) -> int | None:
    """Return the last step of the rank that broke first, or the step that it resumed from; None where neither is known."""
    owners = {failure: peer for peer in broken for failure in peer.report.failures}
    if not owners:
        return None
    culprit = culprit_first(owners)[0]
    workers = owners[culprit].report.workers
    worker = next((worker for worker in workers if worker.local_rank == culprit.local_rank), None)
    if worker is None:
        return None
    return worker.reached
