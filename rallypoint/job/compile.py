"""From a job to the flat plans that agents, coordinators and supervisors read. Pure."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath
from typing import Any

from rallypoint.job.model import ElasticJob
from rallypoint.job.role import Role
from rallypoint.wire.plan import Entry, Plan

__all__ = ["compile_plan", "digest"]

_DIGITS = 16
_STREAMS = {"none": 0, "stdout": 1, "stderr": 2, "both": 3}


def compile_plan(job: ElasticJob) -> tuple[Plan, ...]:
    """Return one plan for each role, in the job's order; all carry the digest of the whole job."""
    shared = {"name": job.name, "digest": digest(job), **_supervision(job), **_agents(job)}
    return tuple(Plan(**shared, **_role(role)) for role in job.roles)


def digest(job: ElasticJob) -> str:
    """Return 16 hexadecimal digits that name the spec; jobs that differ in nothing but their name have equal ones."""
    document = {key: value for key, value in job.to_document().items() if key != "name"}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _supervision(job: ElasticJob) -> dict[str, Any]:
    tolerance, recovery = job.fault_tolerance, job.recovery
    return {
        "retry_limit": tolerance.retry_limit,
        "admission_grace": tolerance.admission_grace_period,
        "warmup_grace": tolerance.warmup_grace_period,
        "failure_grace": tolerance.failure_grace_period,
        "retry_pause": tolerance.retry_pause_period,
        "forceful_deletion_grace": tolerance.forceful_deletion_grace_period,
        "max_restarts": recovery.max_restarts,
        "node_replacements": recovery.node_replacements,
        "replace_delay": recovery.replace_delay,
        "stop_grace": recovery.stop_grace_period,
    }


def _agents(job: ElasticJob) -> dict[str, Any]:
    tee = _STREAMS[job.logs.tee]
    return {
        "join_timeout": job.rendezvous.join_timeout,
        "last_call": job.rendezvous.last_call_timeout,
        "fence_timeout": job.rendezvous.fence_timeout,
        "coordinator_port": job.rendezvous.port,
        "node_lease": job.health.node_lease,
        "report_interval": job.health.report_interval,
        "log_dir": job.logs.dir,
        # What is shown is captured, too: a culprit's last lines are read from its file.
        "redirects": _STREAMS[job.logs.redirects] | tee,
        "tee": tee,
        "log_tail": job.logs.tail_lines,
    }


def _role(role: Role) -> dict[str, Any]:
    first, *rest = role.entrypoint.words
    entry = role.entrypoint.entry
    return {
        "role": role.name,
        "min_nodes": role.nodes.min,
        "max_nodes": role.nodes.max,
        "node_unit": role.node_unit,
        "nproc_per_node": role.nproc_per_node,
        "entry": entry,
        "entrypoint": str(PurePosixPath(role.workdir, first)) if entry is Entry.SCRIPT else first,
        "args": (*rest, *role.args),
        "env": dict(role.env),
        "workdir": role.workdir,
        "checkpoint_dir": role.checkpoint_dir,
    }
