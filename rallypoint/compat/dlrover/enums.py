"""Names of DLRover that scripts of its builder import."""

from __future__ import annotations

import enum

__all__ = [
    "ACCELERATOR_TYPE",
    "DLStreamType",
    "ExecutionResultType",
    "MasterStage",
    "MasterStateBackendType",
    "RLRoleType",
    "WorkloadEntrypointType",
]


class ACCELERATOR_TYPE(str, enum.Enum):  # noqa: N801  DLRover's name
    """What a device is."""

    CPU = "CPU"
    GPU = "GPU"


class DLStreamType(enum.Enum):
    """Kind of a job; only the first is there."""

    TASK_STREAM = "TASK_STREAM"


class ExecutionResultType(str, enum.Enum):
    """How an instance ended."""

    SUCCESS = "SUCCESS"
    FAIL = "FAIL"


class MasterStage(str, enum.Enum):
    """Phases of DLRover's master process."""

    INIT = "INIT"
    READY = "READY"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"


class MasterStateBackendType(enum.Enum):
    """Where DLRover's master process stores its state; `submit` refuses the setting, as Rallypoint stores a record."""

    RAY_INTERNAL = "RAY_INTERNAL"
    HDFS = "HDFS"
    IN_MEMORY = "IN_MEMORY"


class RLRoleType(str, enum.Enum):
    """Roles of `RLJobBuilder`."""

    TRAINER = "TRAINER"
    ACTOR = "ACTOR"
    ROLLOUT = "ROLLOUT"
    REFERENCE = "REFERENCE"
    REWARD = "REWARD"
    CRITIC = "CRITIC"


class WorkloadEntrypointType(str, enum.Enum):
    """Kinds of entrypoints: a function of a module, or a command line."""

    MODULE_FUNC = "MODULE_FUNC"
    PY_CMD = "PY_CMD"
