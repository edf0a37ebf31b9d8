"""Pods that another controller makes: what is remembered of those that fail. Pure.

They have no slots and no replacements of ours, so their ends cost no budget by themselves; the resets that they lead to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rallypoint.supervision import healing
from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.supervision.policy import Policy
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.incident import Rung, merge_incidents

__all__ = ["noted"]


def noted(record: JobRecord, nodes: Iterable[NodeSeen], policy: Policy) -> JobRecord:
    """Remember each pod that failed in the current attempt, with its host, codes and last words; each once."""
    known = {incident.id for incident in record.incidents}
    failed = (n for n in nodes if n.ended and n.state is not NodeState.SUCCEEDED and 0 < n.attempt == record.attempt)
    ends = (dataclasses.replace(healing.node_incident(record, node, policy, None), rung=Rung.RESET) for node in failed)
    fresh = tuple(end for end in ends if end.id not in known)
    if not fresh:
        return record
    record = dataclasses.replace(record, incidents=merge_incidents(record.incidents, fresh))
    return record.with_history("node-lost", *(end.reason for end in fresh))
