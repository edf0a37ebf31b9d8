"""The limits that the rendezvous keeps: how many, how long, how often."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rallypoint.supervision.budget import Budget
from rallypoint.wire.incident import Cause
from rallypoint.wire.plan import (
    Budgets,
    EndRule,
    FailureRules,
    Plan,
    Profile,
    Refill,
    RendezvousSettings,
    Scheduling,
    WorkerSettings,
)
from rallypoint.wire.sections import value_of

__all__ = ["HEARD_EVERY", "Settings", "pace_of"]

#: Seconds between two reports of an agent at the most, whatever it is asked for: its silence is to be told within two seconds,
#: also where the verdict on it waits for a longer lease.
HEARD_EVERY = 1.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The limits of the rendezvous; durations are seconds. The meaning of each is that of `Plan`'s field of the same name."""

    min_nodes: int
    max_nodes: int
    node_unit: int = Plan.node_unit
    join_timeout: float = RendezvousSettings.join_timeout
    last_call: float = RendezvousSettings.last_call
    node_lease: float = RendezvousSettings.node_lease
    fence_timeout: float = RendezvousSettings.fence_timeout
    stop_grace: float = WorkerSettings.stop_grace
    max_restarts: int = Budgets.max_restarts
    process_refill: Refill = Budgets.process_refill
    max_hangs: int = Budgets.max_hangs
    hang_refill: Refill = Budgets.hang_refill
    node_replacements: int = Budgets.node_replacements
    profile: Profile = Plan.profile
    scheduling: Scheduling | None = Plan.scheduling
    terminal_exit_codes: tuple[int, ...] = FailureRules.terminal_exit_codes
    retryable_exit_codes: tuple[int, ...] = FailureRules.retryable_exit_codes
    end_rules: tuple[EndRule, ...] = FailureRules.end_rules
    failover_extension: str = FailureRules.failover_extension
    report_interval: float = RendezvousSettings.report_interval

    @classmethod
    def from_plan(cls, plan: Plan) -> Settings:
        """Return the settings that a plan asks for."""
        return cls(**{f.name: value_of(plan, f.name) for f in dataclasses.fields(cls)})

    @property
    def elsewhere(self) -> bool:
        """Whether a node that is sent away is missed by somebody: it is replaced, or its loss resets the job."""
        return self.node_replacements > 0 or self.profile is Profile.APPWRAPPER

    @property
    def restarts(self) -> Budget:
        """The budget of process faults."""
        return Budget(cause=Cause.PROCESS, limit=self.max_restarts, refill=self.process_refill)

    @property
    def hangs(self) -> Budget:
        """The budget of hangs."""
        return Budget(cause=Cause.HANG, limit=self.max_hangs, refill=self.hang_refill)

    @property
    def pace(self) -> float:
        """Seconds between two reports of an agent while nothing happens."""
        return pace_of(self.report_interval, self.node_lease, self.fence_timeout)

    def usable(self, nodes: int) -> int:
        """Return how many of `nodes` can form a world: at most `max_nodes`, and a multiple of `node_unit`."""
        return min(nodes, self.max_nodes) // self.node_unit * self.node_unit


def pace_of(report_interval: float, node_lease: float, fence_timeout: float) -> float:
    """Return how many seconds are between two reports of an agent while nothing happens; agent and coordinator both ask."""
    return min(report_interval, node_lease / 3, fence_timeout / 3, HEARD_EVERY)
