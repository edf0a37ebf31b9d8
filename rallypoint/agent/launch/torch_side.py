"""What a caller of torch's launcher expects by torch's own names: its config, and its exceptions.

The one file of the launcher that imports torch, and only in a process whose workers have failed, or that asks for `to_torch`.
Where torch is not installed, the exceptions are ours, of the same names and with the same attributes.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rallypoint.wire.errors import RallypointError
from rallypoint.wire.incident import Culprit

if TYPE_CHECKING:
    from rallypoint.agent.launch.config import LaunchConfig

__all__ = [
    "ChildFailedError",
    "ProcessFailure",
    "RendezvousTimeoutError",
    "SignalException",
    "child_failed",
    "rendezvous_timed_out",
    "signalled",
    "to_torch",
]


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
        # torch cannot know what the agent read in the log, and says "see https://…" in its place.
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
