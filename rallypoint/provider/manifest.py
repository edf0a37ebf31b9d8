"""Build the submitted manifest from an operator's arguments: from settings of the pytorchjob-generator, or unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.compat.pytorchjob_generator import appwrapper, read_settings
from rallypoint.job import JobError
from rallypoint.job.errors import Problem, show
from rallypoint.provider.naming import default_name
from rallypoint.wire.plan import Kind

__all__ = ["Manifest", "annotated", "from_settings", "named"]

#: Longest `jobName` of the generator's settings.
_JOB_NAME_LIMIT = 50


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """An AppWrapper or a PyTorchJob.

    `name` is the name of the job; `kind` is the kind to convert the manifest to, None to keep it.
    """

    name: str
    manifest: Mapping[str, Any]
    kind: Kind | None = None


def from_settings(document: Mapping[str, Any], key: Mapping[str, Any], *, name: str = "") -> dict[str, Any]:
    """Return the AppWrapper of a settings.yaml; raises `JobError`.

    It is called `name`; where that is "", after the `jobName` of the settings and the task instance that `key` names, so that
    all of its tries mean one job and no other task instance does.
    """
    prefix = document.get("jobName")
    if not name and isinstance(prefix, str) and prefix:
        name = default_name(**key, prefix=prefix, limit=_JOB_NAME_LIMIT)
    return appwrapper(read_settings({**document, **({"jobName": name} if name else {})}))


def named(document: Mapping[str, Any], *, name: str = "") -> dict[str, Any]:
    """Return a manifest with the given name, or else its own name. Raises `JobError` if it has none."""
    metadata = document.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise JobError(
            [
                Problem(
                    path="manifest.metadata",
                    text=f"{show(metadata)} is not allowed; expected a mapping such as {{name: JOB_NAME}}",
                )
            ]
        )
    given = name or metadata.get("name")
    if not isinstance(given, str) or not given:
        raise JobError(
            [
                Problem(
                    path="manifest.metadata.name",
                    text=f"{show(given)} is not allowed; expected a non-empty text, the name of the job",
                )
            ]
        )
    return {**document, "metadata": {**metadata, "name": given}}


def annotated(manifest: Mapping[str, Any], notes: Mapping[str, str]) -> dict[str, Any]:
    """Return the manifest with annotations, so that two tasks never share a job by accident."""
    metadata = manifest["metadata"]
    return {**manifest, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **notes}}}
