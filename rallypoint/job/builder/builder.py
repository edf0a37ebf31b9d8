"""`JobBuilder`: build a job with one or several roles by method calls, with DLRover's names.

The builder only collects values. `build()` computes the counts, writes a job document and validates it; the order of calls does
not matter, and one `JobError` contains all problems. The builder imports no user code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from typing_extensions import Self

from rallypoint.job.builder.calls import JobCalls, RoleCalls
from rallypoint.job.builder.command import Command, read_command
from rallypoint.job.builder.document import draft
from rallypoint.job.builder.job import Job
from rallypoint.job.errors import JobError, Problem, show

__all__ = ["JobBuilder", "RoleBuilder", "TrainBuilder"]

B = TypeVar("B", bound="JobBuilder")

_VARIABLES = "a dict of environment variables"


class JobBuilder:
    """Builds a job; each method returns the builder, `run`, `workload` and `train` the builder of a role.

    `end()` of a role is optional: a role's builder has the methods of the job's, too.
    """

    def __init__(self, calls: JobCalls | None = None) -> None:
        self.calls = calls or JobCalls()
        self._next_role: str | None = None

    def node_num(self, num: int = 1) -> Self:
        """Set how many nodes the job may use; 1 by default."""
        self.calls.nodes = num
        return self

    def device_per_node(self, num: int = 8) -> Self:
        """Set how many devices each node has; 8 by default."""
        self.calls.devices = num
        return self

    def device_type(self, device_type: str = "GPU") -> Self:
        """Set what a device is: `GPU`, or `CPU` for cores."""
        self.calls.kind = device_type
        return self

    def config(self, config: Any = None) -> Self:
        """Set the job's own settings: a dict, a `DictConfig` or an `argparse.Namespace`; several are merged."""
        self.calls.configs.append(config)
        return self

    def global_env(self, env: Mapping[str, Any] | None) -> Self:
        """Add environment variables of all roles; None as a value removes one. Those of a role win."""
        _merge(self.calls.env, env, "global_env", self.calls.wrong)
        return self

    def role(self, role: str) -> Self:
        """Name the role that the next `run` or `train` defines; upper case is lower case."""
        self.calls.wrong += _undefined(self._next_role)
        self._next_role = role
        return self

    def run(self, entrypoint: str) -> RoleBuilder[Self]:
        """Define a role of independent instances; `role` has named it."""
        return self._add(RoleBuilder(self, self._named("run"), entrypoint))

    def workload(self, role: str, entrypoint: str) -> RoleBuilder[Self]:
        """Do `role` and `run` in one call."""
        return self.role(role).run(entrypoint)

    def train(self, entrypoint: str) -> TrainBuilder[Self]:
        """Define an elastic role: `pkg.module.function`, `pkg.module:Class`, `train.py --lr 1` or `-m pkg.train`."""
        role, self._next_role = self._next_role, None
        return self._add(TrainBuilder(self, role, entrypoint))

    def by_dlrover_run_cmd(self, cmd: str) -> Self:
        """Define an elastic role by a command line of `torchrun`, `dlrover-run` or `rallypoint-agent run`.

        Raises:
            JobError: names each flag that is unknown or wrong.

        """
        command = read_command(cmd)
        role, self._next_role = self._next_role, None
        self._add(TrainBuilder(self, role or command.name or None, cmd, command))
        return self

    def with_collocation(self, *roles: str) -> Self:
        """Place roles together: group I of each is on the same node and shares its devices. They may be defined later."""
        self.calls.collocations.append(roles)
        return self

    def with_collocation_all(self, *exclude: str) -> Self:
        """Place all roles together, without those named here."""
        self.calls.collocate_all.append(exclude)
        return self

    def no_setup_process_group(self) -> Self:
        """Call the functions of elastic roles without a process group; the environment for one is set."""
        self.calls.process_group = False
        return self

    def skip_node_check(self) -> Self:
        """Do not check nodes before training, whatever a command line asks for."""
        self.calls.node_check = False
        return self

    def build(self) -> Job:
        """Return the job; later calls of the builder do not change it.

        Raises:
            JobError: names every problem with its path.

        """
        document, wrong = draft(self.calls)
        return Job.of(document, [*wrong, *_undefined(self._next_role)])

    def _named(self, method: str) -> str:
        role, self._next_role = self._next_role, None
        if role is None:
            raise JobError([Problem(path="role", text=f"is missing; call role(name) before {method}()")])
        return role

    def _add(self, role: R) -> R:
        self.calls.roles.append(role.calls)
        return role


