"""The node's part in a tuned batch: it measures what the workers' batch costs, and writes down which they are to use.

A batch is written into a file, and a script takes it when it gets there; batches of the old size may still be on their way. So
the workers take some steps first. Then the peak of their memory begins anew, and after some more steps it is that of the batch.

The memory of a worker is that of its GPU where it has one, and the resident memory of its process elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rallypoint.agent.devices import visible_numbers
from rallypoint.agent.waiting import in_background
from rallypoint.capabilities.base import NodeCapability, NodeContext
from rallypoint.capabilities.tuned_batch import parallel_config
from rallypoint.capabilities.tuned_batch.parallel_config import ParallelConfig
from rallypoint.capabilities.tuned_batch.wire import (
    AssignmentSection,
    NodeTuning,
    PlanSection,
    ReplySection,
    ReportSection,
    Tuned,
)
from rallypoint.wire.messages import Assignment, Continue, WorkerReport
from rallypoint.wire.plan import Plan

__all__ = ["GpuPeak", "HostPeak", "Measuring", "Now", "Peak", "Tuner", "create", "peak_of"]

log = logging.getLogger("rallypoint.tuner")

#: Name of the file that workers read, in the node's folder.
_FILE = "parallel-config.json"


# --- When to measure ---------------------------------------------------------------------------------------------------

#: Steps of every worker before the peak begins anew, and from then on until it is read.
_BEFORE, _WHILE = 10, 10


class Now(enum.Enum):
    """Next action of a measurement."""

    NOTHING = enum.auto()
    FORGET_PEAK = enum.auto()
    READ_PEAK = enum.auto()


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """One batch of one node's workers.

    Attributes:
        batch: batch size of the workers; 0: unknown.
        since: signs of life of each local rank at the start of the wait.
        fresh: the peak was reset at that time.
        done: the peak was read.
    """

    batch: int = 0
    since: Mapping[int, int] = field(default_factory=dict, hash=False)
    fresh: bool = False
    done: bool = False

    def looked(self, batch: int, steps: Mapping[int, int]) -> tuple[Measuring, Now]:
        """Return the next measurement state and the action to take; `steps` are the signs of life of each local rank."""
        if batch != self.batch or steps.keys() != self.since.keys() or any(steps[rank] < self.since[rank] for rank in steps):
            return Measuring(batch=batch, since=dict(steps)), Now.NOTHING
        if not batch or not steps or self.done:
            return self, Now.NOTHING
        least = min(steps[rank] - self.since[rank] for rank in steps)
        if not self.fresh and least >= _BEFORE:
            return dataclasses.replace(self, since=dict(steps), fresh=True), Now.FORGET_PEAK
        if self.fresh and least >= _WHILE:
            return dataclasses.replace(self, done=True), Now.READ_PEAK
        return self, Now.NOTHING


# --- What is measured ---------------------------------------------------------------------------------------------------

#: What makes the kernel count the peak of a process anew (proc(5), clear_refs).
_FORGET = "5"

_MIB = 1 << 20


class Peak(Protocol):
    """Measures the memory of the workers of a node. Calls may block, so they run in a thread."""

    def limit(self) -> int:
        """Return the smallest memory limit of a worker in bytes; 0: unknown."""
        ...

    def forget(self, pids: Mapping[int, int]) -> None:
        """Reset the peak; `pids` are the process IDs of the workers by local rank."""
        ...

    def read(self, pids: Mapping[int, int]) -> int:
        """Return the largest peak of a worker since the reset, in bytes; 0 if a worker has ended."""
        ...


class HostPeak:
    """Measures the resident memory of the worker processes."""

    def __init__(self, limit: int, proc: Path = Path("/proc")) -> None:
        self._limit, self._proc = limit, proc

    def limit(self) -> int:
        """Return the limit that the job sets."""
        return self._limit

    def forget(self, pids: Mapping[int, int]) -> None:
        """Reset VmHWM. If the kernel does not support this, the peak counts from the start of the process."""
        for pid in pids.values():
            with contextlib.suppress(OSError):
                (self._proc / str(pid) / "clear_refs").write_text(_FORGET)

    def read(self, pids: Mapping[int, int]) -> int:
        """Read VmHWM."""
        return _most([_high_water(self._proc / str(pid) / "status") for pid in pids.values()])


class GpuPeak:
    """Measures the used memory of each local rank's GPU. torch's allocator keeps its memory, so the current use is the peak."""

    def __init__(self, limit: int, env: Mapping[str, str]) -> None:
        self._limit, self._env = limit, env

    def limit(self) -> int:
        """Return the limit that the job sets, or the memory of the GPU."""
        return self._limit or min((total for _, total in _gpus(self._env)), default=0)

    def forget(self, pids: Mapping[int, int]) -> None:
        """Do nothing: torch's allocator keeps its memory, and a larger batch needs more."""

    def read(self, pids: Mapping[int, int]) -> int:
        """Query the driver; local rank n uses the n-th visible GPU."""
        gpus = _gpus(self._env)
        return _most([gpus[local_rank][0] if local_rank < len(gpus) else 0 for local_rank in pids])


