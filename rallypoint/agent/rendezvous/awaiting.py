"""What answers the loss of a node in the profile `mindcluster`, and how long its replacement is awaited. Pure.

MindCluster's recovery controller chooses (`supervision/strategy.py`): `recover` waits for the replaced pod up to
`wait_reschedule_timeout`, `elastic-training` up to `elastic_wait` where the scheduler may replace it at all. Until then no
smaller world is formed. When the time is over, the next strategy answers: a smaller world, or a last checkpoint and the end of
the attempt. Without a strategy for nodes nothing is awaited, and the supervisor alone decides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.agent.rendezvous import dumping, rungs, tolerance
from rallypoint.agent.rendezvous.lookup import places
from rallypoint.agent.rendezvous.peers import Loss, Peer, State, living
from rallypoint.supervision.scheduling import may_replace
from rallypoint.supervision.strategy import (
    Ability,
    Choice,
    Failure,
    Fault,
    FaultType,
    Situation,
    Strategy,
    after_failure,
    resolve,
)
from rallypoint.wire.incident import Rung
from rallypoint.wire.plan import Profile, Scheduling
from rallypoint.wire.status import JobState

__all__ = ["answer", "begun", "due", "ends", "left", "replaceable", "rung", "timed", "waits"]

#: The slot whose pod holds rank 0.
_MASTER = 0

_RUNGS = {
    Strategy.RECOVER: Rung.RECOVER,
    Strategy.ELASTIC_TRAINING: Rung.ELASTIC_TRAINING,
}


def begun(state: State, node: int, now: float) -> State:
    """Return the state after a node of its world was lost or sent away."""
    if state.settings.profile is not Profile.MINDCLUSTER:
        return state
    known = state.loss or Loss(nodes=frozenset(), since=now)
    return dataclasses.replace(state, loss=dataclasses.replace(known, nodes=known.nodes | {node}))


def left(state: State, node: int, now: float) -> State:
    """Return the state after an agent took its leave: where the job still wants its slot, a replacement is on its way."""
    return begun(state, node, now) if node < state.settings.max_nodes else state


def answer(state: State, now: float) -> Choice | None:
    """Return the strategy that answers the lost nodes now; None where there are none, or where no strategy is configured."""
    loss, settings, here = state.loss, tolerance.settings(state), _here(state)
    lost = frozenset[int]() if loss is None else loss.nodes - {peer.node for peer in here}
    if loss is None or settings is None or not lost or rungs.permitted(state) <= {Strategy.EXIT}:
        return None
    waited = now - loss.since
    situation = Situation(
        master_faulty=_MASTER in lost,
        rescheduling=may_replace(settings),
        waited=waited,
        elastic_wait=settings.elastic_wait,
    )
    able = _able(state, len(here))
    if waited >= settings.wait_reschedule_timeout:
        return after_failure(rungs.permitted(state), able, Strategy.RECOVER, Failure.SCHEDULE, situation)
    faults = [Fault(type=FaultType.ORDINARY, rank=node) for node in sorted(lost)]
    return resolve(rungs.permitted(state), able, faults, situation)


def _here(state: State) -> tuple[Peer, ...]:
    """Return the agents that may be in the next world."""
    return tuple(peer for peer in living(state) if peer.report.agent not in state.away)


def _able(state: State, nodes: int) -> frozenset[Ability]:
    """Return what `nodes` nodes can do without the lost ones; a pod can always be replaced while the others wait."""
    able = {Ability.EXIT, Ability.RECOVER}
    if state.settings.usable(nodes) >= state.settings.min_nodes:
        able |= {Ability.DOWNGRADE, Ability.UPGRADE}
    if dumping.possible(state):
        able |= {Ability.DUMP}
    return frozenset(able)


def rung(state: State, otherwise: Rung, now: float) -> Rung:
    """Return the rung that answers the lost nodes; `otherwise` is that of the other profiles."""
    choice = answer(state, now)
    return otherwise if choice is None else _RUNGS.get(choice.strategy, otherwise)


def timed(state: State, now: float) -> State:
    """Return the state that knows until when no smaller world may be formed; the very same where that is as it was."""
    if state.loss is None or state.loss.until == (until := _until(state, now)):
        return state
    return dataclasses.replace(state, loss=dataclasses.replace(state.loss, until=until))


def waits(state: State) -> bool:
    """Return whether no smaller world may be formed yet, because replacements of lost nodes are awaited."""
    return due(state) is not None


def due(state: State) -> float | None:
    """Return when the wait for replacements is over; None where nothing is awaited any more."""
    return None if state.loss is None else state.loss.until


def _until(state: State, now: float) -> float | None:
    choice, loss, settings = answer(state, now), state.loss, tolerance.settings(state)
    if choice is None or loss is None or settings is None or choice.pause:
        return None
    if choice.strategy is Strategy.RECOVER:
        return loss.since + settings.wait_reschedule_timeout
    return loss.since + settings.elastic_wait if choice.wait else None


def ends(state: State, now: float) -> Choice | None:
    """Return the choice that ends the attempt of a job with `dump`, because nothing can go on without the lost nodes.

    None for other jobs, which the supervisor ends: there nothing in the memory of the nodes that are left is needed any more.
    """
    if state.state is not JobState.FORMING or Strategy.DUMP not in rungs.permitted(state):
        return None
    choice = answer(state, now)
    if choice is None or not (choice.job_level or choice.strategy in (Strategy.DUMP, Strategy.EXIT)):
        return None
    return choice


def replaceable(state: State, failed: Iterable[Peer]) -> tuple[Peer, ...]:
    """Return the agents whose pods `recover` replaces for a fault of their workers; none where one of them must stay.

    The pod of rank 0 stays, since its replacement would restart the whole job, and so does every pod without a budget
    (`fault-retry-times`). There `recover` starts the broken process anew beside the others.
    """
    settings = tolerance.settings(state)
    if settings is None or not _budgeted(settings):
        return ()
    world, broken = places(state.world), tuple(failed)
    able = all(peer.node != _MASTER and peer.report.agent in world for peer in broken)
    return broken if able else ()


def _budgeted(settings: Scheduling) -> bool:
    return may_replace(settings) and settings.fault_retry_times > 0
