"""What a job asks of a Ray cluster: the bundle of each node, and the texts that name what is created. Pure.

Ray counts memory in bytes and CPUs and GPUs as floating-point numbers. All other resources are custom resources, which exist
only on nodes that were started with them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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

__all__ = [
    "CREATE_TIMEOUT",
    "FILE",
    "HEAD",
    "PODS",
    "Bundle",
    "Placement",
    "Spot",
    "actor_name",
    "asked",
    "check",
    "draw",
    "group_name",
    "ignored",
    "master_bundles",
    "objects_of_base",
    "objects_of_nodes",
]

#: Name under which the ledger stores the placement of a job.
FILE = "placement.json"

#: Seconds that the nodes of the smallest world may wait for resources, where the job has no `master.create_timeout`.
CREATE_TIMEOUT = 600.0

#: Resource that only the head node has.
HEAD = "node:__internal_head__"

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
class Bundle:
    """One bundle of a placement group: resources by Ray's names, and the ids of Ray nodes on which it is not placed."""

    ask: Mapping[str, float]
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Where the actors of a role, or of a place of simple roles, are in the base group.

    Attributes:
        first: index of the first bundle; the next actors have the next bundles.
        ask: resources of one actor, which can be a part of its bundle.
    """

    first: int
    ask: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How the nodes of a job are placed.

    Attributes:
        bundle: resources of one node, by Ray's names; `memory` is in bytes.
        nodes: nodes in the base group, which Ray places all at once or not at all.
        exclude: ids of Ray nodes on which no node of the job is placed.
        create_timeout: seconds that the base group may wait for resources.
        role: name of the role, for the names of actors.
        runtime_env: of the node actors, as Ray reads it.
        bundles: the whole base group; empty where it is `nodes` times `bundle`.
        first: index of the bundle of node 0 in the base group.
        base: uid of the job that has the base group; "" is the job itself.
        elastic: of a job with several roles, its elastic roles by name; `hosts` the places of its simple roles.
    """

    bundle: Mapping[str, float]
    nodes: int
    exclude: tuple[str, ...] = ()
    create_timeout: float = CREATE_TIMEOUT
    role: str = "default"
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    bundles: tuple[Bundle, ...] = ()
    first: int = 0
    base: str = ""
    elastic: Mapping[str, Spot] = field(default_factory=dict)
    hosts: Mapping[str, Spot] = field(default_factory=dict)

    @property
    def group(self) -> tuple[Bundle, ...]:
        """All bundles of the base group."""
        return self.bundles or (self.single,) * self.nodes

    @property
    def single(self) -> Bundle:
        """The bundle of one node."""
        return Bundle(ask=self.bundle, exclude=self.exclude)


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
    check(plan)
    single = Bundle(ask=asked(role, plan.nproc_per_node, isolation=job.worker_isolation), exclude=tuple(role.host_ignore_list))
    master = tuple(master_bundles(job))
    placement = Placement(
        bundle=single.ask,
        nodes=plan.min_nodes,
        exclude=single.exclude,
        create_timeout=job.master.create_timeout or CREATE_TIMEOUT,
        role=role.name,
        runtime_env=runtime_env,
        bundles=((single,) * plan.min_nodes + master) if master else (),
    )
    return Blueprint(
        job=job,
        plan=plan,
        objects=(
            {"kind": "Ledger", "namespace": namespace, "job": plan.name},
            objects_of_base(placement, namespace),
            *objects_of_nodes(plan, placement, namespace),
        ),
        notes=tuple(_notes(job, role)),
        warnings=warnings_of(plan),
        attached={FILE: codec.dumps(placement)},
    )


def check(plan: Plan) -> None:
    """Raise `SubmitError` for what no job on Ray has."""
    if plan.tls.startswith(SECRET_PREFIX):
        name = plan.tls.removeprefix(SECRET_PREFIX)
        raise SubmitError(f"tls: {{secret: {name}}} is not allowed with backend ray; expected off or auto")
    if plan.tls == AUTO:
        require_cryptography()


