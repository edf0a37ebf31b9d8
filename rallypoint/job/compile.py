"""Compile a job to the flat plans that agents, coordinators and supervisors read. Pure."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from rallypoint.capabilities import modules
from rallypoint.job.model import ElasticJob
from rallypoint.job.policies import BudgetRefill
from rallypoint.job.profiles import block_of, specs
from rallypoint.job.role import ELASTIC, Role
from rallypoint.wire.env import CONFIG
from rallypoint.wire.function import CALL_MODULE
from rallypoint.wire.incident import Answer
from rallypoint.wire.plan import Budgets, DeviceSettings, EndRule, Entry, GracePeriods, OrphanPolicy, Plan, Refill
from rallypoint.wire.sections import build

__all__ = ["compile_plan", "digest"]

_DIGITS = 16
#: Fields that did not exist in earlier versions.
_LATER: Mapping[str, tuple[str, ...]] = {
    "fault_tolerance": (
        *("deletion_on_failure_grace_period", "success_ttl", "no_progress_limit", "lease"),
        *("pending_timeout", "pending_fail_strategy"),
    ),
    "recovery": (*("max_hangs", "refill", "standby", "preload", "start_method", "exit_grace_period"),),
    "health": (
        *("hang_downtime", "hang_detection", "hang_learning"),
        *("precheck", "network_check", "comm_perf_test", "exclude_straggler"),
        *("precheck_timeout", "precheck_all_pairs", "precheck_only", "precheck_program"),
        *("pre_check_ops", "xpu_type", "node_unreachable"),
    ),
    "rendezvous": ("training_port",),
}
#: Such fields of the job itself.
_LATER_OF_THE_JOB = (
    *("insecure_token", "network_policy", "tls", "config", "cluster", "groups", "master", "worker_isolation"),
    "rpc",
)
_STREAMS = {"none": 0, "stdout": 1, "stderr": 2, "both": 3}


def compile_plan(job: ElasticJob, *, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> tuple[Plan, ...]:
    """Return one plan for each role, in the job's order; all carry the digest of the whole job.

    `orphan_policy` applies to a job that sets none; it is not part of the spec.
    """
    own = job.fault_tolerance.orphan_policy
    shared = {
        "name": job.name,
        "digest": digest(job),
        "orphan_policy": orphan_policy if own is None else OrphanPolicy(own),
        **_supervision(job),
        **_verdicts(job),
        **_budgets(job),
        **_agents(job),
    }
    return tuple(_plan(job, role, shared) for role in job.roles)


def _plan(job: ElasticJob, role: Role, shared: Mapping[str, Any]) -> Plan:
    fields = {**shared, **_role(role), **_profile(job, role), **_capabilities(job, role), **_on_failure(role)}
    return build(Plan, **fields)


def digest(job: ElasticJob) -> str:
    """Return a digest of the spec with 16 hexadecimal digits; jobs that differ only in their name have equal digests."""
    text = json.dumps(_spec(job), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _spec(job: ElasticJob) -> dict[str, Any]:
    """Return the job's document without its name, and without later fields that only say what goes without saying.

    So a job has the digest that it had before there were these fields, and one that runs is adopted after an upgrade.
    """
    document, bare = job.to_document(), _bare()
    usual = {"name"} | ({"profile"} if document["profile"] == bare["profile"] else set())
    usual |= {key for key in _LATER_OF_THE_JOB if document.get(key) == bare.get(key)}
    spec = {key: value for key, value in document.items() if key not in usual}
    for block, keys in _later():
        if block in spec:
            spec[block] = {k: value for k, value in spec[block].items() if k not in keys or value != bare[block].get(k)}
    profile = specs().get(job.profile)
    added = {} if profile is None else profile.added_labels(block_of(job, profile))
    kept = {key: text for key, text in spec.pop("labels", {}).items() if added.get(key) != text}
    return {**spec, "labels": kept} if kept else spec


def _later() -> Iterator[tuple[str, Collection[str]]]:
    """Yield the later fields by block; those of optional capabilities may be all fields that they add to a block."""
    yield from _LATER.items()
    yield from ((profile.BLOCK, profile.LATER) for profile in specs().values())
    for module in modules("spec"):
        yield from getattr(module, "LATER", {}).items()


@functools.cache
def _bare() -> dict[str, Any]:
    blocks = {profile.BLOCK: dict(profile.MODEL()) for profile in specs().values()}
    return {**ElasticJob.model_validate({"name": "bare", "entrypoint": "bare"}).to_document(), **blocks}


def _supervision(job: ElasticJob) -> dict[str, Any]:
    tolerance = job.fault_tolerance
    return {
        "profile": job.profile,
        "admission_grace": tolerance.admission_grace_period,
        "warmup_grace": tolerance.warmup_grace_period,
        "failure_grace": tolerance.failure_grace_period,
        "retry_pause": tolerance.retry_pause_period,
        "forceful_deletion_grace": tolerance.forceful_deletion_grace_period,
        "deletion_on_failure_grace": tolerance.deletion_on_failure_grace_period,
        "success_ttl": tolerance.success_ttl,
        "pending_timeout": tolerance.pending_timeout,
        "pending_fail_strategy": tolerance.pending_fail_strategy,
        "lease": tolerance.lease,
    }


def _verdicts(job: ElasticJob) -> dict[str, Any]:
    tolerance = job.fault_tolerance
    return {
        "terminal_exit_codes": tolerance.terminal_exit_codes,
        "retryable_exit_codes": tolerance.retryable_exit_codes,
        "failover_extension": tolerance.dynamic_failover_extension,
        "end_rules": tuple(
            EndRule(exit_codes=rule.exit_codes, signals=rule.signals, log_pattern=rule.log_pattern, answer=Answer(rule.answer))
            for rule in tolerance.rules
        ),
    }


def _budgets(job: ElasticJob) -> dict[str, Any]:
    recovery, refill = job.recovery, job.recovery.refill
    return {
        "retry_limit": job.fault_tolerance.retry_limit,
        "coordinator_replacements": _or_default(job.master.max_restarts, Budgets.coordinator_replacements),
        "no_progress_limit": job.fault_tolerance.no_progress_limit,
        "max_restarts": recovery.max_restarts,
        "node_replacements": recovery.node_replacements,
        "max_hangs": recovery.max_hangs,
        "process_refill": _refill(refill.process),
        "node_refill": _refill(refill.node),
        "hang_refill": _refill(refill.hang),
        "reset_refill": _refill(refill.reset),
    }


def _or_default(value: int | None, default: int) -> int:
    return default if value is None else value


def _refill(refill: BudgetRefill) -> Refill:
    return Refill(window=refill.window, healthy_for=refill.healthy_for, on_checkpoint=refill.on_checkpoint)


def _agents(job: ElasticJob) -> dict[str, Any]:
    tee = _STREAMS[job.logs.tee]
    return {
        "replace_delay": job.recovery.replace_delay,
        "stop_grace": job.recovery.stop_grace_period,
        "exit_grace": job.recovery.exit_grace_period,
        "standbys": job.recovery.standby,
        "preload": job.recovery.preload,
        "start_method": job.recovery.start_method or "",
        "join_timeout": job.rendezvous.join_timeout,
        "last_call": job.rendezvous.last_call_timeout,
        "fence_timeout": job.rendezvous.fence_timeout,
        "coordinator_port": job.rendezvous.port,
        "service_type": job.rendezvous.service_type,
        "insecure_token": job.insecure_token,
        "tls": job.tls,
        "network_policy": job.network_policy,
        "rpc_pickle": job.rpc.pickle is True,
        "training_port": job.rendezvous.training_port,
        "xpu_type": job.health.xpu_type,
        "node_lease": job.health.node_lease,
        "report_interval": job.health.report_interval,
        "log_dir": job.logs.dir,
        # Console output is also written to a file, from which the last lines of a culprit are read.
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
        "numa_binding": role.numa_affinity,
        "auto_config": bool(role.auto_config),
        "accelerator": role.accelerator or DeviceSettings.accelerator,
        "entry": entry,
        **_called(role, first, rest),
        "workdir": role.workdir,
        "setup": role.setup_commands,
        "checkpoint_dir": role.checkpoint_dir,
        **_node_group(role),
    }


def _node_group(role: Role) -> dict[str, Any]:
    failover = role.node_group_failover
    if not failover.label:
        return {}
    timeout = GracePeriods.node_group_timeout if failover.timeout is None else failover.timeout
    return {"node_group": failover.label, "node_group_timeout": timeout}


def _capabilities(job: ElasticJob, role: Role) -> dict[str, Any]:
    return {name: value for module in modules("spec") for name, value in module.plan_fields(job, role).items()}


def _called(role: Role, first: str, rest: list[str]) -> dict[str, Any]:
    if role.entrypoint.function:
        options = ("--process-group",) if role.process_group is not False else ()
        grouped = options if role.launch == ELASTIC else ()
        return {"entrypoint": CALL_MODULE, "args": (*grouped, first, *role.args)}
    script = _script(role, first) if role.entrypoint.entry is Entry.SCRIPT else first
    return {"entrypoint": script, "args": (*rest, *role.args)}


def _on_failure(role: Role) -> dict[str, Any]:
    """Return the budgets of a role whose recovery does not begin with its workers."""
    if role.on_failure not in {"job", "none"}:
        return {}
    resets = {"retry_limit": 0} if role.on_failure == "none" else {}
    return {"max_restarts": 0, "node_replacements": 0, "max_hangs": 0, **resets}


def _profile(job: ElasticJob, role: Role) -> dict[str, Any]:
    config = {CONFIG: json.dumps(job.config, ensure_ascii=True)} if job.config else {}
    profile = specs().get(job.profile)
    if profile is None:
        return {"env": {**config, **role.env}}
    fields = profile.plan_fields(block_of(job, profile), role, job.fault_tolerance.retry_limit)
    return {**fields, "env": {**config, **fields.get("env", {}), **role.env}}


def _script(role: Role, path: str) -> str:
    # Setup commands may change the folder, so it is known only without them.
    return path if role.setup_commands else str(PurePosixPath(role.workdir, path))
