"""How much a job may be retried and how long it is waited for. Durations are seconds as `float`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.bounds import BUDGET
from rallypoint.wire.fields import values_of
from rallypoint.wire.node_range import Size
from rallypoint.wire.plan import Budgets, EndRule, GracePeriods, Kind, Plan, Profile, Refill, Scheduling

__all__ = ["Policy", "kept_for"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The limits that `reconcile` keeps.

    Attributes:
        min_nodes, max_nodes: bounds of the world.
        retry_limit: resets of the whole job; never refilled.
        node_replacements: replacements of one slot's node within one attempt.
        replace_delay: pause before a lost node is replaced.
        admission_grace: until every node exists, from the deployment of the attempt.
        warmup_grace: until the first round runs, from the deployment; or until it runs again, from when it stopped running.
        failure_grace: how long failed nodes below `min_nodes` are tolerated, from when the job became unhealthy.
        retry_pause: between the end of deletion and the next attempt.
        forceful_deletion_grace: a deletion that is not finished by then is forced.
        leave_grace: how long agents may take to end by themselves after the job's verdict.
        profile: whose rules hold; `appwrapper` asks for `min_nodes` equal to `max_nodes`.
        wrapped: the pods are made by the controller of wrapped components (a PyTorchJob, say); otherwise we make each of them.
        followed: the controller of the wrapped components decides about them, too: we only watch it and tell what it does.
        deletion_on_failure_grace: a failed job is left alone for so long; 0 deletes at once.
        success_ttl: what is left of a job that succeeded is deleted so long after its success.
        terminal_exit_codes, retryable_exit_codes: as in `Plan`.
        pending_timeout, pending_fail_strategy: as in `Plan`.
        node_refill, reset_refill: when the faults of these budgets stop to count.
        no_progress_limit: so many attempts in a row without a newer step end the job; 0 is off.
        end_rules: the user's rules for how an end is answered.
        scheduling: settings of a profile with a package of its own; None in the others.
        fence: seconds after which agents that reach no coordinator have stopped their workers.
        coordinator_replacements: coordinators that may be lost within one attempt.
        node_group: nodes on machines with the same value of this label are replaced together; "" is off.
        node_group_timeout: how long the replacement of one of them may be pending before that.
        max_gap: a longer gap between two turns counts as this long, so that a machine that slept expires nothing.
    """

    limits: ClassVar = {
        "retry_limit": BUDGET,
        "node_replacements": BUDGET,
        "no_progress_limit": BUDGET,
        "coordinator_replacements": BUDGET,
    }

    min_nodes: int
    max_nodes: int
    retry_limit: int = Budgets.retry_limit
    node_replacements: int = Budgets.node_replacements
    replace_delay: float = GracePeriods.replace_delay
    admission_grace: float = GracePeriods.admission_grace
    warmup_grace: float = GracePeriods.warmup_grace
    failure_grace: float = GracePeriods.failure_grace
    retry_pause: float = GracePeriods.retry_pause
    forceful_deletion_grace: float = GracePeriods.forceful_deletion_grace
    leave_grace: float = 15.0
    profile: Profile = Profile.LADDER
    wrapped: bool = False
    followed: bool = False
    deletion_on_failure_grace: float = GracePeriods.deletion_on_failure_grace
    success_ttl: float = GracePeriods.success_ttl
    terminal_exit_codes: tuple[int, ...] = ()
    retryable_exit_codes: tuple[int, ...] = ()
    pending_timeout: float = GracePeriods.pending_timeout
    pending_fail_strategy: int = GracePeriods.pending_fail_strategy
    node_refill: Refill = Budgets.node_refill
    reset_refill: Refill = Budgets.reset_refill
    no_progress_limit: int = 0
    end_rules: tuple[EndRule, ...] = ()
    scheduling: Scheduling | None = None
    fence: float = 615.0
    node_group: str = ""
    node_group_timeout: float = GracePeriods.node_group_timeout
    max_gap: float = 120.0
    coordinator_replacements: int = Budgets.coordinator_replacements

    def sized(self, size: Size | None) -> Policy:
        """Return the policy for a job that is wanted with other bounds than its plan's."""
        if size is None:
            return self
        return dataclasses.replace(self, min_nodes=size.min_nodes, max_nodes=size.max_nodes)

    @classmethod
    def from_plan(cls, plan: Plan) -> Policy:
        """Return the policy that a plan asks for."""
        known = dict(values_of(plan, Plan))
        shared = {field.name: known[field.name] for field in dataclasses.fields(cls) if field.name in known}
        return cls(
            **shared,
            wrapped=plan.kind is not Kind.PODS,
            followed=plan.kind is Kind.APPWRAPPER,
            leave_grace=plan.workers.stop_grace + 5.0,
            fence=plan.rendezvous.fence_timeout + plan.workers.stop_grace,
        )


def kept_for(record: JobRecord, policy: Policy) -> float | None:
    """Return for how many seconds after its end a job is kept; None for one that has not ended, and for ever.

    One that has failed is kept until somebody deletes it, as AppWrapper keeps it: its record says why.
    """
    ended = record.phase is Phase.SUCCEEDED and record.released and not record.deletion
    return policy.success_ttl if ended else None
