"""What a submission would create on this machine. Pure. It needs the models of jobs, which are slow to import."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rallypoint.backends.certificates import require_cryptography
from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.local.command_lines import coordinator_command, host_command, node_command
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.node import NodeFolder
from rallypoint.backends.roles import ignored_master, isolation, only_plan, orphan_notes
from rallypoint.job import ElasticJob, Role
from rallypoint.job.compile_roles import compile_roles, has_roles, one_role
from rallypoint.job.profiles import warnings_of
from rallypoint.job.settle import unread
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.role_plans import RolePlan, role_plans
from rallypoint.wire.tls import AUTHORITY_KEY, AUTO, PEER_FILES, SECRET_PREFIX

__all__ = ["draw", "role_blueprint"]

#: Fields of a role that are for backends that run pods.
_PODS = (
    *("resources", "image", "image_pull_policy", "python", "pod_env", "env_from"),
    *("node_selector", "tolerations", "affinity", "priority_class", "scheduler_name", "host_ignore_list"),
    *("volumes", "volume_mounts", "init_containers", "sidecars"),
    *("service_account", "coordinator_service_account", "image_pull_secrets"),
    *("queue", "queue_priority", "termination_grace_period"),
    *("security_context", "pod_security_context", "pod_template"),
    *("labels", "annotations"),
)


def role_blueprint(job: ElasticJob, role: RolePlan, *, folder: JobFolder, agent: Sequence[str]) -> Blueprint:
    """Return the blueprint of an elastic role as a job of its own, below the folder of the whole job."""
    name = f"{job.name}-{role.name}"
    plan = role.read()
    own = one_role(job, role.name, job_name=name)
    place = JobFolder(path=folder.path / "jobs" / name)
    return Blueprint(job=own, plan=plan, objects=tuple(_objects(plan, place, agent)))


def draw(job: ElasticJob, folder: JobFolder, agent: Sequence[str], *, orphan_policy: OrphanPolicy) -> Blueprint:
    """Return the blueprint of a job; raises `SubmitError` for what this machine cannot run.

    `orphan_policy` is that of the one who submits, for a job that names none.
    """
    roles = has_roles(job)
    plan = (
        compile_roles(job, orphan_policy=orphan_policy)
        if roles
        else only_plan(job, backend="local", orphan_policy=orphan_policy)
    )
    if plan.tls.startswith(SECRET_PREFIX):
        name = plan.tls.removeprefix(SECRET_PREFIX)
        raise SubmitError(
            f"tls: {{secret: {name}}} is not allowed, because the local backend has no Kubernetes Secrets; expected off or auto"
        )
    if plan.tls == AUTO:
        require_cryptography()
    return Blueprint(
        job=job,
        plan=plan,
        objects=tuple(_of_roles(plan, folder, agent) if roles else _objects(plan, folder, agent)),
        notes=(*_notes(job, plan), *orphan_notes(plan)),
        warnings=warnings_of(plan),
    )


def _of_roles(plan: Plan, folder: JobFolder, agent: Sequence[str]) -> list[dict[str, Any]]:
    """Return the job's own files, the hosts of simple roles, and everything of the jobs of elastic ones."""
    objects: list[dict[str, Any]] = [{"kind": "folder", "path": str(folder.path)}]
    files = (folder.job, folder.plan, folder.secret, folder.roles_secret, folder.record)
    objects += [{"kind": "file", "path": str(path)} for path in files]
    hosts: dict[str, NodeFolder] = {}
    for role in role_plans(plan):
        if role.elastic:
            objects += _objects(role.read(), JobFolder(path=folder.path / "jobs" / f"{plan.name}-{role.name}"), agent)
            continue
        for group in range(role.groups):
            name = f"{role.place or role.name}-{group}"
            hosts.setdefault(name, folder.host(name, 1))
    for name, host in hosts.items():
        command = host_command(agent, folder, uid="UID", folder=host.path)
        objects.append(_process(f"host {name}", host.path, host.log, command))
    return objects


def _objects(plan: Plan, folder: JobFolder, agent: Sequence[str]) -> list[dict[str, Any]]:
    tls = [folder.tls / name for name in (*PEER_FILES, AUTHORITY_KEY)] if plan.tls else []
    files = (folder.job, folder.plan, folder.secret, *tls, folder.record)
    coordinator = folder.coordinator(1)
    command = coordinator_command(agent, folder, uid="UID", attempt=1, term=1, tls=bool(plan.tls))
    objects: list[dict[str, Any]] = [{"kind": "folder", "path": str(folder.path)}]
    objects += [{"kind": "file", "path": str(path)} for path in files]
    objects.append(_process("coordinator", coordinator.path, coordinator.log, command))
    for node in range(plan.max_nodes):
        its = folder.node(node, 1, 1)
        command = node_command(agent, folder, attempt=1, node=node, incarnation=1, tls=bool(plan.tls))
        objects.append(_process(f"node {node}", its.path, its.log, command))
    return objects


def _process(name: str, folder: Path, log: Path, command: tuple[str, ...]) -> dict[str, Any]:
    return {"kind": "process", "name": name, "folder": str(folder), "log": str(log), "command": list(command)}


def _notes(job: ElasticJob, plan: Plan) -> list[str]:
    role = job.roles[0]
    defaults = Role(entrypoint=role.entrypoint)
    role = role.model_copy(update={name: unread(getattr(role, name)) for name in ("labels", "annotations")})
    unused = [name for name in _PODS if getattr(role, name) != getattr(defaults, name)]
    unused += [*ignored_master(job), *isolation(job)]
    unused += ["node_group_failover"] if any(role.node_group_failover.label for role in job.roles) else []
    unused += [name for name in ("network_policy", "insecure_token") if getattr(plan, name)]
    return [f"{name}: ignored by the local backend, where nodes are processes of this machine" for name in unused]
