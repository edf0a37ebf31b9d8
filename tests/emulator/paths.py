"""From a URL to what is asked: the resource, the object, the subresource, and the verb that RBAC knows it by."""

from __future__ import annotations

from dataclasses import dataclass

from tests.emulator.errors import ApiError, unknown_path
from tests.emulator.resources import Resource

__all__ = ["Asked", "read_path"]

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request for objects."""

    resource: Resource
    verb: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""
    """What follows the subresource: the path that a proxy passes on."""

    @property
    def target(self) -> str:
        """The resource as a Role names it."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


def read_path(kinds: dict[str, Resource], method: str, path: str, *, watch: bool = False) -> Asked:
    """`path` begins with /api/v1/ or /apis/GROUP/VERSION/; ApiError 404 where nothing is served, 405 for a verb that is not."""
    group, version, steps = _split(path)
    namespace = ""
    if len(steps) > 2 and steps[0] == "namespaces" and steps[2] not in {"finalize", "status"}:
        namespace, steps = steps[1], steps[2:]
    found = [r for r in kinds.values() if (r.group, r.version, r.plural) == (group, version, steps[0] if steps else "")]
    if not found or (namespace and not found[0].namespaced):
        raise unknown_path()
    resource, name, subresource = found[0], *[*steps[1:3], "", ""][:2]
    if subresource and subresource not in resource.subresources:
        raise unknown_path()
    if resource.namespaced and name and not namespace:
        raise unknown_path()
    verb = _verb(method, name, subresource, watch=watch)
    if not subresource and verb not in resource.verbs:
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
    return Asked(
        resource=resource, verb=verb, namespace=namespace, name=name, subresource=subresource, rest="/".join(steps[3:])
    )


def _split(path: str) -> tuple[str, str, list[str]]:
    steps = path.strip("/").split("/")
    if steps[:2] == ["api", "v1"]:
        return "", "v1", steps[2:]
    if steps[0] == "apis" and len(steps) > 3:
        return steps[1], steps[2], steps[3:]
    raise unknown_path()


def _verb(method: str, name: str, subresource: str, *, watch: bool) -> str:
    if method in {"GET", "HEAD"}:
        if name:
            return "get"
        return "watch" if watch else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    if method in VERBS and (method == "POST") == (not name or bool(subresource)):
        return VERBS[method]
    if method in {"PUT", "PATCH"} and subresource:
        return VERBS[method]
    raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
