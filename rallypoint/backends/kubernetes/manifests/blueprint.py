"""What a submission to Kubernetes would create, as manifests in the order of their creation. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from rallypoint.backends.certificates import require_cryptography
from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.kubernetes.manifests.coordinator import coordinator_pod
from rallypoint.backends.kubernetes.manifests.kueue import queue_of
from rallypoint.backends.kubernetes.manifests.network_policy import network_policy_of
from rallypoint.backends.kubernetes.manifests.objects import attempt_secret, job_configmap, service, status_configmap
from rallypoint.backends.kubernetes.manifests.parts import COORDINATOR, TRAINER, container_of, coordinator_port, template_of
from rallypoint.backends.kubernetes.manifests.pods import node_pod
from rallypoint.backends.kubernetes.manifests.validation import check
from rallypoint.backends.kubernetes.manifests.volumes import RUN, TMP
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.roles import ignored_master, isolation
from rallypoint.job import ElasticJob, Role, compile_plan
from rallypoint.job.profiles import warnings_of
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.plan import Entry, OrphanPolicy, Plan
from rallypoint.wire.ports import AGENT_PORT
from rallypoint.wire.tls import AUTHORITY_KEY, AUTO, PEER_FILES

__all__ = ["PLACEHOLDER", "draw_one", "drawn_secret", "in_the_image", "node_group_note", "objects", "service_ports"]

#: Stands for the uid, and for the token, which a submission draws.
PLACEHOLDER = "xxxxxxxx"

#: What a template may say of our container and what is ours to say.
_OURS_IN_CONTAINER = ("args", "command")
_OURS_IN_SPEC = ("hostname", "restartPolicy", "subdomain")


def draw_one(job: ElasticJob, *, namespace: str, orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE) -> Blueprint:
    """Return the blueprint of a job with one role; raises `SubmitError` for one that cannot run as pods.

    Paths of the job are paths in its image: the job is to be read without a base folder (`load_job(..., based=False)`).
    `orphan_policy` is that of the one who submits, for a job that names none.
    """
    (plan,), (role,) = compile_plan(job, orphan_policy=orphan_policy), job.roles
    for field in isolation(job):
        raise SubmitError(
            f"{field}: this field is not allowed with backend kubernetes; select machines with node_selector and tolerations"
        )
    plan = in_the_image(plan, role)
    check(job, plan, role)
    if plan.tls == AUTO:
        require_cryptography()
    ref = JobRef(name=plan.name, uid=PLACEHOLDER, namespace=namespace)
    return Blueprint(
        job=job,
        plan=plan,
        objects=tuple(objects(ref, job, plan)),
        notes=(*_notes(plan, role), *_master_notes(job)),
        warnings=warnings_of(plan),
    )


def objects(ref: JobRef, job: ElasticJob, plan: Plan, *, owner: str = "", now: float = 0.0) -> Iterator[dict[str, Any]]:
    """Yield the objects of a job's first attempt: what it is, what it says, what it knows, and who runs it."""
    record = JobRecord.new(name=plan.name, uid=ref.uid, digest=plan.digest, owner=owner, now=now)
    yield job_configmap(ref, spec=job, plan=plan, record=record)
    yield status_configmap(ref)
    yield service(ref, service_ports(plan))
    yield drawn_secret(ref, plan)
    if plan.network_policy:
        yield network_policy_of(ref, plan)
    yield coordinator_pod(ref, spec=job, plan=plan, attempt=1, term=1)
    for node in range(plan.max_nodes):
        yield node_pod(ref, spec=job, plan=plan, attempt=1, node=node, incarnation=1)


def drawn_secret(ref: JobRef, plan: Plan) -> dict[str, Any]:
    """Return the Secret of the first attempt with placeholders for what is drawn at submission."""
    files = dict.fromkeys((*PEER_FILES, AUTHORITY_KEY), PLACEHOLDER) if plan.tls == AUTO else None
    return attempt_secret(ref, plan=plan, attempt=1, token=PLACEHOLDER, certificates=files)


def service_ports(plan: Plan) -> dict[str, int]:
    """Return the ports of the job's pods by name."""
    return {COORDINATOR: coordinator_port(plan), "agent": AGENT_PORT}


def in_the_image(plan: Plan, role: Role) -> Plan:
    """Return the plan for workers that start in the image's own folder, or in one relative to it."""
    if plan.entry is not Entry.SCRIPT or PurePosixPath(role.workdir).is_absolute():
        return plan
    # Relative to the folder in which it is started, whichever that is.
    return dataclasses.replace(plan, entrypoint=role.entrypoint.words[0])


def _notes(plan: Plan, role: Role) -> Iterator[str]:
    yield f"uid: {PLACEHOLDER} is a placeholder; submit generates the UID and the token in the Secret"
    if plan.logs.log_dir:
        yield f"logs.dir: not used; worker output goes to the pod log and to {RUN} in the pod"
    if plan.checkpoint_dir and not _is_mounted(plan, role):
        yield f"checkpoint_dir: {plan.checkpoint_dir} is not on a mounted volume; its files are lost with the pod"
    template = template_of(role)["spec"]
    trainer = container_of(template, TRAINER)
    for name in _OURS_IN_CONTAINER:
        if name in trainer:
            yield f"pod_template.spec.containers.{TRAINER}.{name}: not used; Rallypoint sets the command of this container"
    for name in _OURS_IN_SPEC:
        if name in template:
            yield f"pod_template.spec.{name}: not used; Rallypoint sets {name}"
    if template.get("hostNetwork"):
        yield (
            "pod_template.spec.hostNetwork: only one pod per machine can run; namespaces with restricted pod security reject it"
        )
    yield from node_group_note(role)
    if queue_of(role):
        yield f"queue: {plan.min_nodes} nodes and the coordinator are admitted as one group, each further node separately"


def node_group_note(role: Role, field: str = "node_group_failover") -> Iterator[str]:
    """Yield what the supervisor needs to replace the nodes of a role together."""
    if role.node_group_failover.label:
        yield f"{field}: the supervisor must be allowed to read Kubernetes nodes (`rallypoint manifests rbac --nodes`)"


def _master_notes(job: ElasticJob) -> Iterator[str]:
    for field in ignored_master(job):
        yield f"{field}: not used; the coordinator's pod has fixed values"


def _is_mounted(plan: Plan, role: Role) -> bool:
    if "://" in plan.checkpoint_dir:
        return True
    path = PurePosixPath(plan.workdir, plan.checkpoint_dir)
    mounted = [*role.volume_mounts, *(container_of(template_of(role)["spec"], TRAINER).get("volumeMounts") or ())]
    kept = {PurePosixPath(str(mount.get("mountPath"))) for mount in mounted} - {PurePosixPath(TMP)}
    return any(parent in kept for parent in (path, *path.parents))
