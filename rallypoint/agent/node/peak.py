"""How much memory a worker has used at the most: on its GPU where it has one, in the machine's memory elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from rallypoint.agent.devices import visible_numbers
from rallypoint.wire.plan import Plan

__all__ = ["GpuPeak", "HostPeak", "Peak", "peak_of"]

#: What makes the kernel count the peak of a process anew (proc(5), clear_refs).
_FORGET = "5"

_MIB = 1 << 20


class Peak(Protocol):
    """The memory of the workers of a node. What it needs may take a moment: it is asked in a thread."""

    def limit(self) -> int:
        """Return the bytes that a worker may use, the least of any of them; 0 where nobody knows."""
        ...

    def forget(self, pids: Mapping[int, int]) -> None:
        """Let the peak begin anew; `pids` are those of the workers by local rank."""
        ...

    def read(self, pids: Mapping[int, int]) -> int:
        """Return the bytes that the worker with the most has used since then; 0 where one of them is gone."""
        ...


class HostPeak:
    """The resident memory of the process that trains."""

    def __init__(self, limit: int, proc: Path = Path("/proc")) -> None:
        self._limit, self._proc = limit, proc

    def limit(self) -> int:
        """What the job says."""
        return self._limit

    def forget(self, pids: Mapping[int, int]) -> None:
        """Where the kernel does not do it the peak is that of the whole life: never less than what a batch used."""
        for pid in pids.values():
            with contextlib.suppress(OSError):
                (self._proc / str(pid) / "clear_refs").write_text(_FORGET)

    def read(self, pids: Mapping[int, int]) -> int:
        """Read VmHWM."""
        return _most([_high_water(self._proc / str(pid) / "status") for pid in pids.values()])


class GpuPeak:
    """What is taken of the GPU of each local rank. torch keeps what it once took, so what is taken now is the peak."""

    def __init__(self, limit: int, env: Mapping[str, str]) -> None:
        self._limit, self._env = limit, env

    def limit(self) -> int:
        """What the job says, or else the GPU's own memory."""
        return self._limit or min((total for _, total in _gpus(self._env)), default=0)

    def forget(self, pids: Mapping[int, int]) -> None:
        """Nothing begins anew: torch gives nothing back, and a batch that is larger needs more."""

    def read(self, pids: Mapping[int, int]) -> int:
        """Ask the driver; the worker of local rank n has the n-th GPU that is visible."""
        gpus = _gpus(self._env)
        return _most([gpus[local_rank][0] if local_rank < len(gpus) else 0 for local_rank in pids])


def peak_of(plan: Plan, env: Mapping[str, str] = os.environ) -> Peak:
    """Return what measures the workers of a plan on this node."""
    if plan.accelerator == "nvidia.com/gpu" and _gpus(env):
        return GpuPeak(plan.tuning_memory, env)
    return HostPeak(plan.tuning_memory)


def _most(used: list[int]) -> int:
    return max(used, default=0) if all(used) else 0


def _high_water(status: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _gpus(env: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return what is used and what there is of each GPU that a worker sees, in its order."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=uuid,memory.used,memory.total", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        gpus = [_row(line) for line in told.splitlines() if line.strip()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []  # no driver, or a GPU that is divided (MIG): there the memory of the whole one is "[N/A]"
    return [gpus[number][1] for number in visible_numbers(env, [uuid for uuid, _ in gpus])]


def _row(line: str) -> tuple[str, tuple[int, int]]:
    uuid, used, total = line.split(",")
    return uuid.strip(), (int(used) * _MIB, int(total) * _MIB)
