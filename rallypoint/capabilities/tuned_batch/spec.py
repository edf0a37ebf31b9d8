"""The tuned batch in a job document, and what its fields mean in the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from rallypoint.job.part import Model
from rallypoint.job.quantity import quantity
from rallypoint.job.rules import FLAG, QUANTITY

__all__ = ["ARGUMENTS", "FIELDS", "RoleFields", "plan_fields"]


class RoleFields(Model):
    """Fields of a role."""

    other_names: ClassVar[Mapping[str, str]] = {"auto_tunning": "auto_tuning"}

    auto_tuning: Annotated[bool | None, FLAG] = None
    """True: the batch size grows until a worker uses 90 % of its memory (docs/guides/tuned-batch.md). DLRover's name is
    `auto_tunning`.
    """
    auto_tuning_memory: Annotated[str, QUANTITY] = ""
    """With `auto_tuning`: maximum memory that a worker may use. Default: the memory of the worker's device."""


#: Fields that the capability adds to blocks of the job document.
FIELDS: Mapping[str, type[Model]] = {"roles": RoleFields}

#: The fields that DLRover's arguments mean, and the defaults that DLRover documents.
ARGUMENTS: Mapping[str, Mapping[str, str]] = {"auto_tunning": {"block": "roles", "field": "auto_tuning", "seed": "False"}}


def plan_fields(_job: Model, role: RoleFields) -> dict[str, Any]:
    """Return the fields of a role's plan."""
    return {
        "auto_tuning": bool(role.auto_tuning),
        "tuning_memory": math.floor(quantity(role.auto_tuning_memory)) if role.auto_tuning_memory else 0,
    }
