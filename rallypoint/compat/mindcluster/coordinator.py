"""The coordinator's part of the profile `mindcluster`: MindCluster's recovery controller. Pure; `now` is an argument.

The strategies that a job allows are those of its plan (`scheduling.strategies`); `strategy.resolve` chooses among them.

Lost nodes: `recover` waits for the replaced pod up to `wait_reschedule_timeout`, `elastic-training` up to `elastic_wait` if the
scheduler may replace the pod. Until then no smaller world forms. After that the next strategy answers: a smaller world, or a
last checkpoint and the end of the attempt. Without a strategy for nodes the coordinator waits for nothing, and the supervisor
alone decides.

Process faults: a strategy has failed if the next process fault is the same again (`in_place.is_same_fault`). Then a strategy
further down answers (`strategy.after_failure`).

Graceful fault tolerance and the recovery of processes cannot both be in use. If the job or an entry in the reset file requests
graceful fault tolerance (`AgentReport.tolerance`), no process is recovered: as in MindCluster the agent of rank 0 leaves, for
which the scheduler deletes all pods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from rallypoint.agent.culprit import culprit_first
from rallypoint.agent.rendezvous import last_checkpoint
from rallypoint.agent.rendezvous.lookup import places
from rallypoint.agent.rendezvous.peers import Attempted, Loss, Peer, State, living, members
from rallypoint.agent.rendezvous.profile import CoordinatorRules
from rallypoint.compat.mindcluster import in_place
from rallypoint.compat.mindcluster.scheduling import may_replace, replaces_alone, reschedules_all, strategies
from rallypoint.compat.mindcluster.strategy import (
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
from rallypoint.supervision.verdicts import Judgement
from rallypoint.wire.incident import Answer, Cause, FaultKind, Incident, Rung
from rallypoint.wire.plan import Scheduling
from rallypoint.wire.status import JobState, JobStatus

__all__ = ["RULES", "MindClusterRules", "allowed", "rungs_of"]

#: The slot whose pod holds rank 0.
_MASTER = 0

#: The rung of each strategy.
_RUNGS: Mapping[Strategy, Rung] = {
    Strategy.RETRY: Rung.RETRY,
    Strategy.RECOVER_IN_PLACE: Rung.RECOVER_IN_PLACE,
    Strategy.RECOVER: Rung.RECOVER,
    Strategy.ELASTIC_TRAINING: Rung.ELASTIC_TRAINING,
    Strategy.DUMP: Rung.DUMP,
    Strategy.EXIT: Rung.EXIT,
}
_STRATEGIES: Mapping[Rung, Strategy] = {rung: strategy for strategy, rung in _RUNGS.items()}

#: Strategies for process faults; for every other one all workers restart.
_OF_PROCESSES = frozenset({Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER, Strategy.DUMP})

#: Strategies for lost nodes.
_OF_NODES = frozenset({Strategy.RECOVER, Strategy.ELASTIC_TRAINING})


def rungs_of(scheduling: Scheduling | None) -> frozenset[Rung]:
    """Return the rungs of the strategies that settings allow."""
    return frozenset(_RUNGS[strategy] for strategy in strategies(scheduling))


def allowed(state: State) -> frozenset[Strategy]:
    """Return the strategies that are in force now."""
    return frozenset(strategies(_settings(state)))


class MindClusterRules(CoordinatorRules):
    """`CoordinatorRules` of the profile `mindcluster`."""

    def restore(self, state: State, previous: JobStatus, now: float) -> State:
        """Return the state with the strategy of the last incident of a process."""
        ours = [i for i in previous.incidents if i.id.attempt == state.fence.attempt and i.cause is Cause.PROCESS]
        last = max(ours, key=lambda incident: incident.id.round, default=None)
        if last is None or not _answers_process(last.rung):
            return state
        return dataclasses.replace(state, attempted=Attempted(rung=last.rung, step=last.last_step, at=now))

    def permitted(self, state: State) -> frozenset[Rung]:
        """Return the rungs of the strategies that are in force."""
        return rungs_of(_settings(state))

    def process_rung(self, state: State, failed: Sequence[Peer], now: float) -> Rung:
        """Return the rung of the first possible strategy.

        If the strategy of the fault before has failed, it is one further down, and `exit` if none is left.
        """
        failures = [failure for peer in failed for failure in peer.report.failures]
        lives = bool(failures) and all(failure.lives for failure in failures)
        able = {Ability.EXIT}
        if any(peer.report.keeps for peer in members(state)):
            able |= {Ability.RECOVER}
            able |= {Ability.RETRY} if lives else set()
        if last_checkpoint.can_save(state, members(state)):
            able |= {Ability.DUMP}
        kind = FaultType.NETWORK if lives and Ability.RETRY in able else FaultType.ORDINARY
        faults = [Fault(type=kind, rank=max(0, failure.rank)) for failure in failures] or [
            Fault(type=FaultType.ORDINARY, rank=0)
        ]
        pods = (in_place.PodFaults(node=peer.node, software=True) for peer in failed)
        situation = Situation(in_place=in_place.judge(pods).eligible)
        before = _failed_strategy(state, failed, now)
        if before is None:
            return _process_rung(resolve(allowed(state), able, faults, situation).strategy, Rung.RESTART_WORKERS)
        # A commit restores a complete state, so after a failed retry all strategies below it are still possible (code 405).
        how = Failure.RECOVERABLE if before is Strategy.RETRY else Failure.REPAIR
        return _process_rung(after_failure(allowed(state), able, before, how, situation).strategy, Rung.EXIT)

    def on_process_fault(self, state: State, broken: Sequence[Peer], rung: Rung, now: float) -> State:
        """Return the state with the strategy that answers the fault."""
        last = Attempted(rung=rung, step=_step(broken), at=now) if _answers_process(rung) else None
        return dataclasses.replace(state, attempted=last)

    def on_loss(self, state: State, node: int, now: float) -> State:
        """Return the state in which the replacement of the node is awaited, if the job still needs its slot."""
        known = state.loss or Loss(nodes=frozenset(), since=now)
        return dataclasses.replace(state, loss=dataclasses.replace(known, nodes=known.nodes | {node}))

    def loss_rung(self, state: State, otherwise: Rung, now: float) -> Rung:
        """Return the rung of the strategy that answers the lost nodes."""
        choice = _answer(state, now)
        return _RUNGS[choice.strategy] if choice is not None and choice.strategy in _OF_NODES else otherwise

    def on_tick(self, state: State, now: float) -> State:
        """Return the state with the time until which no smaller world may form."""
        if state.loss is None or state.loss.until == (until := _until(state, state.loss, now)):
            return state
        return dataclasses.replace(state, loss=dataclasses.replace(state.loss, until=until))

    def end_for_losses(self, state: State, now: float) -> str | None:
        """Return why a job with the strategy `dump` ends: it cannot continue without the lost nodes.

        The supervisor ends other jobs, because nothing in the memory of the remaining nodes is needed for them.
        """
        if state.state is not JobState.FORMING or Strategy.DUMP not in allowed(state):
            return None
        choice = _answer(state, now)
        if choice is None or not (choice.job_level or choice.strategy in (Strategy.DUMP, Strategy.EXIT)):
            return None
        return choice.reason

    def pods_to_replace(self, state: State, broken: Sequence[Peer]) -> tuple[Peer, ...]:
        """Return the agents whose pods `recover` replaces; none if one of the pods must stay.

        The pod of rank 0 stays, because its replacement would restart the whole job, and so does every pod without a budget
        (`fault-retry-times`). There `recover` restarts only the broken process.
        """
        settings, world = _settings(state), places(state.world)
        if settings is None or not (may_replace(settings) and settings.fault_retry_times > 0):
            return ()
        able = all(peer.node != _MASTER and peer.report.agent in world for peer in broken)
        return tuple(broken) if able else ()

    def pod_that_ends(self, state: State, told: Incident) -> Peer | None:
        """Return the agent of the faulty pod if the scheduler then replaces that pod alone."""
        settings = _settings(state)
        if settings is None or not replaces_alone(settings, told.id.node):
            return None
        return next((peer for peer in members(state) if peer.node == told.id.node), None)

    def leaves_instead(self, state: State) -> tuple[Peer, Judgement] | None:
        """Return the agent of rank 0 if graceful fault tolerance reschedules the whole job."""
        settings = _settings(state)
        if settings is None or not reschedules_all(settings):
            return None
        peer = state.peers.get(state.world[0].agent) if state.world else None
        if peer is None:
            return None
        entry = self.tolerance(state)
        why = f" (reset file: {entry})" if entry else ""
        rule = f"graceful fault tolerance{why}: rescheduling the whole job"
        return peer, Judgement(kind=FaultKind.EXIT_CODE, answer=Answer.RETRY_ELSEWHERE, cause=Cause.NODE, rule=rule)

    def tolerance(self, state: State) -> str:
        """Return the entry of graceful fault tolerance in the reset file, as the first agent reports it."""
        return _tolerance(state)


RULES = MindClusterRules(scale_per_round=True)


def _tolerance(state: State) -> str:
    reported = (peer.report.tolerance for peer in sorted(living(state), key=lambda peer: peer.node))
    return next(filter(None, reported), "")


def _settings(state: State) -> Scheduling | None:
    """Return the settings in force: an entry in the reset file has the effect of `graceful_tolerance`."""
    known = state.settings.scheduling
    if known is None or known.graceful_tolerance or not _tolerance(state):
        return known
    return dataclasses.replace(known, graceful_tolerance=True)


# --- lost nodes ------------------------------------------------------------------------------------------------------------


def _answer(state: State, now: float) -> Choice | None:
    """Return the strategy that answers the lost nodes; None without lost nodes, and without a configured strategy."""
    loss, settings, here = state.loss, _settings(state), _here(state)
    lost = frozenset[int]() if loss is None else loss.nodes - {peer.node for peer in here}
    if loss is None or settings is None or not lost or allowed(state) <= {Strategy.EXIT}:
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
        return after_failure(allowed(state), able, Strategy.RECOVER, Failure.SCHEDULE, situation)
    faults = [Fault(type=FaultType.ORDINARY, rank=node) for node in sorted(lost)]
    return resolve(allowed(state), able, faults, situation)


def _here(state: State) -> tuple[Peer, ...]:
    """Return the agents that may be in the next world."""
    return tuple(peer for peer in living(state) if peer.report.agent not in state.away)


def _able(state: State, nodes: int) -> frozenset[Ability]:
    """Return what `nodes` nodes can do without the lost ones; a pod can always be replaced while the others wait."""
    able = {Ability.EXIT, Ability.RECOVER}
    if state.settings.usable(nodes) >= state.settings.min_nodes:
        able |= {Ability.DOWNGRADE, Ability.UPGRADE}
    if last_checkpoint.possible(state):
        able |= {Ability.DUMP}
    return frozenset(able)


def _until(state: State, loss: Loss, now: float) -> float | None:
    choice, settings = _answer(state, now), _settings(state)
    if choice is None or settings is None or choice.pause:
        return None
    if choice.strategy is Strategy.RECOVER:
        return loss.since + settings.wait_reschedule_timeout
    return loss.since + settings.elastic_wait if choice.wait else None


# --- process faults --------------------------------------------------------------------------------------------------------


def _process_rung(strategy: Strategy, otherwise: Rung) -> Rung:
    return _RUNGS[strategy] if strategy in _OF_PROCESSES else otherwise


def _answers_process(rung: Rung) -> bool:
    strategy = _STRATEGIES.get(rung)
    return strategy is Strategy.EXIT or strategy in _OF_PROCESSES


def _failed_strategy(state: State, broken: Sequence[Peer], now: float) -> Strategy | None:
    """Return the strategy that has failed now that the workers of `broken` agents ended or raised; None if none has."""
    last = state.attempted
    if last is None or not in_place.is_same_fault(last.step, _step(broken), now - last.at):
        return None
    return _STRATEGIES[last.rung]


def _step(broken: Iterable[Peer]) -> int | None:
    """Return the last step of the rank that broke first, or the step that it resumed from; None if neither is known."""
    owners = {failure: peer for peer in broken for failure in peer.report.failures}
    if not owners:
        return None
    culprit = culprit_first(owners)[0]
    workers = owners[culprit].report.workers
    worker = next((worker for worker in workers if worker.local_rank == culprit.local_rank), None)
    return None if worker is None else worker.reached
