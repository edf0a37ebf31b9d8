"""Manifests that somebody gives us, as they are created: ours by their labels, and each pod with its place in the job. Pure."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from rallypoint.backends.contract import SubmitError
from rallypoint.backends.kubernetes.labels import ATTEMPT, FIRST, JOB, PART, UID, Part, labels
from rallypoint.backends.kubernetes.manifests.blueprint import PLACEHOLDER
from rallypoint.backends.kubernetes.manifests.objects import SECRET_KEY, metadata
from rallypoint.backends.kubernetes.manifests.volumes import TLS_VOLUME
from rallypoint.backends.kubernetes.names import RUN_SECRET_SUFFIX, JobRef, attempt_secret
from rallypoint.backends.kubernetes.wrapped.kinds import KINDS, RAYS, WRAPPING
from rallypoint.backends.kubernetes.wrapped.podsets import pod_sets
from rallypoint.backends.kubernetes.wrapped.seen import SUSPENDED
from rallypoint.wire import env
from rallypoint.wire.plan import Kind

__all__ = ["kind_of", "marked", "refer_to_secret", "wrapped_in"]


def refer_to_secret(spec: dict[str, Any], job: JobRef, attempt: int) -> None:
    """Let the containers of a pod's spec, which is changed in place, take their secret from the Secret of an attempt.

    What `rallypoint render` has rendered refers to a Secret that its user creates; a submission replaces that reference.
    """
    name = attempt_secret(job, attempt)
    variable = {"name": env.SECRET, "valueFrom": {"secretKeyRef": {"name": name, "key": SECRET_KEY}}}
    for container in spec.get("containers") or ():
        given = list(container.get("env") or ())
        if any(_is_secret(each) and not _is_rendered(each) for each in given):
            continue
        container["env"] = [*(each for each in given if not _is_secret(each)), variable]

    drawn = attempt_secret(dataclasses.replace(job, uid=PLACEHOLDER), 1)
    for volume in spec.get("volumes") or ():
        if volume.get("name") == TLS_VOLUME and (volume.get("secret") or {}).get("secretName") == drawn:
            volume["secret"]["secretName"] = name


def _is_secret(variable: Mapping[str, Any]) -> bool:
    return bool(variable.get("name") == env.SECRET)


def _is_rendered(variable: Mapping[str, Any]) -> bool:
    """Return whether a variable of a pod refers to the Secret of `rallypoint render`."""
    reference = (variable.get("valueFrom") or {}).get("secretKeyRef") or {}
    return _is_secret(variable) and str(reference.get("name", "")).endswith(RUN_SECRET_SUFFIX)


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """Return the kind of job that a manifest is; raises `SubmitError` for a manifest that is none."""
    kind = _known(manifest)
    if kind is None:
        known = " or ".join(f"{wrapping.kind} of {wrapping.version}" for kind, wrapping in WRAPPING.items() if kind not in RAYS)
        raise SubmitError(
            f"kind: {manifest.get('kind')!r} of API {manifest.get('apiVersion')!r} is not allowed; expected {known}"
        )
    return kind


def _known(manifest: Mapping[str, Any]) -> Kind | None:
    return KINDS.get((str(manifest.get("apiVersion")), str(manifest.get("kind"))))


def wrapped_in(manifest: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return the manifest as one of `kind`: a PyTorchJob with an AppWrapper around it, or one that stands in a wrapper alone.

    Raises `SubmitError` where a wrapper holds something else, too: that would be lost.
    """
    if kind_of(manifest) is kind:
        return dict(manifest)
    if kind in RAYS:
        raise SubmitError(f"kind {kind.value} is allowed only for a job file, not for a manifest of kind {manifest['kind']}")
    if kind is Kind.APPWRAPPER:
        return _around(manifest)
    components = (manifest.get("spec") or {}).get("components") or ()
    templates = [component.get("template") or {} for component in components]
    if len(templates) != 1 or _known(templates[0]) is not Kind.PYTORCHJOB:
        kinds = ", ".join(str(template.get("kind")) for template in templates) or "nothing"
        raise SubmitError(
            f"kind pytorchjob requires an AppWrapper with exactly one PyTorchJob; this AppWrapper contains {kinds}"
        )
    inner = copy.deepcopy(templates[0])
    outer = manifest["metadata"]
    # Policies and the queue are told on the wrapper; without it they are the job's own.
    for field in ("annotations", "labels"):
        both = {**(outer.get(field) or {}), **(inner["metadata"].get(field) or {})}
        if both:
            inner["metadata"][field] = both
    return inner


def _around(manifest: Mapping[str, Any]) -> dict[str, Any]:
    wrapping, inner = WRAPPING[Kind.APPWRAPPER], copy.deepcopy(dict(manifest))
    outer = {key: inner["metadata"].pop(key) for key in ("annotations", "labels", "namespace") if key in inner["metadata"]}
    return {
        "apiVersion": wrapping.version,
        "kind": wrapping.kind,
        "metadata": {"name": inner["metadata"]["name"], **outer},
        "spec": {"components": [{"template": inner}]},
    }


def marked(
    manifest: Mapping[str, Any], job: JobRef, *, attempt: int, suspend: bool = False, secret: bool = True
) -> dict[str, Any]:
    """Return the manifest as it is created for a job whose next attempt is `attempt`.

    With `secret` the containers of its pods get the secret of that attempt, and do not start before it exists.
    """
    # Through JSON, as it is kept: what two roles share in memory must not be shared any more, since their labels differ.
    made: dict[str, Any] = json.loads(json.dumps(manifest))
    given = made["metadata"]
    annotations = {**(given.get("annotations") or {}), ATTEMPT: str(attempt), **({SUSPENDED: "true"} if suspend else {})}
    its = {**(given.get("labels") or {}), **labels(job, Part.WRAPPER)}
    made["metadata"] = {**given, **metadata(job, given["name"], its, annotations)}
    if suspend:
        made["spec"]["suspend"] = True
    first = 0
    for pods in pod_sets(made):
        mark = {JOB: job.name, UID: job.uid, PART: Part.WRAPPED.value, FIRST: str(first)}
        template = pods.template.setdefault("metadata", {})
        template["labels"] = {**(template.get("labels") or {}), **mark}
        first += pods.replicas
        if secret:
            refer_to_secret(pods.template["spec"], job, attempt)
    return made
