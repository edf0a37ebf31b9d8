"""Names of DLRover that scripts of its builder import."""

from __future__ import annotations

import enum

__all__ = ["ACCELERATOR_TYPE", "DLStreamType", "RLRoleType"]


class ACCELERATOR_TYPE(str, enum.Enum):  # noqa: N801  DLRover's name
    """What a device is."""

    CPU = "CPU"
    GPU = "GPU"


class DLStreamType(enum.Enum):
    """Kind of a job; only the first is there."""

    TASK_STREAM = "TASK_STREAM"


class RLRoleType(str, enum.Enum):
    """Roles of `RLJobBuilder`."""

    TRAINER = "TRAINER"
    ACTOR = "ACTOR"
    ROLLOUT = "ROLLOUT"
    REFERENCE = "REFERENCE"
    REWARD = "REWARD"
    CRITIC = "CRITIC"
