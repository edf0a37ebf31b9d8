"""What Airflow's provider manager reads of this distribution."""

from __future__ import annotations

from typing import Any

from rallypoint.provider.connections.form import CONNECTION_TYPE
from rallypoint.version import __version__

__all__ = ["get_provider_info"]

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
    """Return the provider's description: only what exists."""
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
        # Found by the entry point `airflow.plugins`, too: Airflow reads this list only where it discovers providers at once.
        "plugins": [{"name": "rallypoint", "plugin-class": "rallypoint.plugin.registration.RallypointPlugin"}],
        "extra-links": ["rallypoint.provider.links.ElasticTrainingLink"],
        "triggers": [
            {
                "integration-name": _NAME,
                "python-modules": ["rallypoint.provider.trigger", "rallypoint.provider.sensing.watching"],
            }
        ],
    }
