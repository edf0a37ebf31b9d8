"""Ports on which the parts of a job listen where each has an address of its own, as pods have."""

from __future__ import annotations

from rallypoint.wire.plan import Plan
from rallypoint.wire.sections import value_of

__all__ = ["AGENT_PORT", "COORDINATOR_PORT", "METRICS_PORT", "grpc_port", "metrics_port"]

#: The node agent, for the coordinator that announces itself.
AGENT_PORT = 29610

#: The coordinator, where `Plan.coordinator_port` names no other.
COORDINATOR_PORT = 29600

#: The coordinator's metrics, where the plan's `metrics_port` names no other.
METRICS_PORT = 29620


def grpc_port(port: int) -> int:
    """Return where a coordinator that serves HTTP on `port` would like to serve gRPC; 0, any free one, where there is none."""
    return port + 1 if port + 1 not in (AGENT_PORT, 1 << 16) else 0


def metrics_port(plan: Plan, *, pod: bool) -> int:
    """Return where a job's metrics are, 0 for nowhere: pods alone have a port by default, since each has an address."""
    port: int | None = value_of(plan, "metrics_port", 0)
    if port is None:
        return METRICS_PORT if pod else 0
    return port
