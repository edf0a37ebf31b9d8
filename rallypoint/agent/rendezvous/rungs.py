"""Which rung answers a fault, and who of the world lives on for it: what the job allows and what its workers can. Pure.

A worker says by itself what it can do, its agent counts those that live on (`AgentReport.keeps`), and the supervision's own
rules (`supervision/strategy.py`, `supervision/inplace.py`) choose among the words that the job allows. Outside of the profile
`mindcluster` a job allows all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rallypoint.agent.rendezvous import attempted, tolerance
from rallypoint.agent.rendezvous.lookup import world_size
from rallypoint.agent.rendezvous.peers import Peer, State, members
from rallypoint.supervision import inplace
from rallypoint.supervision.scheduling import strategies
from rallypoint.supervision.strategy import (
    Ability,
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
from rallypoint.wire.status import Member

__all__ = ["allowed", "kept_in", "of_failure", "permitted", "spares"]

#: What the strategies of a job's processes are called on the ladder; every other one restarts all workers.
_RUNGS: Mapping[Strategy, Rung] = {
    Strategy.RETRY: Rung.RETRY,
    Strategy.RECOVER_IN_PLACE: Rung.RECOVER_IN_PLACE,
    Strategy.RECOVER: Rung.RECOVER,
    Strategy.DUMP: Rung.DUMP,
}

#: The word that lets workers live on for a rung.
_WORDS: Mapping[Rung, Strategy] = {
    Rung.RETRY: Strategy.RETRY,
    Rung.RECOVER_IN_PLACE: Strategy.RECOVER_IN_PLACE,
    Rung.RECOVER: Strategy.RECOVER,
    Rung.ELASTIC_TRAINING: Strategy.ELASTIC_TRAINING,
}


def allowed(profile: Profile, scheduling: Scheduling | None) -> frozenset[Strategy]:
    """Return the strategies that a job allows its processes."""
    return frozenset(strategies(scheduling if profile is Profile.MINDCLUSTER else None))


def permitted(state: State) -> frozenset[Strategy]:
    """Return the strategies that are in force now."""
    return allowed(state.settings.profile, tolerance.settings(state))


def spares(state: State, rung: Rung) -> bool:
    """Return whether workers may live on where `rung` answers."""
    word = _WORDS.get(rung)
    return word is not None and word in permitted(state)


def of_failure(state: State, failed: Sequence[Peer], now: float) -> Rung:
    """Return the rung that answers workers which ended badly, or whose step raised.

    Where the strategy before has failed (`attempted.py`) it is one further down, and `exit` when none is left.
    """
    failures = [failure for peer in failed for failure in peer.report.failures]
    living = bool(failures) and all(failure.lives for failure in failures)
    able = {Ability.EXIT}
    if any(peer.report.keeps for peer in members(state)):
        able |= {Ability.RECOVER}
        able |= {Ability.RETRY} if living else set()
    if state.settings.profile is Profile.MINDCLUSTER and any(peer.report.dumps for peer in members(state)):
        able |= {Ability.DUMP}  # elsewhere a restart of the workers is cheaper, and comes first
    kind = FaultType.NETWORK if living and Ability.RETRY in able else FaultType.ORDINARY
    faults = [Fault(type=kind, rank=max(0, failure.rank)) for failure in failures] or [Fault(type=FaultType.ORDINARY, rank=0)]
    situation = Situation(in_place=_in_place(state, failed))
    before = attempted.failed(state, failed, now)
    if before is None:
        return _RUNGS.get(resolve(permitted(state), able, faults, situation).strategy, Rung.RESTART_WORKERS)
    # What a commit restores is whole, so a failed retry leaves all that is below it possible (code 405).
    how = Failure.RECOVERABLE if before is Strategy.RETRY else Failure.REPAIR
    return _RUNGS.get(after_failure(permitted(state), able, before, how, situation).strategy, Rung.EXIT)


def _in_place(state: State, failed: Iterable[Peer]) -> bool:
    """Return whether a broken worker may be replaced where it was: MindCluster has a rule of its own for several pods."""
    if state.settings.profile is not Profile.MINDCLUSTER:
        return True
    return inplace.judge(inplace.PodFaults(node=peer.node, software=True) for peer in failed).eligible


def kept_in(state: State, chosen: Iterable[Peer], world: tuple[Member, ...]) -> int:
    """Return how many workers live on into the next world: none where they may not, or cannot follow into its shape."""
    keeping = [peer for peer in chosen if peer.report.keeps and peer.report.round == state.fence.round]
    if not keeping or not state.forming.keep:
        return 0
    before = {member.agent: member.first_rank for member in state.world}
    after = {member.agent: member.first_rank for member in world}
    moved = any(before.get(peer.report.agent) != after[peer.report.agent] for peer in keeping)
    if (moved or world_size(state.world) != world_size(world)) and not all(peer.report.resizable for peer in keeping):
        return 0
    return sum(peer.report.keeps for peer in keeping)
