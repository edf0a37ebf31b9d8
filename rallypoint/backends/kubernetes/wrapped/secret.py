"""How the pods that another controller creates get the job's secret. Pure.

The agents of these pods are started by hand, as under torchrun, and read RALLYPOINT_SECRET. The variable refers to the Secret
of the attempt: a pod that is created before the Secret waits for it. Which containers run an agent cannot be told from a
manifest, so every container gets the variable, unless the manifest sets it to another value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rallypoint.backends.kubernetes.manifests.blueprint import PLACEHOLDER
from rallypoint.backends.kubernetes.manifests.objects import SECRET_KEY
from rallypoint.backends.kubernetes.manifests.volumes import TLS_VOLUME
from rallypoint.backends.kubernetes.names import RUN_SECRET_SUFFIX, JobRef, attempt_secret
from rallypoint.wire import env

__all__ = ["refer_to_secret"]


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
