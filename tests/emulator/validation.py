"""What a built-in object must be to be accepted: as far as a test can get it wrong, and in the words of the real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.emulator.bodies import Body
from tests.emulator.quantities import quantity
from tests.emulator.resources import Resource

__all__ = ["Cause", "metadata_causes", "pod_causes", "spec_causes"]

#: A field and what is wrong with it.
Cause = tuple[str, str]

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
LABEL_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
ENV_NAME = re.compile(r"[^=\x00-\x1f]+")

MIB = 1 << 20
DNS_LABELS = {"services", "namespaces"}


def metadata_causes(resource: Resource, body: Body) -> Iterator[Cause]:
    """What is wrong with the name, the labels, the annotations and the owners."""
    meta = body["metadata"]
    name = meta["name"]
    rule, limit = (LABEL, 63) if resource.plural in DNS_LABELS else (SUBDOMAIN, 253)
    if "rbac" in resource.group:
        rule, limit = re.compile(r"[^/%]+"), 253
    if not rule.fullmatch(name) or len(name) > limit:
        yield "metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 name of at most {limit} characters is required'
    yield from _label_causes(meta.get("labels") or {})
    yield from _annotation_causes(meta.get("annotations") or {})
    for index, owner in enumerate(meta.get("ownerReferences") or []):
        for needed in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(needed):
                yield f"metadata.ownerReferences[{index}].{needed}", "Required value: must not be empty"


def _label_causes(labels: Body) -> Iterator[Cause]:
    for key, value in labels.items():
        if not LABEL_KEY.fullmatch(key):
            yield "metadata.labels", f'Invalid value: "{key}": not a qualified name'
        if not isinstance(value, str) or not LABEL_VALUE.fullmatch(value):
            yield (
                "metadata.labels",
                f"Invalid value: {value!r}: a valid label must be '' or at most 63 letters, digits, '-', '_', '.'",
            )


def _annotation_causes(annotations: Body) -> Iterator[Cause]:
    for key, value in annotations.items():
        if not isinstance(value, str):
            yield f"metadata.annotations[{key}]", f"Invalid value: {value!r}: must be a string"
    if sum(len(key) + len(str(value)) for key, value in annotations.items()) > MIB // 4:
        yield "metadata.annotations", f"Too long: may not be more than {MIB // 4} bytes"


def spec_causes(resource: Resource, body: Body) -> Iterator[Cause]:
    """What is wrong with the rest of an object of a built-in kind."""
    if resource.key == "pods":
        yield from pod_causes(body.get("spec") or {})
    elif resource.key in {"configmaps", "secrets"}:
        yield from _data_causes(body)
    elif resource.key == "services":
        yield from _service_causes(body.get("spec") or {})
    elif resource.key.startswith("leases"):
        seconds = (body.get("spec") or {}).get("leaseDurationSeconds")
        if seconds is not None and not (isinstance(seconds, int) and seconds > 0):
            yield "spec.leaseDurationSeconds", f"Invalid value: {seconds}: must be greater than 0"


def _data_causes(body: Body) -> Iterator[Cause]:
    total = 0
    for field in ("data", "binaryData"):
        for key, value in (body.get(field) or {}).items():
            if not DATA_KEY.fullmatch(key):
                yield f"{field}[{key}]", f'Invalid value: "{key}": a valid key consists of letters, digits, "-", "_" or "."'
            if not isinstance(value, str):
                yield f"{field}[{key}]", f"Invalid value: {value!r}: must be a string"
            total += len(str(value))
    if total > MIB:
        yield "", f"Too long: may not be more than {MIB} bytes"


def _service_causes(spec: Body) -> Iterator[Cause]:
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield "spec.ports", "Required value"
    for index, port in enumerate(ports):
        yield from _port(f"spec.ports[{index}].port", port.get("port"))
        if len(ports) > 1 and not port.get("name"):
            yield f"spec.ports[{index}].name", "Required value"


def _port(field: str, value: Any) -> Iterator[Cause]:
    if not isinstance(value, int) or not 0 < value < 65536:
        yield field, f"Invalid value: {value}: must be between 1 and 65535, inclusive"


def pod_causes(spec: Body) -> Iterator[Cause]:
    """What is wrong with the spec of a pod."""
    if not spec.get("containers"):
        yield "spec.containers", "Required value"
    if spec.get("restartPolicy") not in {"Always", "OnFailure", "Never"}:
        yield (
            "spec.restartPolicy",
            f'Unsupported value: "{spec.get("restartPolicy")}": supported values: "Always", "OnFailure", "Never"',
        )
    volumes: list[str] = []
    for index, volume in enumerate(spec.get("volumes") or []):
        yield from _volume(f"spec.volumes[{index}]", volume, volumes)
    names: list[str] = []
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            where = f"spec.{field}[{index}]"
            if container.get("name") in names:
                yield f"{where}.name", f'Duplicate value: "{container["name"]}"'
            names.append(container.get("name") or "")
            yield from _container(where, container, set(volumes))
    for index, toleration in enumerate(spec.get("tolerations") or []):
        if toleration.get("operator") == "Exists" and toleration.get("value"):
            yield f"spec.tolerations[{index}].operator", "Invalid value: value must be empty when `operator` is 'Exists'"


def _volume(where: str, volume: Body, seen: list[str]) -> Iterator[Cause]:
    name = volume.get("name") or ""
    if not LABEL.fullmatch(name):
        yield f"{where}.name", f'Invalid value: "{name}": a lowercase RFC 1123 label is required'
    if name in seen:
        yield f"{where}.name", f'Duplicate value: "{name}"'
    seen.append(name)
    if len([key for key in volume if key != "name"]) > 1:
        yield where, "Forbidden: may not specify more than 1 volume type"


def _container(where: str, container: Body, volumes: set[str]) -> Iterator[Cause]:
    name = container.get("name") or ""
    if not LABEL.fullmatch(name):
        yield f"{where}.name", f'Invalid value: "{name}": a lowercase RFC 1123 label is required' if name else "Required value"
    if not container.get("image"):
        yield f"{where}.image", "Required value"
    yield from _mounts(where, container.get("volumeMounts") or [], volumes)
    yield from _variables(where, container.get("env") or [])
    for port in container.get("ports") or []:
        yield from _port(f"{where}.ports.containerPort", port.get("containerPort"))
    yield from _resources(where, container.get("resources") or {})


def _mounts(where: str, mounts: list[Body], volumes: set[str]) -> Iterator[Cause]:
    mounted: list[str] = []
    for index, mount in enumerate(mounts):
        at = f"{where}.volumeMounts[{index}]"
        if mount.get("name") not in volumes:
            yield f"{at}.name", f'Not found: "{mount.get("name")}"'
        if not mount.get("mountPath"):
            yield f"{at}.mountPath", "Required value"
        elif mount["mountPath"] in mounted:
            yield f"{at}.mountPath", f'Invalid value: "{mount["mountPath"]}": must be unique'
        mounted.append(mount.get("mountPath") or "")


def _variables(where: str, variables: list[Body]) -> Iterator[Cause]:
    for index, one in enumerate(variables):
        at = f"{where}.env[{index}]"
        if not ENV_NAME.fullmatch(str(one.get("name") or "")):
            yield f"{at}.name", f"Invalid value: {one.get('name')!r}"
        if one.get("value") is not None and not isinstance(one["value"], str):
            yield f"{at}.value", f"Invalid value: {one['value']!r}: must be a string"
        if one.get("value") and one.get("valueFrom"):
            yield f"{at}.valueFrom", "Invalid value: may not be specified when `value` is not empty"


def _resources(where: str, resources: Body) -> Iterator[Cause]:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for field, listed in (("requests", requests), ("limits", limits)):
        for name, value in listed.items():
            if quantity(value) is None:
                yield (
                    f"{where}.resources.{field}[{name}]",
                    f"Invalid value: {value!r}: quantities must match the regular expression",
                )
    for name, value in requests.items():
        asked, limit = quantity(value), quantity(limits.get(name))
        if asked is not None and limit is not None and asked > limit:
            yield (
                f"{where}.resources.requests",
                f'Invalid value: "{value}": must be less than or equal to {name} limit of {limits[name]}',
            )
        if "/" in name and asked != limit:
            yield (
                f"{where}.resources.requests",
                f'Invalid value: "{value}": must be equal to {name} limit of {limits.get(name, "<nil>")}',
            )
