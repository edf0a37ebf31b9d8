"""What a submission of a job with several roles would create, as manifests in the order of their creation. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rallypoint.backends.certificates import require_cryptography
from rallypoint.backends.contract import Blueprint, role_job
from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import Part, labels
from rallypoint.backends.kubernetes.manifests.blueprint import PLACEHOLDER, in_the_image, node_group_note
from rallypoint.backends.kubernetes.manifests.blueprint import objects as objects_of_one
from rallypoint.backends.kubernetes.manifests.network_policy import network_policy_of
from rallypoint.backends.kubernetes.manifests.objects import attempt_secret, encoded, job_configmap, metadata, service
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.roles.directory import directory_pod, directory_url
from rallypoint.backends.kubernetes.roles.gang import gang_of
from rallypoint.backends.kubernetes.roles.layout import Group, elastic_roles, groups, places, shared_places
from rallypoint.backends.kubernetes.roles.lives import Life
from rallypoint.backends.kubernetes.roles.pods import ROLES_SECRET, roles_files, roles_mount, roles_volume, unit_pod
from rallypoint.backends.kubernetes.roles.resources import claim, claim_template
from rallypoint.backends.kubernetes.roles.validation import check
from rallypoint.backends.roles import orphan_notes
from rallypoint.job import ElasticJob, Role
from rallypoint.job.compile_roles import compile_roles, one_role
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import env
from rallypoint.wire.plan import OrphanPolicy, Plan
from rallypoint.wire.ports import AGENT_PORT
from rallypoint.wire.role_plans import RolePlan, role_plan, roles_env
from rallypoint.wire.tls import AUTHORITY_KEY, AUTO, PEER_FILES

__all__ = ["child", "claims", "draw", "objects", "roles_secret", "serving", "units_configmap"]


def draw(job: ElasticJob, *, namespace: str, uid: str, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Blueprint:
    """Return the blueprint of a job with several roles; raises `SubmitError` for one that cannot run as pods.

    `uid` stands for the uid, and for the token, which a submission draws.
    """
    plan = compile_roles(job, orphan_policy=orphan_policy)
    check(job, plan)
    if plan.tls == AUTO:
        require_cryptography()
    ref = JobRef(name=plan.name, uid=uid, namespace=namespace)
    return Blueprint(
        job=job, plan=plan, objects=tuple(objects(ref, job, plan)), notes=(*_notes(job, plan, uid), *orphan_notes(plan))
    )


def objects(ref: JobRef, job: ElasticJob, plan: Plan, *, owner: str = "", now: float = 0.0) -> Iterator[dict[str, Any]]:
    """Yield the objects of a job's first attempt: its own, those of each elastic role, and the pods of simple roles."""
    record = JobRecord.new(name=plan.name, uid=ref.uid, digest=plan.digest, owner=owner, now=now)
    yield job_configmap(ref, spec=job, plan=plan, record=record)
    files = dict.fromkeys((*PEER_FILES, AUTHORITY_KEY), PLACEHOLDER) if plan.tls == AUTO else None
    yield from serving(ref, job, plan, token=ref.uid, certificates=files)
    yield directory_pod(ref, spec=job, plan=plan)
    yield attempt_secret(ref, plan=plan, attempt=1, token=ref.uid)
    for role in elastic_roles(job):
        yield from _of_child(ref, job, plan, role_plan(plan, role.name))
    gang = gang_of(ref, job)
    for group in groups(job):
        lives = dict.fromkeys(group.instances, Life())
        yield unit_pod(
            ref, spec=job, plan=plan, group=group, attempt=1, number=1, lives=lives, url=directory_url(ref), gang=gang
        )


def serving(
    ref: JobRef, job: ElasticJob, plan: Plan, *, token: str, certificates: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield what the instances of all attempts need beside their pods; `certificates` are as in `attempt_secret`."""
    yield units_configmap(ref)
    yield service(ref, {"agent": AGENT_PORT})
    yield roles_secret(ref, token, certificates)
    if plan.network_policy:
        yield network_policy_of(ref, plan)
    yield from claims(ref, job)


def claims(ref: JobRef, job: ElasticJob) -> Iterator[dict[str, Any]]:
    """Yield the devices that pods of several roles share, and the templates of those that containers of one pod share."""
    for shared in shared_places(job):
        role = next(one for one in elastic_roles(job) if one.name in shared.workers)
        for number in range(shared.number if shared.devices else 0):
            yield claim(ref, shared.place, number, shared.devices, role)
    members = places(job)
    first: dict[str, Group] = {}
    for group in groups(job):
        first.setdefault(group.place, group)
    for place, group in first.items():
        if group.shared and not group.beside:
            yield claim_template(ref, place, group.devices, members[place][0])


def units_configmap(ref: JobRef) -> dict[str, Any]:
    """Return the ConfigMap that remembers which life of each instance was started last, without one yet."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(ref, names.units_configmap(ref), labels(ref, Part.UNITS)),
        "data": {},
    }


