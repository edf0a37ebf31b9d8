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
        "description": "What runs the jobs: processes of the worker's machine, or pods of a cluster.",
        "schema": {"type": "string", "enum": sorted(KINDS, key=(LOCAL, KUBERNETES).index), "default": LOCAL},
    },
    "kubernetes_conn_id": _text(
        "Kubernetes connection",
        "kubernetes: id of the connection of type kubernetes that says how the cluster is reached; without one as kubectl "
        "finds it, or the cluster of the worker's own pod.",
    ),
    "namespace": _text("Namespace", "kubernetes: where the objects of jobs are."),
    "image": _text("Image", "kubernetes: container image of jobs that name none."),
    "account": _text("Service account", "kubernetes: service account of the nodes' pods, of jobs that name none."),
    "coordinator_account": _text(
        "Coordinator's service account", "kubernetes: service account of the coordinator's pod, of jobs that name none."
    ),
    "queue": _text("Queue", "kubernetes: Kueue's local queue of jobs that name none."),
    "supervisor_image": _text(
        "Supervisor's image",
        "kubernetes: what a supervisor in a pod of its own runs, when a task has to leave its job to somebody.",
    ),
    "network_policy": _text(
        "Network policy",
        "kubernetes: on, or the networks of the API server such as 10.0.0.0/28: a NetworkPolicy for jobs that do not say.",
    ),
    "home": _text("Home", "local: folder of the jobs' state; without one $RALLYPOINT_HOME, or ~/.rallypoint."),
    "arguments": {
        "label": "Arguments",
        "description": "A JSON object of DLRover's arguments (docs/reference/arguments.md) for jobs that do not say them.",
        "schema": {"type": ["object", "string", "null"], "format": "json"},
    },
    "policies": {
        "label": "Policies",
        "description": f"A JSON object of {', '.join(POLICIES)}: what jobs have there that they do not say themselves.",
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
            "password": "kubernetes: bearer token in the place of what else authenticates",
            "policies": '{"fault_tolerance": {"retry_limit": 3}}',
            "arguments": '{"max_restarts": 3, "precheck": 1}',
        },
    },
    "conn-fields": _FIELDS,
}
