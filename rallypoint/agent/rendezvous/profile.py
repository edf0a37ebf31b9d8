"""How the coordinator answers faults, by the profile of the job. Pure; `now` is an argument.

`CoordinatorRules` are the rules of the core. A package of `rallypoint.profiles` may register others (its module `coordinator`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from rallypoint.agent.rendezvous.peers import Peer, State, members
from rallypoint.profiles import part_of
from rallypoint.supervision.verdicts import Judgement
from rallypoint.wire.incident import Incident, Rung
from rallypoint.wire.plan import Profile
from rallypoint.wire.status import JobStatus

__all__ = ["SPARING", "CoordinatorRules", "rules", "rules_of"]

#: The rungs for which workers may continue without a restart.
SPARING = frozenset({Rung.RETRY, Rung.RECOVER_IN_PLACE, Rung.RECOVER, Rung.ELASTIC_TRAINING})


@dataclass(frozen=True)
class CoordinatorRules:
    """The rules of a profile; a method that changes nothing returns the identical state object.

    Attributes:
        scale_per_round: when an agent leaves, its incident has the id of the round. Otherwise it has the id with which the
            supervisor reports the end of the agent's node, so that one end is one incident.
    """

    scale_per_round: bool = False

    def restore(self, state: State, previous: JobStatus, now: float) -> State:
        """Return the state of a coordinator that continues a round."""
        return state

    def permitted(self, state: State) -> frozenset[Rung]:
        """Return the rungs of `SPARING`, and `Rung.DUMP`, that the job allows now."""
        return SPARING | {Rung.DUMP}

    def process_rung(self, state: State, failed: Sequence[Peer], now: float) -> Rung:
        """Return the rung that answers workers which ended badly, or whose step raised."""
        if not any(peer.report.keeps for peer in members(state)):
            return Rung.RESTART_WORKERS
        failures = [failure for peer in failed for failure in peer.report.failures]
        return Rung.RETRY if failures and all(failure.lives for failure in failures) else Rung.RECOVER_IN_PLACE

    def on_process_fault(self, state: State, broken: Sequence[Peer], rung: Rung, now: float) -> State:
        """Return the state after the rung of a process fault was chosen."""
        return state

    def on_loss(self, state: State, node: int, now: float) -> State:
        """Return the state after a node of the world was lost, left, or was requested to leave."""
        return state

    def loss_rung(self, state: State, otherwise: Rung, now: float) -> Rung:
        """Return the rung that answers the lost nodes; `otherwise` is the rung of the core."""
        return otherwise

    def on_tick(self, state: State, now: float) -> State:
        """Return the state with a new `Loss.until`; called while replacements of lost nodes are awaited."""
        return state

    def end_for_losses(self, state: State, now: float) -> str | None:
        """Return why the attempt ends with a last checkpoint because of lost nodes; None if it does not."""
        return None

    def pods_to_replace(self, state: State, broken: Sequence[Peer]) -> tuple[Peer, ...]:
        """Return the agents whose pods are replaced for `Rung.RECOVER`; none if only their workers are."""
        return ()

    def pod_that_ends(self, state: State, told: Incident) -> Peer | None:
        """Return the agent that leaves when the budget of process faults is used up; None if the attempt ends."""
        return None

    def leaves_instead(self, state: State) -> tuple[Peer, Judgement] | None:
        """Return the agent that leaves for any process fault instead of a restart of the workers, and why."""
        return None

    def tolerance(self, state: State) -> str:
        """Return why another controller handles the faults of processes; "" if it does not."""
        return ""


@functools.cache
def rules_of(profile: Profile) -> CoordinatorRules:
    """Return the rules of a profile."""
    module = part_of(profile, "coordinator")
    found = CoordinatorRules() if module is None else module.RULES
    assert isinstance(found, CoordinatorRules)
    return found


def rules(state: State) -> CoordinatorRules:
    """Return the rules of the job's profile."""
    return rules_of(state.settings.profile)