def roles_secret(ref: JobRef, token: str, certificates: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the Secret with which the instances of all roles call each other; certificates are renewed in place."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(ref, names.roles_secret(ref), labels(ref, Part.SECRET)),
        "type": "Opaque",
        "immutable": not certificates,
        "data": encoded({ROLES_SECRET: token, **(certificates or {})}),
    }


def child(ref: JobRef, job: ElasticJob, plan: Plan, role: RolePlan) -> tuple[ElasticJob, Plan]:
    """Return an elastic role as a job of its own, whose pods are admitted with those of the other roles."""
    gang = gang_of(ref, job)
    whole = one_role(job, role.name, job_name=role_job(job.name, role.name))
    (single,) = whole.roles
    update: dict[str, Any] = {
        "volumes": (*single.volumes, roles_volume(ref, tls=plan.tls)),
        "volume_mounts": (*single.volume_mounts, roles_mount()),
        "pod_env": (*single.pod_env, *_calls(ref, plan)),
        "resources": _isolated(single, job.worker_isolation),
    }
    own = role.read()
    if gang is not None:
        update |= {"queue": gang.queue, "queue_priority": gang.priority}
        own = dataclasses.replace(own, queue_group=gang.name, queue_group_total=gang.total)
    for shared in shared_places(job):
        if role.name in shared.workers:
            own = dataclasses.replace(own, place=names.together(ref, shared.place))
            if shared.workers[role.name]:
                own = dataclasses.replace(own, place_claim=names.claim(ref, shared.place))
                visible = ",".join(map(str, shared.workers[role.name]))
                update["pod_env"] += ({"name": "CUDA_VISIBLE_DEVICES", "value": visible},)
    # A role by itself is an elastic job as any other: its place among the roles says nothing more.
    single = single.model_copy(update=update)
    own = dataclasses.replace(own, job=job.name, env={**own.env, **roles_env(plan, role)})
    return whole.model_copy(update={"roles": (single,), "worker_isolation": "", "master": job.master}), own


def _calls(ref: JobRef, plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the variables of a pod with which its workers take part in the calls between roles."""
    for name, value in {**roles_files(plan.tls), env.ROLES_URL: directory_url(ref)}.items():
        yield {"name": name, "value": value}
    yield {"name": env.HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def _isolated(role: Role, resource: str) -> Any:
    """Return what a node of the role asks for: one of the resource for each of its workers."""
    if not resource:
        return role.resources
    extended = {**role.resources.extended, resource: str(role.nproc_per_node)}
    return role.resources.model_copy(update={"extended": extended})


def _of_child(ref: JobRef, job: ElasticJob, plan: Plan, role: RolePlan) -> Iterator[dict[str, Any]]:
    spec, own = child(ref, job, plan, role)
    its = dataclasses.replace(ref, name=spec.name, parent=ref.name)
    yield from objects_of_one(its, spec, in_the_image(own, spec.roles[0]))


def _notes(job: ElasticJob, plan: Plan, uid: str) -> Iterator[str]:
    yield f"uid: {uid} is a placeholder; submit generates the UID and the tokens in the Secrets"
    for role in elastic_roles(job):
        yield f"roles.{role.name}: runs as job {role_job(job.name, role.name)}, which is deleted with this job"
        yield from node_group_note(role, f"roles.{role.name}.node_group_failover")
    gang = gang_of(JobRef(name=plan.name, uid=uid, namespace=""), job)
    if gang is not None:
        yield f"queue: {gang.total} pods of all roles are admitted as one group; each node above MIN is admitted separately"
    if any(claims(JobRef(name=plan.name, uid=uid, namespace=""), job)):
        yield "groups: the roles of a group share devices by a ResourceClaim (Kubernetes 1.34 with a DRA driver)"