def peak_of(plan: Plan, env: Mapping[str, str] = os.environ) -> Peak:
    """Return the memory measurement for the workers of a plan on this node."""
    limit = PlanSection.of(plan).tuning_memory
    if plan.devices.accelerator == "nvidia.com/gpu" and _gpus(env):
        return GpuPeak(limit, env)
    return HostPeak(limit)


def _most(used: list[int]) -> int:
    return max(used, default=0) if all(used) else 0


def _high_water(status: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _gpus(env: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return used and total bytes of each GPU that is visible to a worker, in the worker's order."""
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


# --- The agent's part ---------------------------------------------------------------------------------------------------


class Tuner(NodeCapability):
    """Looks when a report is made. `pids` gives the workers that live; `changed` is called when something was measured."""

    def __init__(self, folder: Path, peak: Peak, *, pids: Callable[[], Mapping[int, int]], changed: Callable[[], None]) -> None:
        self._path, self._peak, self._pids, self._changed = folder / _FILE, peak, pids, changed
        self._wanted: Tuned | None = None
        self._measuring = Measuring()
        self._told = NodeTuning()
        self._task: asyncio.Task[None] | None = None
        self._written = 0

    def urgent(self) -> NodeTuning:
        """Return the newest measurement, which is reported at once when it changes."""
        return self._told

    async def begin(self) -> None:
        """Create the file. Without a known memory limit, log a warning and tune nothing."""
        limit = await asyncio.to_thread(self._peak.limit)
        if not limit:
            log.warning(
                "tuning of the batch size is off, because this node has no GPU and the job sets no memory limit per worker"
            )
        self._told = NodeTuning(limit=limit)
        await asyncio.to_thread(self._write, ParallelConfig())

    def environment(self) -> dict[str, str]:
        """Return the workers' variables with the path of the file."""
        return dict.fromkeys(parallel_config.VARIABLES, str(self._path))

    async def close(self) -> None:
        """Stop measuring and remove the file."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    def on_reply(self, reply: Assignment | Continue, *, waiting: bool) -> None:
        """Write the requested batch size to the file; ignore a version that is not newer."""
        section = AssignmentSection if isinstance(reply, Assignment) else ReplySection
        tuned = section.of(reply).tuned
        if tuned is None or tuned.version <= self._told.version:
            return
        self._wanted = tuned
        self._told = dataclasses.replace(self._told, version=tuned.version, batch=tuned.batch, memory=0)
        self._write(ParallelConfig(version=self._next(), batch=tuned.batch))
        log.info("the agent sets the batch size of each worker to %d", tuned.batch)
        self._changed()

    def report(self, workers: Sequence[WorkerReport]) -> ReportSection | None:
        """Read the file, advance the measurement, and return the section; None if nothing is tuned."""
        if not self._told.limit:
            return None
        found = parallel_config.read(self._path)
        if found is not None and self._wanted is not None and found.batch != self._wanted.batch:
            # A script that just started has written its own batch size.
            self._write(ParallelConfig(version=max(self._next(), found.version + 1), batch=self._wanted.batch))
            self._measuring = Measuring()
        elif found is not None and (self._task is None or self._task.done()):
            self._step(found.batch, tuple(workers))
        return ReportSection(tuning=self._told)

    def _step(self, batch: int, workers: tuple[WorkerReport, ...]) -> None:
        steps = {worker.local_rank: worker.liveness for worker in workers}
        self._measuring, now = self._measuring.looked(batch, steps)
        if batch != self._told.batch:
            self._told = dataclasses.replace(self._told, batch=batch, memory=0)
        if now is not Now.NOTHING:
            self._task = in_background(self._measure(now, self._pids()), log, "measuring the memory use of a batch")

    async def _measure(self, now: Now, pids: Mapping[int, int]) -> None:
        asked = self._measuring
        if now is Now.FORGET_PEAK:
            await asyncio.to_thread(self._peak.forget, pids)
            return
        memory = await asyncio.to_thread(self._peak.read, pids)
        if memory and self._measuring is asked:
            self._told = dataclasses.replace(self._told, memory=memory)
            log.info(
                "with batch size %d, each worker used at most %d of %d MiB of memory",
                asked.batch,
                memory >> 20,
                self._told.limit >> 20,
            )
            self._changed()

    def _next(self) -> int:
        return self._written + 1

    def _write(self, config: ParallelConfig) -> None:
        try:
            parallel_config.write(self._path, config)
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error.strerror or error)
        else:
            self._written = config.version


def create(context: NodeContext) -> Tuner | None:
    """Return the node's half, None where the plan does not ask for it."""
    if not PlanSection.of(context.plan).auto_tuning:
        return None
    return Tuner(context.folder, peak_of(context.plan), pids=context.pids, changed=context.changed)
