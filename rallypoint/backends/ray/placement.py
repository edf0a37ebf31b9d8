"""What a job asks of a Ray cluster: the bundle of each node, and the texts that name what is created. Pure.

Ray counts memory in bytes and CPUs and GPUs as floating-point numbers. All other resources are custom resources, which exist
only on nodes that were started with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from rallypoint.backends.certificates import require_cryptography
from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.roles import only_plan
from rallypoint.job import ElasticJob, Role
from rallypoint.job.profiles import warnings_of
from rallypoint.job.quantity import quantity
from rallypoint.wire import codec
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.tls import AUTO, SECRET_PREFIX

__all__ = ["CREATE_TIMEOUT", "FILE", "PODS", "Placement", "actor_name", "draw", "group_name"]

#: Name under which the ledger stores the placement of a job.
FILE = "placement.json"

#: Seconds that the nodes of the smallest world may wait for resources, where the job has no `master.create_timeout`.
CREATE_TIMEOUT = 600.0

#: Fields of a role that only a backend that runs pods reads.
PODS = (
    *("image", "image_pull_policy", "python", "pod_env", "env_from"),
    *("node_selector", "tolerations", "affinity", "priority_class", "scheduler_name"),
    *("volumes", "volume_mounts", "init_containers", "sidecars"),
    *("service_account", "coordinator_service_account", "image_pull_secrets"),
    *("queue", "queue_priority", "termination_grace_period"),
    *("security_context", "pod_security_context", "pod_template"),
)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How the nodes of a job are placed.

    Attributes:
        bundle: resources of one node, by Ray's names; `memory` is in bytes.
        nodes: nodes of the base group, which Ray places all at once or not at all.
        exclude: ids of Ray nodes on which no node of the job is placed.
        create_timeout: seconds that the base group may wait for resources.
        role: name of the role, for the names of actors.
        runtime_env: of the node actors, as Ray reads it.
    """

    bundle: Mapping[str, float]
    nodes: int
    exclude: tuple[str, ...] = ()
    create_timeout: float = CREATE_TIMEOUT
    role: str = "default"
    runtime_env: Mapping[str, Any] = field(default_factory=dict)


def group_name(uid: str, *, node: int = -1, attempt: int = 0, incarnation: int = 0) -> str:
    """Return the name of a placement group: the base group of a job, or the group of one further node."""
    return f"{uid}-base" if node < 0 else f"{uid}-{attempt}-{node}-{incarnation}"


def actor_name(uid: str, role: str, *, attempt: int, node: int, incarnation: int) -> str:
    """Return the name of the actor of one incarnation of a node."""
    return f"{uid}-{attempt}-{role}-{node}-{incarnation}"


def draw(
    job: ElasticJob,
    *,
    namespace: str,
    runtime_env: Mapping[str, Any],
    orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE,
) -> Blueprint:
    """Return the blueprint of a job; raises `SubmitError` for a job that cannot run on Ray.

    Paths of the job are paths on the nodes of the cluster: read the job without a base folder (`load_job(..., based=False)`).
    """
    plan, (role,) = only_plan(job, backend="ray", orphan_policy=orphan_policy), job.roles
    _check(job, plan)
    placement = Placement(
        bundle=_bundle(job, plan, role),
        nodes=plan.min_nodes,
        exclude=tuple(role.host_ignore_list),
        create_timeout=job.master.create_timeout or CREATE_TIMEOUT,
        role=role.name,
        runtime_env=runtime_env,
    )
    return Blueprint(
        job=job,
        plan=plan,
        objects=tuple(_objects(plan, placement, namespace)),
        notes=tuple(_notes(job, role)),
        warnings=warnings_of(plan),
        attached={FILE: codec.dumps(placement)},
    )


def _check(job: ElasticJob, plan: Plan) -> None:
    if plan.tls.startswith(SECRET_PREFIX):
        name = plan.tls.removeprefix(SECRET_PREFIX)
        raise SubmitError(f"tls: {{secret: {name}}} is not allowed with backend ray; expected off or auto")
    if plan.tls == AUTO:
        require_cryptography()
    if job.master.isolation:
        raise SubmitError(
            f"master.isolation: {job.master.isolation!r} is not allowed with backend ray; the coordinator runs on the node "
            "of the ledger, which is the head node"
        )


def _bundle(job: ElasticJob, plan: Plan, role: Role) -> dict[str, float]:
    """Return the resources of one node; without any, one CPU for each worker, as Ray Train requests."""
    asked = role.resources
    workers = max(1, plan.nproc_per_node)
    cpu = float(quantity(asked.cpu)) if asked.cpu else float(0 if asked.gpus else workers)
    found = {
        "CPU": cpu,
        "GPU": float(asked.gpus),
        "memory": float(_whole(asked.memory)) if asked.memory else 0.0,
        **{name: float(quantity(value)) for name, value in dict(asked.extended).items()},
        **({job.worker_isolation: 1.0} if job.worker_isolation else {}),
    }
    return {name: amount for name, amount in found.items() if amount}


def _whole(text: str) -> int:
    number = quantity(text)
    return -(-number.numerator // number.denominator)


def _objects(plan: Plan, placement: Placement, namespace: str) -> Iterator[dict[str, Any]]:
    bundle = dict(placement.bundle)
    yield {"kind": "Ledger", "namespace": namespace, "job": plan.name}
    yield {
        "kind": "PlacementGroup",
        "name": group_name("UID"),
        "namespace": namespace,
        "lifetime": "detached",
        "strategy": "SPREAD",
        "bundles": [bundle] * placement.nodes,
    }
    for node in range(plan.max_nodes):
        base = node < placement.nodes
        own = group_name("UID", node=node, attempt=1, incarnation=1)
        if not base:
            yield {
                "kind": "PlacementGroup",
                "name": own,
                "namespace": namespace,
                "lifetime": "detached",
                "strategy": "SPREAD",
                "bundles": [bundle],
            }
        yield {
            "kind": "Actor",
            "name": actor_name("UID", placement.role, attempt=1, node=node, incarnation=1),
            "namespace": namespace,
            "lifetime": "detached",
            "max_restarts": 0,
            "placement_group": group_name("UID") if base else own,
            "resources": bundle,
            "runtime_env": json.loads(json.dumps(dict(placement.runtime_env))),
        }


def _notes(job: ElasticJob, role: Role) -> Iterator[str]:
    defaults = Role(entrypoint=role.entrypoint)
    unused = [name for name in PODS if getattr(role, name) != getattr(defaults, name)]
    unused += [f"resources.{name}" for name in ("cpu_limit", "memory_limit", "shm") if getattr(role.resources, name)]
    unused += [f"master.{name}" for name in ("cpu", "memory") if getattr(job.master, name)]
    for name in unused:
        yield f"{name}: ignored by the ray backend"
    workdir = PurePosixPath(role.workdir or ".")
    if not workdir.is_absolute():
        yield f"workdir: {str(workdir)!r} is relative to the working_dir of the runtime environment on each node"