class RoleBuilder(Generic[B]):
    """A role of independent instances, and every method of its job's builder."""

    elastic = False

    def __init__(self, parent: B, role: str | None, entrypoint: Any, command: Command | None = None) -> None:
        self._parent = parent
        self.calls = RoleCalls(elastic=self.elastic, written=role, entry=entrypoint, command=command)

    def total(self, num: int = 1) -> Self:
        """Set how many instances the whole job has; 0 declares a role that runs nothing."""
        self.calls.total = num
        return self

    def per_group(self, num: int = 1) -> Self:
        """Set how many instances one group has, which is on one node."""
        self.calls.per_group = num
        return self

    def env(self, env: Mapping[str, Any] | None = None) -> Self:
        """Add environment variables; None as a value removes one of `global_env`."""
        _merge(self.calls.env, env, "env", self.calls.wrong)
        return self

    def envs(self, env: Mapping[str, Any] | None = None) -> Self:
        """Do the same as `env`."""
        return self.env(env)

    def resource(
        self,
        cpu: float | Mapping[str, Any] | None = None,
        memory: int | None = None,
        disk: int | None = None,
        accelerator: float | None = None,
        **others: Any,
    ) -> Self:
        """Set what one instance needs; a role that names nothing needs one device.

        Args:
            cpu: cores; or all resources as one dict.
            memory, disk: MiB. `mem` is another name of memory.
            accelerator: devices, or a fraction of one; `gpu` and `acc` are other names.
            others: these names, and `user_defined` (`ud_resource`) with amounts by name.

        """
        given = dict(cpu) if isinstance(cpu, Mapping) else {"cpu": cpu}
        given |= {"memory": memory, "disk": disk, "accelerator": accelerator} if not isinstance(cpu, Mapping) else {}
        self.calls.needs.update({key: value for key, value in {**given, **others}.items() if value is not None})
        return self

    def not_driver(self) -> Self:
        """Make the role a server: it is ended when all drivers have succeeded."""
        self.calls.driver = False
        return self

    def enable_node_group_failover(self, group_label_key: str, timeout: float = 300) -> Self:
        """Replace all nodes with the same value of a label when the replacement of one stays pending for `timeout` seconds."""
        self.calls.failover = (group_label_key, timeout)
        return self

    def end(self) -> B:
        """Return the builder of the job."""
        return self._parent

    # --- the methods of the job's builder, which make end() optional ---

    def node_num(self, num: int = 1) -> B:
        """Set how many nodes the job may use."""
        return self._parent.node_num(num)

    def device_per_node(self, num: int = 8) -> B:
        """Set how many devices each node has."""
        return self._parent.device_per_node(num)

    def device_type(self, device_type: str = "GPU") -> B:
        """Set what a device is."""
        return self._parent.device_type(device_type)

    def config(self, config: Any = None) -> B:
        """Set the job's own settings."""
        return self._parent.config(config)

    def global_env(self, env: Mapping[str, Any] | None) -> B:
        """Add environment variables of all roles."""
        return self._parent.global_env(env)

    def role(self, role: str) -> B:
        """Name the next role."""
        return self._parent.role(role)

    def run(self, entrypoint: str) -> RoleBuilder[B]:
        """Define a role of independent instances."""
        return self._parent.run(entrypoint)

    def workload(self, role: str, entrypoint: str) -> RoleBuilder[B]:
        """Do `role` and `run` in one call."""
        return self._parent.workload(role, entrypoint)

    def train(self, entrypoint: str) -> TrainBuilder[B]:
        """Define an elastic role."""
        return self._parent.train(entrypoint)

    def by_dlrover_run_cmd(self, cmd: str) -> B:
        """Define an elastic role by a command line."""
        return self._parent.by_dlrover_run_cmd(cmd)

    def with_collocation(self, *roles: str) -> B:
        """Place roles together."""
        return self._parent.with_collocation(*roles)

    def with_collocation_all(self, *exclude: str) -> B:
        """Place all roles together."""
        return self._parent.with_collocation_all(*exclude)

    def no_setup_process_group(self) -> B:
        """Call functions without a process group."""
        return self._parent.no_setup_process_group()

    def skip_node_check(self) -> B:
        """Do not check nodes before training."""
        return self._parent.skip_node_check()

    def build(self) -> Job:
        """Return the job."""
        return self._parent.build()


class TrainBuilder(RoleBuilder[B]):
    """An elastic role."""

    elastic = True

    def nnodes(self, num: int, most: int | None = None) -> Self:
        """Set the number of nodes, or MIN and MAX of them."""
        self.calls.least, self.calls.most = num, most
        return self

    def nproc_per_node(self, num: int) -> Self:
        """Set the number of workers on each node."""
        self.calls.workers = num
        return self


R = TypeVar("R", bound=RoleBuilder[Any])


def _merge(known: dict[str, Any], env: Any, path: str, wrong: list[Problem]) -> None:
    """Add variables to those that are known; None is no variable."""
    if isinstance(env, Mapping) and all(isinstance(name, str) for name in env):
        known.update(env)
    elif env is not None:
        wrong.append(Problem(path=path, text=f"{show(env)} is not allowed; expected {_VARIABLES}"))


def _undefined(role: Any) -> list[Problem]:
    """Return the problem of a role that was named, and that no call has defined."""
    told = "was named and not defined; call run() or train() after role()"
    return [] if role is None else [Problem(path="role", text=f"{show(role)} {told}")]
