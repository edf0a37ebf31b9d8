"""`LaunchConfig`: the fields of llutil's launcher in their order and with their defaults, then what torch added since.

Fields can be set one by one, as torch's can, so they are checked when they are used: by `launch_agent`, before it starts.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import signal
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from rallypoint.agent.workers.logs import Streams
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.incident import Culprit

__all__ = [
    "DEFAULT_TIMEOUT",
    "SIGNALS",
    "ChildFailedError",
    "LaunchConfig",
    "ProcessFailure",
    "RendezvousTimeoutError",
    "SignalException",
    "Std",
    "child_failed",
    "read_streams",
    "rendezvous_timed_out",
    "signalled",
    "to_torch",
]


class Std(enum.IntFlag):
    """The streams of a worker: torch's `Std`, which is taken in its place, too."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, text: str) -> Std | dict[int, Std]:
        """Return the value of the text `0|1|2|3` or `LOCAL_RANK:N,...`; raises `ValueError`."""
        if text in _WORDS:
            return cls(int(text))
        found = {}
        for item in text.split(","):
            rank, _, word = item.strip().partition(":")
            if not rank.isdecimal() or word not in _WORDS:
                raise ValueError(
                    f"Std: {text!r} is not allowed; expected 0 (no stream), 1 (stdout), 2 (stderr), 3 (both), or "
                    "one of these numbers per local rank, as in 0:3,1:1"
                )
            found[int(rank)] = cls(int(word))
        return found


_WORDS = tuple(str(number) for number in range(4))


def read_streams(redirects: object, tee: object) -> Streams:
    """Return the streams for files, and for files and console, from a `Std` or one per local rank; raises `ValueError`."""
    every, of = _read(redirects, "redirects")
    tee_every, tee_of = _read(tee, "tee")
    return Streams(redirects=every, redirects_of=of, tee=tee_every, tee_of=tee_of)


def _read(value: object, field: str) -> tuple[int, dict[int, int]]:
    if isinstance(value, Mapping):
        return 0, {_rank(rank, field): _number(std, field) for rank, std in value.items()}
    return _number(value, field), {}


def _rank(rank: object, field: str) -> int:
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
        raise ValueError(f"{field}: key {rank!r} is not allowed; expected a local rank, 0 or more")
    return rank


def _number(std: object, field: str) -> int:
    if isinstance(std, bool) or not isinstance(std, int) or not 0 <= std <= Std.ALL:
        raise ValueError(f"{field}: {std!r} is not allowed; expected a Std, or a dict from local rank to Std")
    return int(std)


#: Default rendezvous timeout in seconds.
DEFAULT_TIMEOUT = 900

#: Signals that the caller's process passes on to the agent.
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


class _Default(str):
    """A default value that differs in identity from the same text passed by a caller."""

    __slots__ = ()


_START_METHOD = _Default("spawn")


@dataclass
class LaunchConfig:
    """How `launch_agent` runs workers on this node.

    Attributes:
        min_nodes, max_nodes: bounds of the world.
        nproc_per_node: workers on this node.
        run_id: id of the run, the same on all nodes; "" is replaced by a random id, with a warning.
        role: value of the workers' variable ROLE_NAME.
        rdzv_endpoint: `HOST:PORT` of the rendezvous.
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
        """Whether the caller set `start_method`, also to `spawn`."""
        return self.start_method is not _START_METHOD

    def to_torch(self) -> Any:
        """Return torch's `LaunchConfig` of the same meaning, with the fields that the installed torch has."""
        return to_torch(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessFailure:
    """How one worker failed, where torch is not installed; `exitcode` is minus the signal that ended it."""

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    message: str


class ChildFailedError(RallypointError):
    """Workers of this node failed and the budget is spent; `failures` by global rank."""

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        told = "; ".join(f"rank {rank}: {failure.message} (exit code {failure.exitcode})" for rank, failure in failures.items())
        super().__init__(f"{name} failed: {told}")
        self.name, self.failures = name, dict(failures)


class SignalException(Exception):  # noqa: N818  torch's name
    """The run was ended by a signal, `sigval`, to the process that called `launch_agent`."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval


class RendezvousTimeoutError(RallypointError):
    """The nodes that a round needs did not come in time."""


def child_failed(name: str, failures: Mapping[int, tuple[Culprit, Path]]) -> Exception:
    """Return the exception for workers that failed, by global rank, each with the file of its recorded error."""
    try:
        from torch.distributed.elastic.multiprocessing import errors  # noqa: PLC0415
    except ImportError:
        return ChildFailedError(name, {rank: _ours(culprit, file) for rank, (culprit, file) in failures.items()})
    told = {rank: _theirs(errors, culprit, file) for rank, (culprit, file) in failures.items()}
    raised: Exception = errors.ChildFailedError(name, failures=told)
    return raised


def _theirs(errors: Any, culprit: Culprit, file: Path) -> Any:
    failure = errors.ProcessFailure(
        local_rank=culprit.local_rank, pid=culprit.pid, exitcode=_exit_code(culprit), error_file=str(file)
    )
    if not file.is_file():
        # torch does not have the error that the agent read from the log; its message would be only "see https://…".
        failure.message, failure.timestamp = culprit.error or failure.message, int(culprit.at)
    return failure


def _ours(culprit: Culprit, file: Path) -> ProcessFailure:
    return ProcessFailure(
        local_rank=culprit.local_rank,
        pid=culprit.pid,
        exitcode=_exit_code(culprit),
        error_file=str(file),
        message=culprit.error,
    )


def _exit_code(culprit: Culprit) -> int:
    if culprit.signal is not None:
        return -culprit.signal
    return 1 if culprit.exit_code is None else culprit.exit_code


def signalled(number: signal.Signals) -> Exception:
    """Return the exception for a run that a signal ended."""
    message = f"the run was stopped by {number.name}"
    try:
        from torch.distributed.elastic.multiprocessing import api  # noqa: PLC0415
    except ImportError:
        return SignalException(message, number)
    raised: Exception = api.SignalException(message, number)
    return raised


def rendezvous_timed_out(message: str) -> Exception:
    """Return the exception for nodes that did not come in time."""
    try:
        from torch.distributed.elastic.rendezvous import api  # noqa: PLC0415
    except ImportError:
        return RendezvousTimeoutError(message)
    raised: Exception = api.RendezvousTimeoutError(message)
    return raised


def to_torch(config: LaunchConfig) -> Any:
    """Return torch's config of the same meaning; what this torch has no field for is left out."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, api  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig as TorchConfig  # noqa: PLC0415

    known = {field.name for field in dataclasses.fields(TorchConfig)}
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    values["rdzv_configs"] = dict(config.rdzv_configs)
    values["start_method"] = str(config.start_method)
    values["logs_specs"] = DefaultLogsSpecs(
        log_dir=None if config.log_dir is None else os.fspath(config.log_dir),
        redirects=_torchs(api.Std, config.redirects),
        tee=_torchs(api.Std, config.tee),
    )
    return TorchConfig(**{name: value for name, value in values.items() if name in known})


def _torchs(std: Any, value: Any) -> Any:
    return {rank: std(int(one)) for rank, one in value.items()} if isinstance(value, dict) else std(int(value))
