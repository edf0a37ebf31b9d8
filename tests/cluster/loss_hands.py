"""What a cell of the loss matrix needs besides the job: who supervises it, who kills machines, and what the workers stamped."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shlex
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rallypoint.backends.kubernetes.access import Access
from rallypoint.backends.kubernetes.leaving import SupervisorPods
from tests.cluster.sites import ClusterSite
from tests.emulator.running import Running

__all__ = ["OWNER", "Emulated", "HookError", "Hooked", "Machines", "World", "supervised", "worlds"]

#: Who submits the jobs, and may cancel them.
OWNER = "matrix"


class Machines(Protocol):
    """Takes the power from a machine, and gives it back."""

    async def kill(self, name: str) -> None:
        """Return when nothing runs on the machine any more."""
        ...

    async def restore(self, name: str) -> None:
        """Return when the machine starts again."""
        ...


@dataclass(frozen=True)
class Emulated:
    """Machines of an emulated cluster: their processes stand still, and no connection ends."""

    cluster: Running

    async def kill(self, name: str) -> None:
        """See `Machines`."""
        await asyncio.to_thread(self.cluster.lose_node, name=name, silent=True)

    async def restore(self, name: str) -> None:
        """See `Machines`."""
        await asyncio.to_thread(self.cluster.restore_node, name=name)


class HookError(Exception):
    """The command of `RALLYPOINT_TEST_NODE_KILL` did not do what it was called for."""

    def __init__(self, what: str) -> None:
        super().__init__(f"RALLYPOINT_TEST_NODE_KILL: {what}")


@dataclass(frozen=True)
class Hooked:
    """Machines of a real cluster: `RALLYPOINT_TEST_NODE_KILL` is a command, given a node's name, and `kill` or `return`.

    Raises `HookError` where the command cannot be run, fails, or does not end in time.
    """

    command: str
    patience: float = 300.0

    async def kill(self, name: str) -> None:
        """See `Machines`."""
        await self._run(name, "kill")

    async def restore(self, name: str) -> None:
        """See `Machines`."""
        await self._run(name, "return")

    async def _run(self, name: str, action: str) -> None:
        try:
            words = (*shlex.split(self.command), name, action)
        except ValueError as error:
            raise HookError(f"cannot read the command {self.command!r}: {error}") from error
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=asyncio.subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise HookError(f"cannot run {shlex.join(words)}: {error.strerror}") from error
        try:
            output, _ = await asyncio.wait_for(process.communicate(), self.patience)
        except asyncio.TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise HookError(f"{shlex.join(words)} did not end within {self.patience:g} s") from None
        if process.returncode:
            said = output.decode(errors="replace").strip()[-2000:] or "no output"
            raise HookError(f"{shlex.join(words)} ended with exit code {process.returncode}: {said}")


# --- Who supervises --------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def supervised(site: ClusterSite, name: str, way: str, folder: Path) -> AsyncIterator[None]:
    """Have a job supervised by a `process`, a `pod` or an Airflow `trigger` while the context lasts."""
    if way == "pod":
        await SupervisorPods(Access(namespace=site.namespace, kubeconfig=site.where.kubeconfig)).leave(name)
        yield
        return
    module = ("rallypoint.cli.main", "supervise", name, *site.where.options(), "--ignore-outcome")
    if way == "trigger":
        module = ("tests.cluster.loss_trigger", name, site.namespace, site.where.kubeconfig, OWNER)
    environment = {**os.environ, "AIRFLOW_HOME": str(folder / "airflow")}
    with (folder / f"{way}.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *module), env=environment, stdout=output, stderr=asyncio.subprocess.STDOUT
        )
    try:
        yield
    finally:
        await _ended(process)


async def _ended(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    await process.wait()


# --- What the workers stamped ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class World:
    """The steps of one round: of each rank the times at which it saw its world make one."""

    attempt: int
    round: int
    size: int
    ranks: dict[int, tuple[float, ...]] = dataclasses.field(hash=False)

    @property
    def first(self) -> float:
        """When its first step was seen."""
        return min((times[0] for times in self.ranks.values() if times), default=float("inf"))

    @property
    def last(self) -> float:
        """When its last step was seen."""
        return max((times[-1] for times in self.ranks.values() if times), default=float("-inf"))

    def steps_after(self, at: float, count: int) -> float | None:
        """Return when every rank had seen `count` steps after `at`; None where it has not."""
        later = [[time for time in times if time > at] for times in self.ranks.values()]
        if len(later) < self.size or any(len(times) < count for times in later):
            return None
        return max(times[count - 1] for times in later)


def worlds(trail: Path) -> tuple[tuple[World, ...], list[str]]:
    """Return the worlds that made steps, in order of their fences, and what must never be: two at once, a rank twice."""
    found: dict[tuple[int, int], dict[int, tuple[float, ...]]] = {}
    sizes: dict[tuple[int, int], int] = {}
    wrong: list[str] = []
    for file in sorted(trail.glob("world.*")):
        attempt, round_, rank, size, _ = map(int, file.name.split(".")[1:])
        times = tuple(float(line.split()[0]) for line in file.read_text().splitlines() if len(line.split()) == 2)
        ranks = found.setdefault((attempt, round_), {})
        if ranks.get(rank) and times:
            wrong.append(f"rank {rank} made steps twice in round {round_} of attempt {attempt}")
        ranks[rank] = times or ranks.get(rank, ())
        sizes[attempt, round_] = size
    made = tuple(World(attempt=key[0], round=key[1], size=sizes[key], ranks=found[key]) for key in sorted(found))
    stepped = [world for world in made if world.first != float("inf")]
    for number, world in enumerate(stepped):
        for later in stepped[number + 1 :]:
            if world.last > later.first:
                late = world.last - later.first
                wrong.append(f"round {world.round} made a step {late:.3f} s after the first of round {later.round}: two worlds")
    return made, wrong
