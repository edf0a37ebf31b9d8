"""How much a job may be retried and how long it is waited for. Durations are seconds as `float`."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.wire.plan import Plan

__all__ = ["Policy"]


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
        exit_grace: how long agents may take to end by themselves after the job's verdict.
        max_gap: a longer gap between two turns counts as this long, so that a machine that slept expires nothing.
    """

    min_nodes: int
    max_nodes: int
    retry_limit: int = 3
    node_replacements: int = 3
    replace_delay: float = 0.0
    admission_grace: float = 60.0
    warmup_grace: float = 300.0
    failure_grace: float = 60.0
    retry_pause: float = 90.0
    forceful_deletion_grace: float = 600.0
    exit_grace: float = 15.0
    max_gap: float = 120.0

    @classmethod
    def from_plan(cls, plan: Plan) -> Policy:
        """Return the policy that a plan asks for."""
        return cls(
            min_nodes=plan.min_nodes,
            max_nodes=plan.max_nodes,
            retry_limit=plan.retry_limit,
            node_replacements=plan.node_replacements,
            replace_delay=plan.replace_delay,
            admission_grace=plan.admission_grace,
            warmup_grace=plan.warmup_grace,
            failure_grace=plan.failure_grace,
            retry_pause=plan.retry_pause,
            forceful_deletion_grace=plan.forceful_deletion_grace,
            exit_grace=plan.stop_grace + 5.0,
        )
