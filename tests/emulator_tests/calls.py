"""Requests of the tests to an emulated API server, in few words."""

from __future__ import annotations

import json
import urllib.parse
from dataclasses import dataclass
from typing import Any

from tests.emulator.running import Answer, Running

__all__ = ["PATCHES", "Calls", "config_map", "pod"]

PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}

GROUPS = {
    "leases": "/apis/coordination.k8s.io/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
    "wheels": "/apis/example.com/v1",
}


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Somebody who works in one namespace."""

    server: Running
    namespace: str
    token: str = ""

    def path(self, plural: str, name: str = "", subresource: str = "", **query: Any) -> str:
        steps = [GROUPS.get(plural, "/api/v1"), "namespaces", self.namespace, plural, name, subresource]
        asked = urllib.parse.urlencode({key: value for key, value in query.items() if value is not None})
        return "/".join(step for step in steps if step) + (f"?{asked}" if asked else "")

    def create(self, plural: str, body: Any, **query: Any) -> Answer:
        return self.server.request("POST", self.path(plural, **query), body, token=self.token)

    def get(self, plural: str, name: str, subresource: str = "", **query: Any) -> Answer:
        return self.server.request("GET", self.path(plural, name, subresource, **query), token=self.token)

    def listed(self, plural: str, **query: Any) -> Any:
        return self.server.request("GET", self.path(plural, **query), token=self.token)[1]

    def names(self, plural: str, **query: Any) -> list[str]:
        return [item["metadata"]["name"] for item in self.listed(plural, **query)["items"]]

    def replace(self, plural: str, name: str, body: Any, subresource: str = "") -> Answer:
        return self.server.request("PUT", self.path(plural, name, subresource), body, token=self.token)

    def patch(self, plural: str, name: str, body: Any, kind: str = "merge", subresource: str = "", **query: Any) -> Answer:
        path = self.path(plural, name, subresource, **query)
        return self.server.request("PATCH", path, body, content=PATCHES[kind], token=self.token)

    def delete(self, plural: str, name: str = "", options: Any = None, **query: Any) -> Answer:
        return self.server.request("DELETE", self.path(plural, name, **query), options, token=self.token)

    def watch(self, plural: str, **query: Any) -> list[dict[str, Any]]:
        """What a watch of one second hears."""
        text = self.server.request("GET", self.path(plural, watch="true", **{"timeoutSeconds": 1, **query}), token=self.token)[
            1
        ]
        if isinstance(text, dict):  # one line alone is JSON
            return [text]
        return [json.loads(line) for line in text.splitlines()]

    def heard(self, plural: str, **query: Any) -> list[tuple[str, str]]:
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in self.watch(plural, **query)]

    def version(self, plural: str) -> str:
        """The resourceVersion of a list of now."""
        return str(self.listed(plural)["metadata"]["resourceVersion"])


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "data": data or {}}


def pod(name: str, *command: str, container: dict[str, Any] | None = None, metadata: Any = None, **spec: Any) -> dict[str, Any]:
    """A pod of one container `main`."""
    main = {"name": "main", "image": "any", "command": list(command or ["true"]), **(container or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"restartPolicy": "Never", "containers": [main], **spec},
    }
