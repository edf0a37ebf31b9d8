"""What the server says of itself: its version, its groups, and what can be done with each of its resources."""

from __future__ import annotations

from tests.emulator.bodies import Body
from tests.emulator.resources import Resource

__all__ = ["VERSION", "answer"]

#: The version whose behaviour is imitated.
VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0-emulator",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}

#: The verbs of subresources.
SUBRESOURCE_VERBS = {
    "status": ["get", "patch", "update"],
    "scale": ["get", "patch", "update"],
    "log": ["get"],
    "proxy": ["create", "delete", "get", "patch", "update"],
}


def answer(kinds: dict[str, Resource], path: str) -> Body | None:
    """The answer to a question that is not about objects; None where the path is not one of these."""
    resources = list(kinds.values())
    groups = sorted({(resource.group, resource.version) for resource in resources if resource.group})
    fixed: dict[str, Body] = {
        "/version": dict(VERSION),
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(group, groups) for group in _names(groups)]},
        "/openapi/v3": {"paths": {f"apis/{group}/{version}": {"serverRelativeURL": ""} for group, version in groups}},
    }
    steps = path.strip("/").split("/")
    if path.rstrip("/") in fixed:
        return fixed[path.rstrip("/")]
    if steps == ["api", "v1"]:
        return _list("v1", [one for one in resources if not one.group])
    if steps[0] == "apis" and len(steps) == 2 and steps[1] in _names(groups):
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(steps[1], groups)}
    if steps[0] == "apis" and len(steps) == 3 and (steps[1], steps[2]) in groups:
        return _list(f"{steps[1]}/{steps[2]}", [one for one in resources if (one.group, one.version) == (steps[1], steps[2])])
    return None


def _names(groups: list[tuple[str, str]]) -> list[str]:
    return sorted({group for group, _ in groups})


def _group(name: str, groups: list[tuple[str, str]]) -> Body:
    versions = [{"groupVersion": f"{group}/{version}", "version": version} for group, version in groups if group == name]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _list(group_version: str, resources: list[Resource]) -> Body:
    listed: list[Body] = []
    for resource in resources:
        listed.append(_entry(resource, resource.plural, list(resource.verbs)))
        listed += [
            _entry(resource, f"{resource.plural}/{sub}", SUBRESOURCE_VERBS.get(sub, ["create"]))
            for sub in resource.subresources
        ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed}


def _entry(resource: Resource, name: str, verbs: list[str]) -> Body:
    entry: Body = {
        "name": name,
        "singularName": "" if "/" in name else resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": verbs,
    }
    return {**entry, "shortNames": list(resource.short)} if resource.short and "/" not in name else entry
