"""The pod through which the instances of all roles find each other. Pure.

It holds nothing that is not announced again within seconds, so it is replaced at any time; its name in the cluster's DNS stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.labels import Part, labels
from rallypoint.backends.kubernetes.manifests.coordinator import coordinator_pod
from rallypoint.backends.kubernetes.manifests.literal import literals
from rallypoint.backends.kubernetes.manifests.objects import metadata
from rallypoint.backends.kubernetes.manifests.parts import POD_IP, role_of
from rallypoint.backends.kubernetes.manifests.volumes import OURS, TMP
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.backends.kubernetes.roles.pods import ROLES_FOLDER, roles_files, roles_mount, roles_volume
from rallypoint.job import ElasticJob
from rallypoint.wire import env
from rallypoint.wire.plan import Plan
from rallypoint.wire.python import run_module

__all__ = ["directory_pod", "directory_url"]

#: Name of the container, and of the pod in the job's Service.
_NAME = "directory"

#: Where it listens: its pod has an address of its own.
_PORT = 29630

#: An entry takes at most 4 KiB, and is announced every two seconds.
_RESOURCES: Mapping[str, Any] = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}

#: Seconds from TERM to KILL: it has nothing to save.
_GRACE = 5

#: What of a coordinator's container holds for a directory as well. Not its variables, which may hold the script's secrets.
_SHARED = ("image", "imagePullPolicy", "securityContext")


def directory_url(job: JobRef) -> str:
    """Return the address of the directory by its name in the cluster's DNS."""
    return f"http://{_NAME}.{names.service(job)}.{job.namespace}.svc:{_PORT}"


def directory_pod(job: JobRef, *, spec: ElasticJob, plan: Plan) -> dict[str, Any]:
    """Return the pod: it runs where a coordinator of the first role may run, from the same image."""
    model = coordinator_pod(job, spec=spec, plan=plan, attempt=1, term=1)
    coordinator = model["spec"]["containers"][0]
    files = roles_files(plan.tls)
    needed = {TMP, files.get(env.ROLES_TLS, "")} - {ROLES_FOLDER}
    mounts = [mount for mount in coordinator["volumeMounts"] if not _is_ours(mount) or mount["mountPath"] in needed]
    mounted = {mount["name"] for mount in mounts}
    python = literals(role_of(spec, plan).python or ("python",))
    tls = ("--tls", files[env.ROLES_TLS]) if plan.tls else ()
    container = {
        "name": _NAME,
        **{key: coordinator[key] for key in _SHARED if key in coordinator},
        "command": [
            *run_module("rallypoint.agent", "roles-directory", python=python),
            *("--host", f"$({POD_IP})", "--port", str(_PORT), "--job", job.name),
            *("--secret-file", files[env.ROLES_SECRET_FILE], *tls),
        ],
        "env": [{"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": _NAME, "containerPort": _PORT, "protocol": "TCP"}],
        "resources": dict(_RESOURCES),
        "volumeMounts": [*mounts, roles_mount()],
    }
    unwanted = ("automountServiceAccountToken", "serviceAccountName")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        # Not the labels of a queue: it is there while the job waits for one.
        "metadata": metadata(job, names.directory_pod(job), labels(job, Part.DIRECTORY, attempt=0, incarnation=1)),
        "spec": {
            **{key: value for key, value in model["spec"].items() if key not in unwanted},
            "restartPolicy": "Always",
            "hostname": _NAME,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": _GRACE,
            "containers": [container],
            "volumes": [
                *(volume for volume in model["spec"]["volumes"] if volume["name"] in mounted),
                roles_volume(job, tls=plan.tls),
            ],
        },
    }


def _is_ours(mount: Mapping[str, Any]) -> bool:
    return str(mount["name"]).startswith(OURS)
