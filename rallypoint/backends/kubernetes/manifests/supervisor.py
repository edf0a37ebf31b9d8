"""The pod that supervises one job from inside of the cluster (`submit --supervise pod`). Pure.

It is the coordinator's pod in all that says where it may run, as whom and from which image, since that runs everywhere the job
does; what it does is `rallypoint supervise`, with an account of its own. It has no secret of the job: what it needs to know it
reads from the API server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import Part, labels
from rallypoint.backends.kubernetes.manifests.coordinator import coordinator_pod
from rallypoint.backends.kubernetes.manifests.hosts import ANYWHERE, Exclusion
from rallypoint.backends.kubernetes.manifests.literal import literals
from rallypoint.backends.kubernetes.manifests.objects import metadata
from rallypoint.backends.kubernetes.manifests.parts import POD_IP, role_of
from rallypoint.backends.kubernetes.manifests.volumes import OURS, TMP
from rallypoint.backends.kubernetes.names import SUPERVISOR_ROLE, JobRef
from rallypoint.job import ElasticJob
from rallypoint.wire import env
from rallypoint.wire.plan import Plan
from rallypoint.wire.python import run_module

__all__ = ["SUPERVISOR", "supervisor_pod"]

#: Name of its container.
SUPERVISOR = "supervisor"

#: A supervisor waits nearly all of the time. What it holds in memory is mostly the client of the API.
_RESOURCES: Mapping[str, Any] = {"requests": {"cpu": "50m", "memory": "192Mi"}, "limits": {"memory": "512Mi"}}

#: Seconds from TERM to KILL: it has to give its hold back, and nothing more.
_GRACE = 30

#: The pod's own name and uid: it owns its Lease, which is so deleted with it, also where it is killed.
_ITSELF = tuple(
    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for name, path in ((env.POD_NAME, "metadata.name"), (env.POD_UID, "metadata.uid"))
)

#: What of a coordinator's container holds for a supervisor as well. Not `envFrom`: the script's secrets are not its business.
_SHARED = ("image", "imagePullPolicy", "securityContext")


def supervisor_pod(
    job: JobRef,
    *,
    spec: ElasticJob,
    plan: Plan,
    image: str = "",
    account: str = "",
    name: str = "",
    off: Exclusion = ANYWHERE,
) -> dict[str, Any]:
    """Return the pod. `image` is the job's own where it is "", and the service account `rallypoint-supervisor`.

    `name` is for the pod that stands by, which keeps off the machines of `off`.

    The image needs `rallypoint[client,kubernetes]`. The pod ends well when the job is released, however the job has ended.
    """
    model = coordinator_pod(job, spec=spec, plan=plan, attempt=1, term=1, off=off)
    coordinator = model["spec"]["containers"][0]
    mounts = [mount for mount in coordinator["volumeMounts"] if not _is_ours(mount) or mount["mountPath"] == TMP]
    mounted = {mount["name"] for mount in mounts}
    container = {
        "name": SUPERVISOR,
        **{key: coordinator[key] for key in _SHARED if key in coordinator},
        **({"image": image} if image else {}),
        "command": _command(job, role_of(spec, plan).python),
        "env": [*_ITSELF, *(variable for variable in coordinator.get("env", ()) if variable["name"] != POD_IP)],
        "resources": dict(_RESOURCES),
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        # Not the coordinator's labels: no queue admits this pod, since it must be there while its job waits for one.
        "metadata": metadata(job, name or names.supervisor_pod(job), labels(job, Part.SUPERVISOR)),
        "spec": {
            **{key: value for key, value in model["spec"].items() if key != "subdomain"},
            "restartPolicy": "OnFailure",
            "serviceAccountName": account or SUPERVISOR_ROLE,
            "automountServiceAccountToken": True,
            "terminationGracePeriodSeconds": _GRACE,
            "containers": [container],
            "volumes": [volume for volume in model["spec"]["volumes"] if volume["name"] in mounted],
        },
    }


def _command(job: JobRef, python: Sequence[str]) -> list[str]:
    place = ("--backend", "kubernetes", "--namespace", job.namespace)
    words = ("supervise", job.name, *place, "--ignore-outcome")
    return [*run_module("rallypoint.cli.main", *words, python=literals(python or ("python",)))]


def _is_ours(mount: Mapping[str, Any]) -> bool:
    return str(mount["name"]).startswith(OURS)
