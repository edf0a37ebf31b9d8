"""Provider metadata for Airflow's provider manager."""

from __future__ import annotations

from typing import Any

from rallypoint.backends.site import KINDS, KUBERNETES, LOCAL, RAY
from rallypoint.provider.connections.connection import CONN_TYPE, POLICIES
from rallypoint.version import __version__

__all__ = ["CONNECTION_TYPE", "get_provider_info"]


def _text(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


_FIELDS: dict[str, Any] = {
    "platform": {
        "label": "Platform",
        "description": "Backend of the jobs: local (the worker's machine), kubernetes (pods) or ray (a Ray cluster).",
        "schema": {"type": "string", "enum": sorted(KINDS, key=(LOCAL, KUBERNETES, RAY).index), "default": LOCAL},
    },
    "kubernetes_conn_id": _text(
        "Kubernetes connection",
        "kubernetes: ID of the Kubernetes connection to the cluster. Default: the kubeconfig, or the cluster of the "
        "worker's pod.",
    ),
    "namespace": _text("Namespace", "kubernetes, ray: namespace of the jobs."),
    "address": _text("Address", "ray: URL of the dashboard, such as http://ray-head:8265."),
    "storage": _text(
        "Storage", "ray: folder of the job records on the head node, or fsspec URL. Default: ~/.rallypoint/ray/NAMESPACE."
    ),
    "runtime_env": {
        "label": "Runtime environment",
        "description": "ray: runtime environment of the nodes, as a JSON object. No secrets: it is stored with each job.",
        "schema": {"type": ["object", "string", "null"], "format": "json"},
    },
    "verify_ssl": {
        "label": "Verify TLS",
        "description": "ray: verify the certificate of an https address.",
        "schema": {"type": ["boolean", "null"], "default": True},
    },
    "ca_cert": _text(
        "CA certificates", "ray: certificates (PEM) that an https address is verified with. Default: the system's."
    ),
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
            "password": "kubernetes, ray: bearer token; replaces other credentials",
            "policies": '{"fault_tolerance": {"retry_limit": 3}}',
            "arguments": '{"max_restarts": 3, "precheck": 1}',
        },
    },
    "conn-fields": _FIELDS,
}


_NAME = "Rallypoint"

_OPTIONS = {
    "ui_connections": {
        "description": (
            'Comma-separated IDs of connections that the API server may open to show live data in the tab "Elastic '
            'training". The API server uses in-cluster credentials or a static token of the connection; it runs no '
            "plug-ins and reads no files. Other jobs are shown as published by their tasks."
        ),
        "version_added": "0.1.0",
        "type": "string",
        "example": "training,training_eu",
        "default": "",
    },
    "ui_publish_interval": {
        "description": (
            "Seconds between two updates of the XCom `rallypoint_page`, in which a task publishes the state of its "
            "running job; 0 publishes only the final state."
        ),
        "version_added": "0.1.0",
        "type": "float",
        "example": None,
        "default": "60",
    },
}


def get_provider_info() -> dict[str, Any]:
    """Return the metadata of the provider."""
    return {
        "package-name": "airflow-provider-rallypoint",
        "name": _NAME,
        "description": "Elastic PyTorch training for Airflow.",
        "versions": [__version__],
        "integrations": [{"integration-name": _NAME, "tags": ["software"]}],
        "hooks": [{"integration-name": _NAME, "python-modules": ["rallypoint.provider.connections.hook"]}],
        "config": {"rallypoint": {"description": "Rallypoint: elastic training.", "options": _OPTIONS}},
        "connection-types": [CONNECTION_TYPE],
        "operators": [
            {
                "integration-name": _NAME,
                "python-modules": [
                    "rallypoint.operators.appwrapper",
                    "rallypoint.operators.check",
                    "rallypoint.operators.delete",
                    "rallypoint.operators.resize",
                    "rallypoint.operators.training",
                ],
            }
        ],
        "task-decorators": [
            {"name": "elastic_training", "class-name": "rallypoint.decorators.elastic_training.elastic_training_task"}
        ],
        "sensors": [
            {
                "integration-name": _NAME,
                "python-modules": [
                    "rallypoint.sensors.hang",
                    "rallypoint.sensors.progress",
                    "rallypoint.sensors.rendezvous",
                    "rallypoint.sensors.state",
                ],
            }
        ],
        # Also registered by the entry point `airflow.plugins`: Airflow reads this list only if it loads providers eagerly.
        "plugins": [{"name": "rallypoint", "plugin-class": "rallypoint.plugin.registration.RallypointPlugin"}],
        "extra-links": ["rallypoint.provider.links.ElasticTrainingLink"],
        "triggers": [
            {
                "integration-name": _NAME,
                "python-modules": ["rallypoint.provider.trigger", "rallypoint.provider.sensing.watching"],
            }
        ],
    }
