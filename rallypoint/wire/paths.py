"""Paths of the coordinator's and the agents' HTTP, and the header of those who supervise."""

from __future__ import annotations

__all__ = [
    "COORDINATOR_PATH",
    "ENTRIES_PATH",
    "HEALTH_PATH",
    "METRICS_PATH",
    "REPORT_PATH",
    "ROSTER_PATH",
    "STATUS_PATH",
    "SUPERVISOR_HEADER",
]

#: Coordinator: an agent's report, answered by long poll.
REPORT_PATH = "/v1/report"

#: Coordinator: the `JobStatus` as it is now.
STATUS_PATH = "/v1/status"

#: Coordinator: the `Roster`, from a supervisor.
ROSTER_PATH = "/v1/roster"

#: Agent: the `Endpoint` of the coordinator that announces itself.
COORDINATOR_PATH = "/v1/coordinator"

#: Directory of roles: all entries; an entry has its name after it.
ENTRIES_PATH = "/v1/entries"

#: Coordinator, on a port of its own: the job's metrics for Prometheus; needs no token.
METRICS_PATH = "/metrics"

#: Both: who is there; needs no token.
HEALTH_PATH = "/healthz"

#: `ID:COUNTER` of the supervising process that asks. With the job's secret it is a sign of life, for a coordinator that may not
#: read the supervisor's heartbeat itself; the counter must be another one after a while.
SUPERVISOR_HEADER = "X-Rallypoint-Supervisor"