def master_bundles(job: ElasticJob) -> Iterator[Bundle]:
    """Yield what the coordinators of a job reserve: they run beside the ledger, on the head node."""
    if job.master.isolation:
        yield Bundle(ask={job.master.isolation: 1.0, HEAD: 0.001})


def asked(role: Role, workers: int, *, isolation: str = "", gpus: float | None = None) -> dict[str, float]:
    """Return the resources of one node, or of `workers` instances; without any, one CPU for each worker, as Ray Train requests.

    `gpus` are the devices where they are not those of `resources`; `isolation` is a resource of which each worker needs one.
    """
    node, one, workers = role.resources, role.instance_resources, max(1, workers)
    devices = float(node.gpus) if gpus is None else gpus
    cpu = quantity(node.cpu) if node.cpu else quantity(one.cpu) * workers if one.cpu else 0 if devices else workers
    memory = _whole(node.memory) if node.memory else _whole(one.memory) * workers if one.memory else 0
    found: dict[str, float] = {"CPU": float(cpu), "GPU": devices, "memory": float(memory)}
    for name, value in dict(node.extended).items():
        found[name] = found.get(name, 0.0) + float(quantity(value))
    for name, amount in dict(one.user_defined).items():
        found[name] = found.get(name, 0.0) + float(amount) * workers
    if isolation:
        found[isolation] = found.get(isolation, 0.0) + workers
    return {name: amount for name, amount in found.items() if amount}


def _whole(text: str) -> int:
    number = quantity(text)
    return -(-number.numerator // number.denominator)


def objects_of_base(placement: Placement, namespace: str) -> dict[str, Any]:
    """Return the base group as people read it."""
    return _group(group_name("UID"), placement.group, namespace)


def _group(name: str, bundles: Sequence[Bundle], namespace: str) -> dict[str, Any]:
    return {
        "kind": "PlacementGroup",
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "strategy": "SPREAD",
        "bundles": [dict(bundle.ask) for bundle in bundles],
    }


def objects_of_nodes(plan: Plan, placement: Placement, namespace: str, *, uid: str = "UID") -> Iterator[dict[str, Any]]:
    """Yield the actor of each node, and the group of each node above MIN; `uid` stands for that of the job."""
    for node in range(plan.max_nodes):
        base = node < placement.nodes
        own = group_name(uid, node=node, attempt=1, incarnation=1)
        if not base:
            yield _group(own, (placement.single,), namespace)
        yield {
            "kind": "Actor",
            "name": actor_name(uid, placement.role, attempt=1, node=node, incarnation=1),
            "namespace": namespace,
            "lifetime": "detached",
            "max_restarts": 0,
            "placement_group": group_name("UID") if base else own,
            "resources": dict(placement.bundle),
            "runtime_env": json.loads(json.dumps(dict(placement.runtime_env))),
        }


def ignored(job: ElasticJob, role: Role) -> Iterator[str]:
    """Yield the fields that have no effect on Ray."""
    defaults = Role(entrypoint=role.entrypoint)
    yield from (name for name in PODS if getattr(role, name) != getattr(defaults, name))
    yield from (f"resources.{name}" for name in ("cpu_limit", "memory_limit", "shm") if getattr(role.resources, name))
    yield from ("instance_resources.disk",) if role.instance_resources.disk else ()
    yield from (f"master.{name}" for name in ("cpu", "memory") if getattr(job.master, name))


def _notes(job: ElasticJob, role: Role) -> Iterator[str]:
    for name in ignored(job, role):
        yield f"{name}: ignored by the ray backend"
    workdir = PurePosixPath(role.workdir or ".")
    if not workdir.is_absolute():
        yield f"workdir: {str(workdir)!r} is relative to the working_dir of the runtime environment on each node"
