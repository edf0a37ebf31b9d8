"""Record of failed pods that another controller creates. Pure.

These pods have no slots and no replacements; their controller resets all pods after one failure. So one failure is one
incident: the first failed pod of an attempt. The other pods of that attempt failed because of it or were ended with it; they
are in the history. The reset is charged, and has its own incident only if no failed pod is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.supervision import healing
from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Cause, Incident, Rung, merge_incidents

__all__ = ["failure", "noted"]

#: Maximum number of failed pods of an attempt in the history.
_FOLLOWERS = 8


def noted(record: JobRecord, nodes: Iterable[NodeSeen], policy: Policy) -> JobRecord:
    """Record each failed pod of the current attempt once; the first with its host, exit codes and last log lines."""
    failed = [n for n in nodes if n.ended and n.state is not NodeState.SUCCEEDED and 0 < n.attempt == record.attempt]
    ends = [dataclasses.replace(healing.node_incident(record, node, policy, None), rung=Rung.RESET) for node in failed]
    known = failure(record)
    lines = [entry.detail for entry in record.history if entry.kind == "node-lost"]
    told = {line.partition(" on ")[0] for line in lines}
    fresh = [
        end for end in ends if (known is None or end.id != known.id) and _line(record, end).partition(" on ")[0] not in told
    ]
    if not fresh or sum(line.startswith(_head(record)) for line in lines) >= _FOLLOWERS:
        return record
    if known is None:
        first = min(fresh, key=_priority)
        # A reset that was recorded before the failed pod was known is the same failure.
        others = [i for i in record.incidents if not (i.cause is Cause.JOB and i.id.attempt == record.attempt)]
        record = dataclasses.replace(record, incidents=merge_incidents(others, (first,)))
        fresh = [first, *(end for end in fresh if end is not first)]
    return record.with_history("node-lost", *(_line(record, end) for end in fresh[:_FOLLOWERS]))


def failure(record: JobRecord) -> Incident | None:
    """Return the failure of the current attempt; None if no failed pod is known."""
    found = (i for i in record.incidents if i.id.attempt == record.attempt and i.id.node >= 0)
    return next(found, None)


def _priority(end: Incident) -> tuple[bool, int]:
    """Order the failures of one observation: faults of hosts and pods come before errors of scripts that lost a peer."""
    by_itself = end.culprit is not None and end.culprit.exit_code not in (None, 0)
    return by_itself, end.id.node


def _head(record: JobRecord) -> str:
    return f"attempt {record.attempt}: "


def _line(record: JobRecord, end: Incident) -> str:
    return f"{_head(record)}{end.reason}"
