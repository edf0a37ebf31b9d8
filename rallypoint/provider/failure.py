"""Causes of a failed job that decide about the next try of a task, and the changes of the job for that try. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rallypoint.provider.claim import Failure
from rallypoint.supervision.record import Advice, JobRecord, Phase
from rallypoint.wire.incident import Answer, Cause, Incident

__all__ = ["advised", "cannot_grow", "failure_of", "grow", "merged"]

#: Causes of incidents that are not the fault that ended an attempt.
_ASIDE = frozenset({Cause.SCALE, Cause.JOB, Cause.EVACUATION, Cause.COORDINATOR})


def failure_of(record: JobRecord) -> Failure | None:
    """Return why a job has failed; None if it has not failed."""
    if record.verdict is None or record.phase is not Phase.FAILED:
        return None
    mine = [i for i in record.incidents if i.id.attempt == record.attempt]
    faults = [i for i in mine if i.cause not in _ASIDE]
    last = max(faults, key=_when, default=None)
    blamed = (i.culprit.host for i in mine if i.answer is Answer.RETRY_ELSEWHERE and i.culprit is not None and i.culprit.host)
    return Failure(
        reason=record.verdict.reason,
        kind="" if last is None or last.kind is None else last.kind.value,
        message=record.verdict.message,
        hosts=tuple(dict.fromkeys(blamed)),
    )


def _when(incident: Incident) -> float:
    return incident.detected_at


def advised(job: Any, advice: Advice) -> Any:
    """Return an `ElasticJob` with the changes that were decided at the end of an earlier try."""
    if advice == Advice():
        return job
    return job.model_copy(update={"roles": tuple(_advised(role, advice) for role in job.roles)})


def _advised(role: Any, advice: Advice) -> Any:
    hosts = tuple(dict.fromkeys((*role.host_ignore_list, *advice.ignore_hosts)))
    grown: Mapping[str, str] = {}
    if advice.memory_factor > 1:
        fields = {name: getattr(role.resources, name) for name in ("memory", "memory_limit")}
        grown = {name: grow(text, advice.memory_factor, advice.memory_limit) for name, text in fields.items() if text}
    return role.model_copy(update={"host_ignore_list": hosts, "resources": role.resources.model_copy(update=dict(grown))})


def cannot_grow(job: Any, advice: Advice, *, factor: float, limit: str) -> str:
    """Return why an `ElasticJob` cannot have more memory than `advice` gives it now; "" if it can."""
    now, then = (advised(job, each).roles for each in (advice, merged(advice, factor=factor, limit=limit)))
    if now != then:
        return ""
    asked = [text for role in now for text in (role.resources.memory, role.resources.memory_limit) if text]
    if not asked:
        return "the job sets no node_resources.memory to increase"
    return f"it had {' and '.join(dict.fromkeys(asked))} of memory; memory_limit is {limit}"


def grow(text: str, factor: float, limit: str) -> str:
    """Return a quantity of bytes times `factor`, in whole Mi, at most `limit`; a larger quantity is unchanged."""
    from rallypoint.job.quantity import MI, quantity, write_bytes  # noqa: PLC0415  a DAG file does without

    now, most = quantity(text), quantity(limit)
    if now >= most:
        return text
    wanted = now * Fraction(factor)
    return limit if wanted >= most else write_bytes(Fraction(-(-wanted // MI) * MI))


def merged(before: Advice, *, hosts: tuple[str, ...] = (), factor: float = 1.0, limit: str = "") -> Advice:
    """Return advice with more excluded hosts and more memory."""
    return dataclasses.replace(
        before,
        ignore_hosts=tuple(dict.fromkeys((*before.ignore_hosts, *hosts)))[-32:],
        memory_factor=before.memory_factor * factor,
        memory_limit=limit or before.memory_limit,
    )
