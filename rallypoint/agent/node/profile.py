"""The part of a job's profile in the node agent."""

from __future__ import annotations

from typing import Protocol, cast

from rallypoint.profiles import part_of
from rallypoint.wire.plan import Plan

__all__ = ["NodeRules", "node_rules"]


class NodeRules(Protocol):
    """What the module `node` of a profile's package creates for an agent: `create(plan)`."""

    def tolerance(self) -> str:
        """Return why another controller handles the faults of processes, so that the job must not; "" if it may."""
        ...

    def keeps(self) -> bool:
        """Return whether workers may continue after a fault of another worker or node."""
        ...

    def replaces_raised(self, local_rank: int, step: int | None, now: float) -> bool:
        """Return whether a worker whose step raised must be replaced; `step` is its last finished step, None if unknown."""
        ...


def node_rules(plan: Plan) -> NodeRules | None:
    """Return the rules of the job's profile; None for a profile of the core."""
    module = part_of(plan.profile, "node")
    return None if module is None else cast("NodeRules | None", module.create(plan))
