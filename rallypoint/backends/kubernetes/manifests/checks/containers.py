"""Are containers, variables and the pod template such that a pod can be made of them? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rallypoint.backends.kubernetes.manifests.checks.place import DNS_LABEL, Place, Wrong, is_dns_label
from rallypoint.backends.kubernetes.manifests.parts import COORDINATOR, POD_IP, TRAINER, template_of
from rallypoint.job import Role

__all__ = ["check", "template"]

_TEMPLATE = ("metadata", "spec")
_METADATA = ("annotations", "labels")

#: Lists of a pod's spec whose items are mappings; the rest of a template is the API server's to check.
_LISTS = ("containers", "imagePullSecrets", "initContainers", "tolerations", "topologySpreadConstraints", "volumes")
_CONTAINER_LISTS = ("env", "envFrom", "ports", "volumeMounts")
_NAMED = ("containers", "initContainers", "volumes")


def template(place: Place, role: Role) -> Iterator[Wrong]:
    """Yield where the pod template has another shape than a pod template."""
    at = place.at("pod_template")
    yield from _keys(at, role.pod_template, _TEMPLATE)
    metadata, spec = (role.pod_template.get(name) or {} for name in _TEMPLATE)
    for name, part in (("metadata", metadata), ("spec", spec)):
        if not isinstance(part, Mapping):
            yield at.at(name).refused(part, "a mapping")
            return
    yield from _keys(at.at("metadata"), metadata, _METADATA)
    for name in _LISTS:
        yield from _mappings(at.at("spec", name), spec.get(name), named=name in _NAMED)
    for name in ("containers", "initContainers"):
        for index, container in enumerate(_list(spec.get(name))):
            for key in _CONTAINER_LISTS:
                part = container.get(key) if isinstance(container, Mapping) else None
                yield from _mappings(at.at("spec", name, index, key), part, named=False)


def check(place: Place, role: Role) -> Iterator[Wrong]:
    """Yield what is wrong with the containers and the variables of a role."""
    pod = template_of(role)["spec"]
    at = place.at("pod_template", "spec")
    groups = (
        (place.at("init_containers"), role.init_containers),
        (place.at("sidecars"), role.sidecars),
        (at.at("initContainers"), pod.get("initContainers") or ()),
        (at.at("containers"), [item for item in pod.get("containers") or () if item["name"] not in (TRAINER, COORDINATOR)]),
    )
    seen: set[object] = {TRAINER, COORDINATOR}
    for where, containers in groups:
        for index, container in enumerate(containers):
            yield from _container(where.at(index), container, seen)
            seen.add(container.get("name"))
    for index, variable in enumerate(role.pod_env):
        yield from _variable(place.at("pod_env", index), variable, role)
    for index, source in enumerate(role.env_from):
        if not {"configMapRef", "secretRef"} & source.keys():
            yield place.at("env_from", index).refused(dict(source), "a mapping with configMapRef or secretRef")


def _container(at: Place, container: Mapping[str, Any], others: Iterable[object]) -> Iterator[Wrong]:
    name = container.get("name")
    if not is_dns_label(name):
        yield at.at("name").refused(name, DNS_LABEL)
    elif name in others:
        yield at.at("name").refused(name, f"a different name for each container; {TRAINER} and {COORDINATOR} are reserved")
    if not container.get("image"):
        yield at.at("image").wrong("is missing; expected the name of an image")


def _variable(at: Place, variable: Mapping[str, Any], role: Role) -> Iterator[Wrong]:
    name = variable.get("name")
    if not isinstance(name, str) or not name or "=" in name:
        yield at.at("name").refused(name, "the name of a variable")
    elif name == POD_IP:
        yield at.at("name").refused(name, "another name; Rallypoint sets this variable to the pod's address")
    elif name in role.env:
        yield at.at("name").refused(name, f"a name that is not also in env (where it is {role.env[name]!r})")
    if ("value" in variable) == ("valueFrom" in variable):
        yield at.refused(dict(variable), "a name with one of value and valueFrom")
    elif "value" in variable and not isinstance(variable["value"], str):
        yield at.at("value").refused(variable["value"], "a string")


def _keys(at: Place, part: Mapping[str, Any], known: Iterable[str]) -> Iterator[Wrong]:
    for key in part:
        if key not in known:
            yield at.at(key).wrong(f"is not a known key; expected one of {', '.join(known)}")


def _mappings(at: Place, items: Any, *, named: bool) -> Iterator[Wrong]:
    if items is None:
        return
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        yield at.refused(items, "a list of mappings")
    elif named and not all(isinstance(item.get("name"), str) and item["name"] for item in items):
        yield at.refused(items, "a list of mappings, each with a name")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
