"""Apply the defaults of a connection to a job. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rallypoint.job import ElasticJob, JobError, load_job
from rallypoint.job.annotations import PREFIX
from rallypoint.job.errors import redacting
from rallypoint.job.spelling import completed, spell
from rallypoint.provider.connections.connection import POLICIES, Defaults
from rallypoint.provider.connections.locating import PlaceError
from rallypoint.wire.masked import HIDDEN

__all__ = ["check_policies", "settings_with", "with_arguments", "with_defaults", "with_policies"]

#: Fields of a role, and their names in a connection.
_OF_ROLES = {
    "image": "image",
    "service_account": "account",
    "coordinator_service_account": "coordinator_account",
    "queue": "queue",
}

#: Keys of a settings.yaml, and their names in a connection.
_OF_SETTINGS = {"containerImage": "image", "queueName": "queue", "serviceAccountName": "account"}


#: A number of nodes that every node unit divides, to validate policies without a job.
_ANY = {"name": "any", "entrypoint": "any.py"}

#: Texts that are no credentials.
_PLAIN = re.compile(r"[a-z][a-z_.-]{0,60}(\[\d+\][a-z_.-]{0,60})*|[-+]?[0-9.]{1,12}[a-z%]{0,2}")


def check_policies(conn_id: str, defaults: Defaults) -> None:
    """Raise `PlaceError` for invalid policies and arguments of a connection; the error names the connection, not the DAG.

    A policy and an argument for the same field must have equal values.
    """
    try:
        with redacting(_plain):
            spelled = spell({**_ANY, **defaults.policies, **defaults.arguments})
            # The job sets the number of nodes.
            load_job({key: part for key, part in spelled.document.items() if key in (*_ANY, *POLICIES)}, based=False)
    except JobError as error:
        told = "; ".join(f"{_section(problem.path, defaults)}.{problem.path}: {problem.text}" for problem in error.problems)
        raise PlaceError(f"connection {conn_id!r}: {told}") from error


def _plain(_name: str, text: str) -> str:
    """Return a text of a connection as an error shows it: words, durations and paths of fields, and nothing else."""
    return text if _PLAIN.fullmatch(text) else HIDDEN


def _section(path: str, defaults: Defaults) -> str:
    return "arguments" if path in defaults.arguments else "policies"


def with_arguments(document: Mapping[str, Any], conn_arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job document with arguments that neither it nor its annotations set; raises `JobError`."""
    return completed(document, conn_arguments, at=lambda argument: f"the connection's arguments.{argument.name}")


def with_policies(document: Mapping[str, Any], policies: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a job document whose policy blocks are completed by `policies`, key by key.

    A block that AppWrapper annotations set is not completed.
    """
    whole = dict(document)
    annotated = any(str(key).startswith(PREFIX) for key in _mapping(document.get("annotations")))
    for name, block in policies.items():
        own = document.get(name)
        if (name == "fault_tolerance" and annotated) or (own is not None and not isinstance(own, Mapping)):
            continue
        whole[name] = {**block, **(own or {})}
    return whole


def with_defaults(job: ElasticJob, defaults: Defaults) -> ElasticJob:
    """Return the job with defaults for values that its roles do not set."""
    if defaults.network_policy and not job.network_policy:
        job = ElasticJob.model_validate({**job.to_document(), "network_policy": defaults.network_policy})
    words = {field: value for field, word in _OF_ROLES.items() if (value := getattr(defaults, word))}
    if not words:
        return job
    roles = tuple(
        role.model_copy(update={field: value for field, value in words.items() if not getattr(role, field)})
        for role in job.roles
    )
    return job.model_copy(update={"roles": roles})


def settings_with(document: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    """Return settings of the pytorchjob-generator with defaults for missing keys; null counts as set."""
    words = {key: value for key, word in _OF_SETTINGS.items() if (value := getattr(defaults, word))}
    return {**words, **document}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
