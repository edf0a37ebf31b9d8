"""Admission: what a namespace allows of the pods and objects in it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.emulator.api import Admission, Api
from tests.emulator.bodies import Body, labels
from tests.emulator.errors import forbidden
from tests.emulator.quantities import quantity, requests_of
from tests.emulator.resources import Resource

__all__ = ["SCHEDULING", "accounts", "podsecurity", "priority", "quota"]

ENFORCE = "pod-security.kubernetes.io/enforce"
SCHEDULING = "scheduling.k8s.io"
ENDED = ("Succeeded", "Failed")

#: The kinds of volumes that a restricted pod may have.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def accounts(api: Api) -> Admission:
    """Refuses pods whose service account is not there."""

    def admit(resource: Resource, body: Body) -> None:
        if resource.key != "pods":
            return
        namespace, name = body["metadata"]["namespace"], body["spec"]["serviceAccountName"]
        if api.store.get("serviceaccounts", namespace, name) is None:
            why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            raise forbidden(resource, body["metadata"]["name"], why)

    return admit


def priority(api: Api) -> Admission:
    """Refuses pods whose PriorityClass is not there, as the Priority admission plugin does."""

    def admit(resource: Resource, body: Body) -> None:
        name = body["spec"].get("priorityClassName") if resource.key == "pods" else ""
        if name and not name.startswith("system-") and api.store.get(f"priorityclasses.{SCHEDULING}", "", name) is None:
            raise forbidden(resource, body["metadata"]["name"], f"no PriorityClass with name {name} was found")

    return admit


def quota(api: Api) -> Admission:
    """Refuses what would exceed a ResourceQuota of its namespace: pods, their requests and limits, and counts of objects."""

    def admit(resource: Resource, body: Body) -> None:
        metadata = body["metadata"]
        for found in api.store.all("resourcequotas", metadata.get("namespace") or "-"):
            hard = (found.body.get("spec") or {}).get("hard") or {}
            asked = _uses(resource, body)
            names = sorted(set(hard) & set(asked))
            used = _used(api, resource, metadata["namespace"], names)
            over = [name for name in names if used[name] + asked[name] > (quantity(hard[name]) or 0.0)]
            if over:
                parts = (
                    ",".join(f"{name}={amount[name]:g}" for name in over)
                    for amount in (asked, used, {name: quantity(hard[name]) or 0.0 for name in over})
                )
                wanted, now, limit = parts
                why = f"exceeded quota: {found.name}, requested: {wanted}, used: {now}, limited: {limit}"
                raise forbidden(resource, metadata["name"], why)

    return admit


def _uses(resource: Resource, body: Body) -> dict[str, float]:
    uses = {f"count/{resource.key}": 1.0}
    if resource.key != "pods":
        return {**uses, resource.plural: 1.0}
    for name, amount in requests_of(body["spec"]).items():
        uses[f"requests.{name}"] = amount
        uses[name] = amount
    return {**uses, "pods": 1.0}


def _used(api: Api, resource: Resource, namespace: str, names: list[str]) -> dict[str, float]:
    used = dict.fromkeys(names, 0.0)
    for version in api.store.all(resource.key, namespace):
        if (version.body.get("status") or {}).get("phase") in ENDED and resource.key == "pods":
            continue
        mine = _uses(resource, version.body)
        for name in names:
            used[name] += mine.get(name, 0.0)
    return used


def podsecurity(api: Api) -> Admission:
    """Refuses pods that the Pod Security Standard `restricted` refuses, in namespaces that say they want it enforced."""

    def admit(resource: Resource, body: Body) -> None:
        if resource.key != "pods":
            return
        home = api.store.get("namespaces", "", body["metadata"]["namespace"])
        if home is None or labels(home.body).get(ENFORCE) != "restricted":
            return
        if found := list(_unrestricted(body["spec"])):
            raise forbidden(resource, body["metadata"]["name"], f'violates PodSecurity "restricted:latest": {", ".join(found)}')

    return admit


def _unrestricted(spec: Body) -> Iterator[str]:
    pod = spec.get("securityContext") or {}
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"host namespaces ({name}=true)"
    for volume in spec.get("volumes") or []:
        if kinds := set(volume) - {"name"} - VOLUMES:
            yield f'restricted volume types (volume "{volume["name"]}" uses restricted volume type "{kinds.pop()}")'
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        own = container.get("securityContext") or {}
        yield from _unrestricted_container(container["name"], pod, own)


def _unrestricted_container(name: str, pod: Body, own: Body) -> Iterator[str]:
    told = f'(container "{name}" must set securityContext.'
    if own.get("privileged"):
        yield f'privileged (container "{name}" must not set securityContext.privileged=true)'
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"allowPrivilegeEscalation != false {told}allowPrivilegeEscalation=false)"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or []) or set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
        yield f'unrestricted capabilities {told}capabilities.drop=["ALL"])'
    if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
        yield f"runAsNonRoot != true {told}runAsNonRoot=true)"
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield f'runAsUser=0 (container "{name}" must not set runAsUser=0)'
    profile = (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type")
    if profile not in {"RuntimeDefault", "Localhost"}:
        yield f'seccompProfile {told}seccompProfile.type to "RuntimeDefault" or "Localhost")'
