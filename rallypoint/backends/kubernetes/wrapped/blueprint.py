"""A submission of a manifest: what the job is, what it compiles to, and the objects. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rallypoint.backends.contract import Blueprint, SubmitError
from rallypoint.backends.kubernetes.labels import DOMAIN
from rallypoint.backends.kubernetes.manifests.blueprint import PLACEHOLDER, drawn_secret
from rallypoint.backends.kubernetes.manifests.literal import unescaped
from rallypoint.backends.kubernetes.manifests.network_policy import network_policy_of
from rallypoint.backends.kubernetes.manifests.objects import MANIFEST_KEY, job_configmap
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.wrapped.kinds import RAYS, has_secret
from rallypoint.backends.kubernetes.wrapped.manifest import kind_of, marked, wrapped_in
from rallypoint.backends.kubernetes.wrapped.podsets import PodSet, PodSetError, pod_sets
from rallypoint.job import ElasticJob, JobError, compile_plan
from rallypoint.job.annotations import PREFIX, PolicyRead, read_annotations
from rallypoint.job.compile_roles import compile_roles, has_roles
from rallypoint.job.profiles import MOST_RESETS, defaults_of
from rallypoint.supervision.record import JobRecord
from rallypoint.wire.masked import secrets_of
from rallypoint.wire.plan import Kind, OrphanPolicy, Plan, Profile
from rallypoint.wire.sections import replaced

__all__ = ["draw"]

#: Words at the end of annotations that hold a duration.
_DURATION = "Duration"

_DEFAULT_RETRIES = defaults_of(Profile.APPWRAPPER)["fault_tolerance.retry_limit"]


def draw(
    manifest: Mapping[str, Any],
    *,
    namespace: str,
    kind: Kind | None = None,
    job: ElasticJob | None = None,
    orphan_policy: OrphanPolicy = OrphanPolicy.CONTINUE,
    hidden: tuple[str, ...] = (),
) -> Blueprint:
    """Return the blueprint of an AppWrapper or a PyTorchJob; raises `SubmitError` for a manifest that can be none.

    Args:
        manifest: as it would be applied.
        namespace: where it goes; the manifest may name the same or none.
        kind: what becomes of it: a PyTorchJob may be wrapped, one alone in its wrapper may do without; None is as it is.
        job: what the manifest was made of; None tells what can be read in the manifest itself.
        orphan_policy: of the one who submits.
        hidden: secrets in the manifest that logs and errors must not show; a script may get them with `$` for each `$$`.
    """
    manifest = wrapped_in(manifest, kind or kind_of(manifest))
    _check_namespace(manifest, namespace)
    sets = _pods(manifest)
    read = PolicyRead()
    if job is None:
        _refuse_rays(manifest)
        read = _policies(manifest)
        job = _job(manifest, sets, read)
    plan = _plan(job, sets, orphan_policy)
    # The controller has no upper limit of retries, a job file has.
    limit = max(plan.budgets.retry_limit, read.values.get("retry_limit", 0))
    hidden = (*plan.hidden, *dict.fromkeys(form for secret in hidden for form in (secret, unescaped(secret))))
    plan = replaced(plan, kind=kind_of(manifest), digest=_digest(manifest), retry_limit=limit, hidden=hidden)
    plan = _of_driver(plan) if plan.kind in RAYS else plan
    ref = JobRef(name=plan.name, uid=PLACEHOLDER, namespace=namespace)
    record = JobRecord.new(name=plan.name, uid=ref.uid, digest=plan.digest, owner="", now=0.0)
    attached = {MANIFEST_KEY: json.dumps(manifest, separators=(",", ":"))}
    configmap = job_configmap(ref, spec=job, plan=plan, record=record)
    configmap["data"] |= attached
    return Blueprint(
        job=job,
        plan=plan,
        objects=(configmap, *_beside(ref, plan), marked(manifest, ref, attempt=1, secret=has_secret(plan))),
        notes=tuple(_notes(plan)),
        warnings=read.warnings,
        attached=attached,
    )


def _check_namespace(manifest: Mapping[str, Any], namespace: str) -> None:
    metadata = manifest.get("metadata") or {}
    if metadata.get("namespace", namespace) != namespace:
        raise SubmitError(
            f"metadata.namespace: {metadata['namespace']!r} is not allowed; expected {namespace}, the namespace of the job"
        )


def _plan(job: ElasticJob, sets: Iterable[PodSet], orphan_policy: OrphanPolicy) -> Plan:
    if not has_roles(job):
        (plan,) = compile_plan(job, orphan_policy=orphan_policy)
        return plan
    # Another controller decides about the roles: for the supervisor they are so many pods.
    pods = sum(each.replicas for each in sets)
    plan = compile_roles(job, orphan_policy=orphan_policy)
    return dataclasses.replace(plan, min_nodes=pods, max_nodes=pods, roles=(), hidden=secrets_of(plan))


def _refuse_rays(manifest: Mapping[str, Any]) -> None:
    if kind_of(manifest) in RAYS:
        raise SubmitError(
            f"kind: a manifest of kind {manifest['kind']} is not allowed; submit a job file, with --kind rayjob or raycluster"
        )


def _of_driver(plan: Plan) -> Plan:
    """Return the plan of a job whose only node is the driver of a Ray cluster."""
    # A RayCluster runs until it is deleted; of a RayJob KubeRay deletes the pods, and the object tells how it ended.
    kept = plan.grace.success_ttl if plan.kind is Kind.RAYJOB else 0.0
    return replaced(plan, min_nodes=1, max_nodes=1, node_unit=1, roles=(), tls="", success_ttl=kept)


def _beside(ref: JobRef, plan: Plan) -> Iterator[dict[str, Any]]:
    if has_secret(plan):
        yield drawn_secret(ref, plan)
    if plan.network_policy:
        yield network_policy_of(ref, plan)


def _pods(manifest: Mapping[str, Any]) -> tuple[PodSet, ...]:
    try:
        sets = tuple(pod_sets(manifest))
    except PodSetError as error:
        raise SubmitError(str(error)) from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        kind = manifest.get("kind")
        raise SubmitError(f"manifest of kind {kind}: does not match the schema of this kind ({error!r})") from error
    if not sum(pods.replicas for pods in sets):
        raise SubmitError(
            "spec: the manifest contains no pod template; expected at least one. In an AppWrapper, a component whose kind "
            "Rallypoint does not know must set podSets"
        )
    return sets


def _policies(manifest: Mapping[str, Any]) -> PolicyRead:
    """Return the policies that the annotations say, as the controller takes them: what is out of range is brought into it."""
    annotations = (manifest.get("metadata") or {}).get("annotations") or {}
    _check_durations(annotations)
    try:
        return read_annotations(annotations)
    except JobError as error:
        raise SubmitError(str(error)) from error


def _job(manifest: Mapping[str, Any], sets: tuple[PodSet, ...], read: PolicyRead) -> ElasticJob:
    """Return what is known of the job in our own words: who it is, how large, and how often it may be tried."""
    metadata = manifest["metadata"]
    given = metadata.get("annotations") or {}
    annotations = {key: text for key, text in given.items() if not key.startswith((DOMAIN, PREFIX))}
    policies = {**read.values, "retry_limit": min(read.values.get("retry_limit", _DEFAULT_RETRIES), MOST_RESETS)}
    container = sets[0].template["spec"].get("containers", [{}])[0]
    image = str(container.get("image") or "")
    command = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    try:
        return ElasticJob.model_validate(
            {
                "name": metadata.get("name"),
                "profile": "appwrapper",
                "entrypoint": command or [f"image:{image}"],
                "nodes": sum(pods.replicas for pods in sets),
                "image": image,
                "labels": metadata.get("labels") or {},
                "annotations": annotations,
                "fault_tolerance": policies,
            }
        )
    except JobError as error:
        raise SubmitError(str(error)) from error


def _check_durations(annotations: Mapping[str, str]) -> None:
    """Days are no unit of the controller: it would take its own default for what it cannot read, and say nothing."""
    for key, text in annotations.items():
        if key.startswith(PREFIX) and key.endswith(_DURATION) and "d" in text:
            raise SubmitError(
                f"metadata.annotations.{key}: {text!r} is not allowed; expected a duration in h, m, s or ms, such as 24h"
            )


def _digest(manifest: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that name the manifest."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _notes(plan: Plan) -> Iterator[str]:
    yield f"uid: {PLACEHOLDER} is a placeholder; submit generates the UID and the token in the Secret"
    if plan.insecure_token:
        yield "insecure_token: every process that reaches a pod and knows the job's name can join the job and read its status"
    if plan.kind is Kind.APPWRAPPER:
        yield "the AppWrapper controller retries; Rallypoint watches and records each attempt"
    if plan.kind in RAYS:
        yield "a driver in the Ray cluster supervises each attempt; Rallypoint decides about the next attempt"
