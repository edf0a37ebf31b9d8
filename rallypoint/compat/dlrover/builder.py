"""DLRover's builder: that of `rallypoint.job.builder`, with DLRover's names on the built job and its kind of errors."""

from __future__ import annotations

import contextlib
import copy
import os
import secrets
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from rallypoint.compat.dlrover.config import DLConfig, JobConfig, workloads_of
from rallypoint.compat.dlrover.enums import RLRoleType
from rallypoint.job.builder import Job, JobBuilder, RoleBuilder, TrainBuilder
from rallypoint.job.builder.calls import JobCalls
from rallypoint.job.builder.settings import PREFIX, from_environment
from rallypoint.job.errors import JobError

__all__ = ["DLJob", "DLJobBuilder", "RLJob", "RLJobBuilder", "RLRoleType", "submit"]

_NOSET = (
    *("CUDA", "ROCR", "HIP", "TPU", "ASCEND_RT", "HABANA"),
    "NEURON_RT",
)


@contextlib.contextmanager
def _as_validation_error() -> Iterator[None]:
    """Raise a `JobError` as pydantic's error, which is a `ValueError`: what scripts of DLRover catch."""
    try:
        yield
    except JobError as error:
        details = [
            InitErrorDetails(
                type=PydanticCustomError("job", "{text}", {"text": str(problem)}),
                loc=tuple(problem.path.split(".")),
                input=None,
            )
            for problem in error.problems
        ]
        raise ValidationError.from_exception_data("DLJob", details) from error


class DLJob(DLConfig):
    """A built job."""

    @property
    def node_num(self) -> int:
        """Machines."""
        return self.node_number

    @property
    def device_type(self) -> str:
        """What a device is."""
        return self.accelerator_type.value

    @property
    def config(self) -> Any:
        """The job's own settings."""
        return self.user_config

    @property
    def env(self) -> Any:
        """Variables of all roles."""
        return self.global_envs

    def get_workload(self, role: str) -> Any:
        """Return a role by its name."""
        return self.workloads[role]

    def submit(self, job_name: str | None = None, blocking: bool = True, **settings: Any) -> int:  # noqa: FBT001, FBT002  DLRover has it so
        """Run the job; see `rallypoint.job.builder.Job.submit`."""
        with _as_validation_error():
            given = from_environment({**settings, **({} if job_name is None else {"job_name": job_name})})
        written = job_name or os.environ.get(f"{PREFIX}JOB_NAME")  # as it is shown; `Job.submit` has it in lower case
        name = written or f"dlrover-{secrets.token_hex(3)}"
        config = JobConfig(dl_config=self, job_name=name, given=given)
        # By name: scripts replace this function in the module.
        code: int = sys.modules[__name__].__dict__["submit"](config, blocking)
        return code


def submit(config: JobConfig, blocking: bool = True) -> int:  # noqa: FBT001, FBT002  DLRover has it so
    """Run a job with its settings."""
    settings = {name: value for name, value in config.given.values.items() if name != "job_name"}
    return config.dl_config.job.submit(config.job_name, blocking, **settings)


class _Role(RoleBuilder[Any]):
    """Methods of DLRover's roles that say nothing here."""

    _sub_stage: list[Any]

    @property
    def _env(self) -> dict[str, Any]:
        return self.calls.env

    def sub_stage(self, sub_stage: list[Any] | None = None) -> Any:
        """Keep stages, which nothing reads; DLRover does not read them either."""
        self._sub_stage = sub_stage or []
        return self

    def disable_ray_auto_visible_device(self) -> Any:
        """Tell Ray to leave the variables of visible devices alone."""
        return self.env({f"RAY_EXPERIMENTAL_NOSET_{name}_VISIBLE_DEVICES": "true" for name in _NOSET})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._parent, name)  # the roles of RLJobBuilder


class _Train(_Role, TrainBuilder[Any]):
    """An elastic role."""


class DLJobBuilder(JobBuilder):
    """Builds a `DLJob`."""

    def run(self, entrypoint: str) -> Any:
        """Define a role of independent instances."""
        with _as_validation_error():
            return self._add(_Role(self, self._named("run"), entrypoint))

    def train(self, entrypoint: str) -> Any:
        """Define an elastic role."""
        role, self._next_role = self._next_role, None
        return self._add(_Train(self, role, entrypoint))

    def by_dlrover_run_cmd(self, cmd: str) -> Any:
        """Define an elastic role by a command line."""
        with _as_validation_error():
            return super().by_dlrover_run_cmd(cmd)

    def as_task_stream(self) -> Any:
        """Do nothing: every job is one."""
        return self

    def build(self) -> Any:
        """Return the job; raises pydantic's `ValidationError` with every problem."""
        with _as_validation_error():
            job = super().build()
        return self._shown(job)

    def _shown(self, job: Job) -> DLJob:
        return DLJob(*self._parts(job))

    def _parts(self, job: Job) -> tuple[Any, ...]:
        calls = copy.deepcopy(self.calls)
        workloads, collocations = workloads_of(job, calls)
        return job, workloads, collocations, job.to_document().get("config", {}), calls.env


class RLJob(DLJob):
    """A job of reinforcement learning."""


class RLJobBuilder(DLJobBuilder):
    """The roles of reinforcement learning by name."""

    def __init__(self) -> None:
        names = tuple(role.name.lower() for role in RLRoleType)
        super().__init__(JobCalls(required=("actor",), allowed=names, never_collocated=("trainer",)))

    def trainer(self, entrypoint: str) -> Any:
        """Define the driver."""
        return self.role("TRAINER").run(entrypoint).resource(cpu=4, memory=8192)

    def actor(self, entrypoint: str) -> Any:
        """Define the elastic role of the policy."""
        return self.role("ACTOR").train(entrypoint).not_driver()

    def rollout(self, entrypoint: str) -> Any:
        """Define the role that generates samples."""
        return self.role("ROLLOUT").run(entrypoint).not_driver()

    def reference(self, entrypoint: str) -> Any:
        """Define the role of the reference model."""
        return self.role("REFERENCE").run(entrypoint).not_driver()

    def reward(self, entrypoint: str) -> Any:
        """Define the role of the reward model."""
        return self.role("REWARD").run(entrypoint).not_driver()

    def critic(self, entrypoint: str) -> Any:
        """Define the elastic role of the value model."""
        return self.role("CRITIC").train(entrypoint).not_driver()

    def _shown(self, job: Job) -> DLJob:
        return RLJob(*self._parts(job))


def __getattr__(name: str) -> Any:
    # `dlrover.python.unified.api.builder.base` and `.rl` are this module, too.
    if name in {"base", "rl"}:
        return sys.modules[__name__]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
