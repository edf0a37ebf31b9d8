"""Decisions of other components that a job waits for: quota, scheduling, another controller. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rallypoint.supervision.observation import NodeSeen, NodeState, Observation
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.supervision.trimming import cut

__all__ = ["LIMIT", "waits_for"]

#: Maximum length of the text in bytes.
LIMIT = 600

_STARTING = frozenset({Phase.EMPTY, Phase.SUSPENDED, Phase.RESUMING, Phase.RUNNING})

#: Format of ResourceQuota: `exceeded quota: tight, requested: pods=1, used: pods=2, limited: pods=2`.
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<asked>.*?), used: (?P<used>.*?), limited: (?P<limit>.*)$", re.DOTALL
)


def waits_for(record: JobRecord, seen: Observation) -> str:
    """Return the decision that the job waits for, with known names and numbers; "" if there is none."""
    if record.phase not in _STARTING or record.deletion:
        return ""
    return cut("; ".join((*_not_created(record, seen), *_not_started(record, seen.nodes), *_controller(seen))), LIMIT)


def _not_created(record: JobRecord, seen: Observation) -> Iterator[str]:
    attempts = (record.attempt, record.attempt + 1)  # of kinds whose object opens the attempt
    errors = [error for error in seen.create_errors if error.attempt in attempts and not error.fatal]
    if errors:
        # Only the first unschedulable pod is named: the others request the same resources.
        error = next((one for one in errors if one.waits), errors[0])
        what = "the coordinator" if error.node < 0 else f"node {error.node}"
        found = _QUOTA.search(error.reason)
        if found is None:
            yield error.reason
        else:
            name, asked, used, limit = found["name"], found["asked"], found["used"], found["limit"]
            yield f"quota {name}: {what} asks for {asked}; used {used}, limit {limit}"


def _not_started(record: JobRecord, nodes: Sequence[NodeSeen]) -> Iterator[str]:
    placeless = (n for n in nodes if n.state is NodeState.STARTING and (n.unschedulable or n.gated) and n.reason)
    waiting = [n for n in placeless if n.attempt == record.attempt]
    if waiting:
        first = waiting[0]
        more = "" if len(waiting) == 1 else f" (and {len(waiting) - 1} more)"
        yield f"node {first.node}{more}: {first.reason}"


def _controller(seen: Observation) -> Iterator[str]:
    everyone_runs = bool(seen.nodes) and all(n.state is not NodeState.STARTING for n in seen.nodes)
    if seen.controller and not everyone_runs:
        yield seen.controller
