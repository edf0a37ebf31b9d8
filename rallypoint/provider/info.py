"""What Airflow's provider manager reads of this distribution."""

from __future__ import annotations

from typing import Any

from rallypoint.version import __version__

__all__ = ["get_provider_info"]

_NAME = "Rallypoint"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description: only what exists."""
    return {
        "package-name": "airflow-provider-rallypoint",
        "name": _NAME,
        "description": "Elastic PyTorch training as a first-class citizen of Airflow.",
        "versions": [__version__],
        "integrations": [{"integration-name": _NAME, "tags": ["software"]}],
        "operators": [
            {
                "integration-name": _NAME,
                "python-modules": ["rallypoint.operators.appwrapper", "rallypoint.operators.training"],
            }
        ],
        "sensors": [{"integration-name": _NAME, "python-modules": ["rallypoint.sensors.job"]}],
        "triggers": [
            {"integration-name": _NAME, "python-modules": ["rallypoint.provider.trigger", "rallypoint.provider.watching"]}
        ],
    }
