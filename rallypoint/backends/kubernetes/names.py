"""What every object of a job is called, in one place. Pure.

A name is a function of (job, uid, attempt, node, incarnation), so that creating twice is creating once and a second supervisor
means the same pod. Names that become host names or labels have 63 characters at the most: the job's part is cut, what
tells two objects of one job apart never is.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

__all__ = [
    "COORDINATOR_ROLE",
    "LONGEST",
    "PREFIX",
    "RUN_SECRET_SUFFIX",
    "SUPERVISOR_ROLE",
    "JobRef",
    "attempt_secret",
    "claim",
    "claim_template",
    "coordinator_pod",
    "directory_pod",
    "function_secret",
    "group",
    "hostname",
    "job_configmap",
    "network_policy",
    "node_pod",
    "roles_secret",
    "service",
    "standby_pod",
    "status_configmap",
    "supervisor_lease",
    "supervisor_pod",
    "together",
    "unit_hostname",
    "unit_pod",
    "units_configmap",
]

#: What a label's value and a host name may hold.
LONGEST = 63

#: Before the name of each object that is found by its name alone.
PREFIX = "rallypoint-"

#: Names of the two Roles that `rallypoint manifests rbac` prints, and of the service accounts that have them.
COORDINATOR_ROLE = f"{PREFIX}coordinator"
SUPERVISOR_ROLE = f"{PREFIX}supervisor"

#: After the job, the name of the Secret that `rallypoint render --secret` writes, which its user creates.
RUN_SECRET_SUFFIX = "-rallypoint-run"

_UID = 8

#: Longest part of a name that names a place, and the characters of its checksum.
_PLACE, _CHECK = 20, 6


@dataclass(frozen=True, kw_only=True)
class JobRef:
    """Which job: what the names, labels and owners of its objects are made of.

    Attributes:
        name: of the job; `namespace` is where it runs.
        uid: of its record: another one for each job that was ever submitted under this name.
        owner: `metadata.uid` of its ConfigMap, which owns everything else; "" where that does not exist yet.
        parent: the job that it is an elastic role of; "" for a job of its own.
    """

    name: str
    uid: str
    namespace: str
    owner: str = ""
    parent: str = ""

    @property
    def uid8(self) -> str:
        """The first 8 letters and digits of the uid, as they may stand in names."""
        return re.sub(r"[^a-z0-9]", "", self.uid.lower())[:_UID]


def job_configmap(name: str) -> str:
    """Return the name of the ConfigMap that holds a job and its record."""
    return f"{PREFIX}{name}"


def status_configmap(job: JobRef) -> str:
    """Return the name of the ConfigMap in which the coordinator says what is true inside."""
    return _named(job, "-status")


def attempt_secret(job: JobRef, attempt: int) -> str:
    """Return the name of the Secret without which no pod of this attempt can start."""
    return _named(job, f"-a{attempt}")


def function_secret(job: JobRef, digest: str) -> str:
    """Return the name of the Secret that holds the function of a spec."""
    return _named(job, f"-f{digest[:_UID]}")


def service(job: JobRef) -> str:
    """Return the name of the headless Service."""
    # A Service must begin with a letter, a job need not.
    return _named(job, "", lead="" if job.name[:1].isalpha() else "j")


def network_policy(job: JobRef) -> str:
    """Return the name of the NetworkPolicy."""
    return _named(job, "-net")


def group(job: JobRef) -> str:
    """Return the name of the pod group that Kueue admits as one."""
    return _named(job, "")


def coordinator_pod(job: JobRef, term: int) -> str:
    """Return the name of the pod of the coordinator of one term."""
    return _named(job, f"-c{term}")


def node_pod(job: JobRef, attempt: int, node: int, incarnation: int) -> str:
    """Return the name of the pod of one incarnation of a node."""
    return _named(job, f"-a{attempt}-n{node}-{incarnation}")


def hostname(node: int) -> str:
    """Return what a node's pod calls itself, in every attempt and incarnation: with the Service its name in the namespace."""
    return f"node-{node}"


def units_configmap(job: JobRef) -> str:
    """Return the name of the ConfigMap that holds which life of each instance was started last."""
    return _named(job, "-units")


def roles_secret(job: JobRef) -> str:
    """Return the name of the Secret with which the instances of all roles call each other."""
    return _named(job, "-roles")


def directory_pod(job: JobRef) -> str:
    """Return the name of the pod through which the instances of all roles find each other."""
    return _named(job, "-d")


def unit_pod(job: JobRef, attempt: int, place: str, number: int, life: int) -> str:
    """Return the name of one life of a pod of simple roles."""
    return _named(job, f"-a{attempt}-{_short(place)}-{number}-{life}")


def unit_hostname(place: str, number: int) -> str:
    """Return what such a pod calls itself, in every life."""
    return f"{_short(place)}-{number}"


def claim_template(job: JobRef, place: str) -> str:
    """Return the name of the template of the claim by which the pods of a place have devices."""
    return _named(job, f"-{_short(place)}-devices")


def claim(job: JobRef, place: str) -> str:
    """Return the beginning of the names of the claims for which pods of several jobs share devices; a number comes on top."""
    return _named(job, f"-{_short(place)}-shared")


def together(job: JobRef, place: str) -> str:
    """Return the beginning of the label of the pods of one group of roles; the number of the group comes on top."""
    return f"{_short(place)}-{job.uid8}"


def supervisor_pod(job: JobRef) -> str:
    """Return the name of the pod that supervises one job (`submit --supervise pod`)."""
    return _named(job, "-s")


def standby_pod(job: JobRef) -> str:
    """Return the name of the other one: of the two that holds the job is the supervisor, and the other stands by."""
    return _named(job, "-s2")


def supervisor_lease(holder: str) -> str:
    """Return the name of the Lease in which the heart of the supervising process `holder` beats."""
    return f"{PREFIX}supervisor-{holder}"


def _short(place: str) -> str:
    """Return the name of a place, or its beginning and a checksum where it is long."""
    if len(place) <= _PLACE:
        return place
    check = hashlib.sha256(place.encode()).hexdigest()[:_CHECK]
    return f"{place[: _PLACE - _CHECK - 1].rstrip('-')}-{check}"


def _named(job: JobRef, end: str, *, lead: str = "") -> str:
    tail = f"-{job.uid8}{end}"
    return f"{lead}{job.name}"[: LONGEST - len(tail)].rstrip("-") + tail
