"""Ports on which the parts of a job listen where each has an address of its own, as pods have."""

from __future__ import annotations

__all__ = ["AGENT_PORT", "COORDINATOR_PORT", "METRICS_PORT"]

#: The node agent, for the coordinator that announces itself.
AGENT_PORT = 29610

#: The coordinator, where `Plan.coordinator_port` names no other.
COORDINATOR_PORT = 29600

#: The coordinator's metrics, where `Plan.metrics_port` names no other.
METRICS_PORT = 29620
