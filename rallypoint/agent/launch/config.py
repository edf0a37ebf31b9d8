"""`LaunchConfig`: the fields of llutil's launcher in their order and with their defaults, then what torch added since.

Fields can be set one by one, as torch's can, so they are checked when they are used: by `launch_agent`, before it starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from rallypoint.agent.launch.std import Std

__all__ = ["DEFAULT_TIMEOUT", "SIGNALS", "LaunchConfig"]

#: Seconds that a rendezvous may take where nobody says otherwise.
DEFAULT_TIMEOUT = 900

#: Signals that the caller's process passes on to the agent.
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


class _Default(str):
    """A default that can be told apart from the same words said on purpose."""

    __slots__ = ()


_START_METHOD = _Default("spawn")


@dataclass
class LaunchConfig:
    """How `launch_agent` runs workers on this node.

    Attributes:
        min_nodes, max_nodes: bounds of the world.
        nproc_per_node: workers on this node.
        run_id: names the run, the same on all nodes; "" is replaced by a random one, with a warning.
        role: of the workers, told to them as ROLE_NAME.
        rdzv_endpoint: `HOST:PORT` where the nodes meet.
        rdzv_backend: `c10d`, `static`, `etcd`, `etcd-v2`, `zeus-adapter` or `rallypoint`.
        rdzv_configs: seconds and numbers for the rendezvous, by name; `timeout` is filled in from `rdzv_timeout`.
        rdzv_timeout: seconds; -1 leaves it to `rdzv_configs["timeout"]`, and that to 900.
        max_restarts: how often workers are restarted after a fault.
        monitor_interval: seconds between two health reports of this node. An end of a worker is seen at once, whatever it is.
        start_method: `spawn`, `fork` or `forkserver`; unset is `spawn`, in the quickest way that is known.
        log_dir: where a folder for the logs is made; None is a temporary one. It is kept in both cases.
        redirects: streams that go to a file; `tee`: to a file and to the console.
        metrics_cfg: `{"destination": "null" | "console" | "file", "path": ...}`.
        logs_specs: torch's; only None, see `log_dir`, `redirects` and `tee`.
        log_line_prefix_template: of teed lines, with torch's `${role_name}`, `${rank}` and `${local_rank}`.
        local_addr: address under which the other nodes reach this one; None finds it out.
        event_log_handler: only `null`.
        numa_options: torch's `NumaOptions`, or the word of its affinity mode; None binds workers to no CPUs.
        signals_to_handle: signals on which the caller's process ends the run, separated by commas.
        duplicate_stdout_filters, duplicate_stderr_filters: teed lines with one of the texts go to a file of their own, too.
        virtual_local_rank: LOCAL_RANK is 0 in every worker, and each sees its own GPU alone.
        shutdown_timeout: seconds from SIGTERM to SIGKILL; None is TORCH_ELASTIC_SHUTDOWN_TIMEOUT, and without that 30.

    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 30
    start_method: str = _START_METHOD
    log_dir: str | os.PathLike[str] | None = None
    redirects: Std | dict[int, Std] = Std.NONE
    tee: Std | dict[int, Std] = Std.NONE
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    _: KW_ONLY
    logs_specs: Any = None
    log_line_prefix_template: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = SIGNALS
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.rdzv_configs, Mapping):
            return  # refused when it is used, as every other field
        given = self.rdzv_timeout if self.rdzv_timeout != -1 else self.rdzv_configs.get("timeout", DEFAULT_TIMEOUT)
        self.rdzv_configs = {**self.rdzv_configs, "timeout": given}

    @property
    def chose_start_method(self) -> bool:
        """Whether somebody said how workers are started, be it `spawn`."""
        return self.start_method is not _START_METHOD

    def to_torch(self) -> Any:
        """Return torch's `LaunchConfig` of the same meaning, with the fields that the installed torch has."""
        from rallypoint.agent.launch.torch_side import to_torch  # noqa: PLC0415  torch is for those who ask for it

        return to_torch(self)
