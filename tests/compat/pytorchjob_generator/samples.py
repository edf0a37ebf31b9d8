"""Settings to begin with, and ways into what they are rendered to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from rallypoint.compat.pytorchjob_generator import Settings, appwrapper, read_settings
from rallypoint.job.document import read_document, write_yaml

__all__ = ["BARE", "BASE", "CHART", "container", "edited", "rendered", "replicas", "settings", "templates"]

FOLDER = Path(__file__).parents[2] / "data" / "generator"

#: The settings of the chart's own tests, and what the chart makes of them.
BASE: dict[str, Any] = read_document(FOLDER / "helloworld.settings.yaml")
CHART: dict[str, Any] = yaml.safe_load((FOLDER / "helloworld.yaml").read_text())

#: The settings without which nothing is rendered.
BARE: dict[str, Any] = {"jobName": "bare", "containerImage": "img"}


def settings(base: Mapping[str, Any] = BASE, /, **changes: Any) -> Settings:
    """The settings with some in the place of the base's."""
    return read_settings({**copy.deepcopy(dict(base)), **changes})


def rendered(base: Mapping[str, Any] = BASE, /, **changes: Any) -> dict[str, Any]:
    """The AppWrapper as Kubernetes reads it: written, and read by a reader that knows nothing of ours."""
    written = write_yaml(appwrapper(settings(base, **changes)))
    return dict(yaml.safe_load(written))


def job(document: dict[str, Any]) -> dict[str, Any]:
    """The PyTorchJob, which is the last component."""
    return dict(document["spec"]["components"][-1]["template"])


def replicas(document: dict[str, Any]) -> dict[str, Any]:
    """Master and Worker."""
    return dict(job(document)["spec"]["pytorchReplicaSpecs"])


def templates(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pods of the master and of the workers."""
    return (replica["template"] for replica in replicas(document).values())


def container(document: dict[str, Any]) -> dict[str, Any]:
    """The container of the master."""
    return dict(next(templates(document))["spec"]["containers"][0])


def edited(*edits: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """What the chart makes of its base, with each edit done to the template of every pod."""
    document = copy.deepcopy(CHART)
    for replica in job(document)["spec"]["pytorchReplicaSpecs"].values():
        replica["template"] = copy.deepcopy(replica["template"])
        for edit in edits:
            edit(replica["template"])
    return document
