"""Volumes of a job's pods: what is ours, where it is mounted, and what of the user's a coordinator needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

from rallypoint.backends.kubernetes import names
from rallypoint.backends.kubernetes.names import JobRef
from rallypoint.job import Role
from rallypoint.job.quantity import MI, quantity, write_bytes
from rallypoint.wire.tls import AUTO, OFF, PEER_FILES, SECRET_PREFIX

__all__ = [
    "FUNCTION",
    "OURS",
    "RUN",
    "SECRETS",
    "SHM",
    "STATUS",
    "TLS",
    "TLS_VOLUME",
    "TMP",
    "function_mount",
    "function_volume",
    "is_claim",
    "job_mounts",
    "job_volumes",
    "shm_size",
    "status_mount",
    "status_volume",
]

#: Where a pod finds its plan and secret, and what is writable under its read-only root.
SECRETS = "/etc/rallypoint"
STATUS = "/etc/rallypoint-status"
TLS = "/etc/rallypoint-tls"
FUNCTION = "/etc/rallypoint-function"
RUN = "/var/run/rallypoint"
SHM = "/dev/shm"  # noqa: S108  the memory file system that the pod's own volume is
TMP = "/tmp"  # noqa: S108  the pod's own

#: Names of our volumes begin so.
OURS = "rallypoint-"

#: Of the volume with the certificates.
TLS_VOLUME = f"{OURS}tls"

#: Keys of an attempt's Secret: the plan, and what its pods and their supervisor know each other by.
PLAN_FILE, SECRET_FILE = "plan.json", "secret"

#: For each worker: what container runtimes give a whole container. NCCL and data loaders fill it; progress takes 2 KiB of it.
_SHM_PER_WORKER = 64 * MI

#: Kinds of volumes of which a second machine may get none.
_CLAIMS = ("ephemeral", "persistentVolumeClaim")


def shm_size(role: Role) -> Fraction:
    """Return the size of /dev/shm in bytes."""
    if role.resources.shm:
        return quantity(role.resources.shm)
    return Fraction(_SHM_PER_WORKER * role.nproc_per_node)


def job_volumes(job: JobRef, *, attempt: int, shm: Fraction, tmp: bool, tls: str = OFF) -> list[dict[str, Any]]:
    """Return the volumes of a pod of one attempt; with `tmp` one for /tmp, too, and one for certificates as `Plan.tls` says."""
    # The mode lets any user read: who runs in the image is not known here, and nobody else is in the pod.
    secret: dict[str, Any] = {"secretName": names.attempt_secret(job, attempt), "defaultMode": 0o444}
    certificates = {**secret, "items": [{"key": name, "path": name} for name in PEER_FILES]}
    if tls == AUTO:  # the authority's own key stays out of the pod
        secret["items"] = [{"key": name, "path": name} for name in (PLAN_FILE, SECRET_FILE)]
    elif tls:
        certificates["secretName"] = tls.removeprefix(SECRET_PREFIX)
    return [
        {"name": f"{OURS}secret", "secret": secret},
        *([{"name": TLS_VOLUME, "secret": certificates}] if tls else []),
        {"name": f"{OURS}run", "emptyDir": {}},
        *([{"name": f"{OURS}tmp", "emptyDir": {}}] if tmp else []),
        {"name": f"{OURS}shm", "emptyDir": {"medium": "Memory", "sizeLimit": write_bytes(shm)}},
    ]


def job_mounts(*, tmp: bool, tls: str = OFF) -> list[dict[str, Any]]:
    """Return where those volumes are mounted."""
    return [
        {"name": f"{OURS}secret", "mountPath": SECRETS, "readOnly": True},
        *([{"name": TLS_VOLUME, "mountPath": TLS, "readOnly": True}] if tls else []),
        {"name": f"{OURS}run", "mountPath": RUN},
        *([{"name": f"{OURS}tmp", "mountPath": TMP}] if tmp else []),
        {"name": f"{OURS}shm", "mountPath": SHM},
    ]


def status_volume(job: JobRef) -> dict[str, Any]:
    """Return the volume with the last status, for a coordinator that may not ask for it."""
    return {"name": f"{OURS}status", "configMap": {"name": names.status_configmap(job), "optional": True}}


def status_mount() -> dict[str, Any]:
    """Return where that is mounted."""
    return {"name": f"{OURS}status", "mountPath": STATUS, "readOnly": True}


def function_volume(job: JobRef, digest: str) -> dict[str, Any]:
    """Return the volume with the function of a job's spec."""
    secret = {"secretName": names.function_secret(job, digest), "defaultMode": 0o444}  # as that of the attempt's Secret
    return {"name": f"{OURS}function", "secret": secret}


def function_mount() -> dict[str, Any]:
    """Return where that is mounted."""
    return {"name": f"{OURS}function", "mountPath": FUNCTION, "readOnly": True}


def is_claim(volume: Mapping[str, Any], mounts: Mapping[str, str], plan_python: str) -> bool:
    """Return whether a coordinator does without this volume: a claim that a second machine may not get.

    `mounts` are the paths of volumes by name; a claim that holds the pod's Python is needed all the same.
    """
    if not any(kind in volume for kind in _CLAIMS):
        return False
    path = mounts.get(str(volume.get("name")), "")
    return not path or PurePosixPath(path) not in PurePosixPath(plan_python).parents
