"""Snapshots in a job document, and in the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import model_validator
from typing_extensions import Self

from rallypoint.job.part import Model
from rallypoint.job.quantity import quantity
from rallypoint.job.rules import FLAG, QUANTITY, choice, refusal, whole
from rallypoint.wire.plan import ElasticMode

__all__ = ["ARGUMENTS", "FIELDS", "LATER", "RecoveryFields", "plan_fields"]


class RecoveryFields(Model):
    """Fields of the block `recovery`."""

    save_at_breakpoint: Annotated[bool, FLAG] = False
    """True: when a worker dies, the agent writes the last snapshot in memory to storage. If the script uses `Checkpoints`,
    Rallypoint takes a snapshot at each reported step.
    """
    training_elastic_mode: Annotated[str, choice(*(mode.value for mode in ElasticMode))] = "base"
    """`ucp`: the agents write the last snapshot to storage before workers restart; `base`: workers restart without this (an
    argument of DLRover).
    """
    replica_every: Annotated[int | None, whole(2, unit="steps")] = None
    """N: the snapshot of every Nth step is also copied to the memory of another node. Default: no copies."""
    replica_limit: Annotated[str, QUANTITY] = ""
    """Memory of one node, in bytes, for copies of other nodes' snapshots; required by `replica_every`."""

    @model_validator(mode="after")
    def _replicas_have_a_limit(self) -> Self:
        if (self.replica_every is None) == (not self.replica_limit):
            return self
        name, other = ("replica_limit", "replica_every") if self.replica_limit else ("replica_every", "replica_limit")
        raise refusal(f"no value, because {other} is not set; set both fields or none", at=name, value=getattr(self, name))


#: Fields that the capability adds to blocks of the job document.
FIELDS: Mapping[str, type[Model]] = {"recovery": RecoveryFields}

#: Fields that jobs of earlier versions did not have: with their defaults they are no part of a job's digest.
LATER: Mapping[str, tuple[str, ...]] = {"recovery": tuple(RecoveryFields.model_fields)}

#: The fields that DLRover's arguments mean, and the defaults that DLRover documents.
ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "training_elastic_mode": {"block": "recovery", "seed": "base"},
    "save_at_breakpoint": {"block": "recovery", "seed": "False"},
}


def plan_fields(job: Any, _role: Model) -> dict[str, Any]:
    """Return the fields of a role's plan."""
    recovery = job.recovery
    return {
        "save_at_breakpoint": recovery.save_at_breakpoint,
        "elastic_mode": ElasticMode(recovery.training_elastic_mode),
        "replica_every": recovery.replica_every or 0,
        "replica_limit": math.floor(quantity(recovery.replica_limit)) if recovery.replica_limit else 0,
    }
