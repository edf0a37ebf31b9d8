"""A role under DLRover's names, in a built job or made by a script: `SimpleWorkloadDesc` and `ElasticWorkloadDesc`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from typing_extensions import Self

from rallypoint.compat.dlrover.enums import WorkloadEntrypointType
from rallypoint.job.builder.entry import ENTRY_ALLOWED, read_entry
from rallypoint.job.values import RefusedError

__all__ = ["BaseWorkloadDesc", "ElasticWorkloadDesc", "ResourceDesc", "SimpleWorkloadDesc", "get_entrypoint_type"]

_ALIASES = {
    "mem": "memory",
    "acc": "accelerator",
    "gpu": "accelerator",
    "ud_resource": "user_defined",
    "entrypoint": "entry_point",
    "num": "total",
    "number": "total",
    "env": "envs",
    "environment": "envs",
    "res": "resource",
}


def get_entrypoint_type(entry_point: str) -> WorkloadEntrypointType | None:
    """Return whether an entrypoint is a function or a command; None for anything else."""
    try:
        function = ":" in str(read_entry(entry_point)["entrypoint"])
    except RefusedError:
        return None
    return WorkloadEntrypointType.MODULE_FUNC if function else WorkloadEntrypointType.PY_CMD


def _with_dots(entry_point: object) -> object:
    """Return `a::b` as `a.b`, as DLRover does; arguments of a script keep their colons."""
    if not isinstance(entry_point, str) or not (words := entry_point.split(maxsplit=1)):
        return entry_point
    return " ".join((words[0].replace("::", "."), *words[1:]))


class _Desc(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _read_aliases(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        found: dict[str, Any] = {}
        for word, value in given.items():
            name = str(_ALIASES.get(word, word))
            if name in found and found[name] != value:
                earlier = found[name]
                raise ValueError(
                    f"{word}: {value!r} is not allowed; expected {earlier!r}, because the field {name} and its aliases "
                    "must have the same value"
                )
            found[name] = value
        return found


class ResourceDesc(_Desc):
    """Resources of one instance; memory and disk in MiB. In a built job, a share of a device is rounded."""

    cpu: float = Field(default=0.0, ge=0)
    memory: int = Field(default=0, ge=0)
    disk: int = Field(default=0, ge=0)
    accelerator: float = Field(default=0.0, ge=0)
    user_defined: dict[str, float] = Field(default_factory=dict)

    def is_empty(self) -> bool:
        """Return whether an instance needs nothing."""
        return not any((self.cpu, self.memory, self.disk, self.accelerator, self.user_defined))


class BaseWorkloadDesc(_Desc):
    """One role. `backend` is `elastic` or `simple`, `group` the name of its collocation."""

    backend: str
    entry_point: Annotated[str, BeforeValidator(_with_dots)]
    total: int = Field(default=1, ge=0)
    per_group: int = Field(default=1, ge=1)
    envs: dict[str, str] = Field(default_factory=dict)
    resource: ResourceDesc = Field(default_factory=ResourceDesc)
    is_driver: bool = True
    group: str | None = None
    rank_based_gpu_selection: bool = False

    @property
    def entry_point_type(self) -> WorkloadEntrypointType | None:
        """Whether the entrypoint is a function or a command."""
        return get_entrypoint_type(self.entry_point)

    @field_validator("entry_point")
    @classmethod
    def _check_entry_point(cls, entry_point: str) -> str:
        if get_entrypoint_type(entry_point) is None:
            raise ValueError(f"entry_point: {entry_point!r} is not allowed; expected {ENTRY_ALLOWED}")
        return entry_point

    @field_validator("resource")
    @classmethod
    def _check_resource(cls, resource: ResourceDesc) -> ResourceDesc:
        if resource.is_empty():
            # Scripts and DLRover's own tests look for these first words.
            raise ValueError("Resource must not be empty; expected one of cpu, memory, disk, accelerator or user_defined")
        return resource

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if self.total % self.per_group:
            raise ValueError(f"total: {self.total} is not allowed; expected a number divisible by per_group {self.per_group}")
        if self.rank_based_gpu_selection and (self.per_group == 1 or self.resource.accelerator > 1):
            raise ValueError(
                "rank_based_gpu_selection: True is allowed only if per_group is above 1 and each instance has at most 1 "
                "accelerator"
            )
        return self


class SimpleWorkloadDesc(BaseWorkloadDesc):
    """A role of independent instances."""

    backend: Literal["simple"] = "simple"


class ElasticWorkloadDesc(BaseWorkloadDesc):
    """A role whose instances form one process group."""

    backend: Literal["elastic"] = "elastic"
    comm_pre_check: bool = True
    comm_auto_setup_process_group: bool = True
