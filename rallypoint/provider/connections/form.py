"""The form of a connection of type `rallypoint` in Airflow's UI, as provider info describes it. Data alone."""

from __future__ import annotations

from typing import Any

from rallypoint.backends.site import KINDS, KUBERNETES, LOCAL
from rallypoint.provider.connections.connection import CONN_TYPE, POLICIES

__all__ = ["CONNECTION_TYPE"]


def _text(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


_FIELDS: dict[str, Any] = {
    "platform": {
        "label": "Platform",
        "description": "Backend of the jobs: local (processes of the worker's machine) or kubernetes (pods).",
        "schema": {"type": "string", "enum": sorted(KINDS, key=(LOCAL, KUBERNETES).index), "default": LOCAL},
    },
    "kubernetes_conn_id": _text(
        "Kubernetes connection",
        "kubernetes: ID of the Kubernetes connection to the cluster. Default: the kubeconfig, or the cluster of the "
        "worker's pod.",
    ),
    "namespace": _text("Namespace", "kubernetes: namespace of the jobs."),
    "image": _text("Image", "kubernetes: default container image."),
    "account": _text("Service account", "kubernetes: default service account of the node pods."),
    "coordinator_account": _text("Coordinator service account", "kubernetes: default service account of the coordinator pod."),
    "queue": _text("Queue", "kubernetes: default Kueue local queue."),
    "supervisor_image": _text(
        "Supervisor image",
        "kubernetes: image of the supervisor pod, which takes over a job when its task stops.",
    ),
    "network_policy": _text(
        "Network policy",
        "kubernetes: on, or networks of the API server such as 10.0.0.0/28: default NetworkPolicy of jobs.",
    ),
    "home": _text("Home", "local: folder of the jobs. Default: $RALLYPOINT_HOME, or ~/.rallypoint."),
    "arguments": {
        "label": "Arguments",
        "description": "Default DLRover arguments of jobs, as a JSON object (docs/reference/arguments.md).",
        "schema": {"type": ["object", "string", "null"], "format": "json"},
    },
    "policies": {
        "label": "Policies",
        "description": f"Default job settings, as a JSON object of {', '.join(POLICIES)}.",
        "schema": {"type": ["object", "string", "null"], "format": "json"},
    },
}

#: An item of `connection-types`.
CONNECTION_TYPE: dict[str, Any] = {
    "connection-type": CONN_TYPE,
    "hook-class-name": "rallypoint.provider.connections.hook.RallypointHook",
    "hook-name": "Rallypoint",
    "ui-field-behaviour": {
        "hidden-fields": ["host", "schema", "login", "port"],
        "relabeling": {"password": "Token"},
        "placeholders": {
            "password": "kubernetes: bearer token; replaces other credentials",
            "policies": '{"fault_tolerance": {"retry_limit": 3}}',
            "arguments": '{"max_restarts": 3, "precheck": 1}',
        },
    },
    "conn-fields": _FIELDS,
}
