"""The agent's side of the node check: it starts the probes of a task, ends them in time, and says how they went.

One listening socket serves every group whose store is here, for the agent's whole life: its address is told before anybody is
asked, the probe of the group's first rank inherits it, and who connects early waits in the kernel. A task's key keeps apart
what two tasks write.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import select
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.agent.accelerators import NVIDIA, accelerator
from rallypoint.agent.workers.spawner import Command
from rallypoint.agent.workers.store import listening
from rallypoint.capabilities.base import NodeCapability, NodeContext
from rallypoint.capabilities.node_check.wire import PlanSection, ReplySection, ReportSection
from rallypoint.wire import env, sanitize
from rallypoint.wire.check import CheckReport, CheckTask, ProbeState
from rallypoint.wire.endpoint import split_address
from rallypoint.wire.exits import describe_exit
from rallypoint.wire.masked import mask_of_plan
from rallypoint.wire.messages import Assignment, Continue, WorkerReport
from rallypoint.wire.plan import Plan
from rallypoint.wire.python import run_module

__all__ = ["Checker", "Seen", "create", "probe_env", "read_probe"]

log = logging.getLogger("rallypoint.check")

#: Stages in which a probe has not met anybody yet; before it names one it is in the first.
_ALONE = ("start", "compute")

#: Characters of an error that are told, and bytes of a probe's output that are read from its end.
_ERROR, _TAIL = 300, 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a probe has said: the last stage that it came to, and its figures where it has told them."""

    stage: str = _ALONE[0]
    figures: Mapping[str, float] | None = None


class _Attempt:
    """One task that is being tried. It is told to stop, not cancelled: a process that is being started must not get lost."""

    def __init__(self, task: CheckTask) -> None:
        self.task = task
        self.stop = asyncio.Event()
        self.pids: set[int] = set()

    def kill(self) -> None:
        """End all of its probes at once."""
        for pid in tuple(self.pids):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    async def over(self, ends: Sequence[asyncio.Future[int]]) -> None:
        """Wait until all probes have ended, or one has badly, or the time is over, or it is told to stop."""
        settled, stopped = _settled(ends), asyncio.create_task(self._told_to_stop())
        try:
            await asyncio.wait({settled, stopped}, timeout=self.task.limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()

    async def _told_to_stop(self) -> None:
        await self.stop.wait()


class Checker(NodeCapability):
    """Runs the probes of one task at a time; a new task takes the place of the one before."""

    def __init__(self, context: NodeContext) -> None:
        self._plan, self._host, self._folder = context.plan, context.host, context.folder
        self._spawner, self._changed = context.spawner, context.changed
        self._socket: socket.socket | None = None
        self._attempt: _Attempt | None = None
        self._running: asyncio.Task[None] | None = None
        self._told: CheckReport | None = None

    async def begin(self) -> None:
        """Listen, so that this agent can be asked; raises `ConfigError` when that cannot be."""
        self._socket, store = await listening(self._host)
        self._told = CheckReport(store=store)

    def urgent(self) -> CheckReport | None:
        """Return the state of the probe."""
        return self._told

    def report(self, workers: Sequence[WorkerReport]) -> ReportSection:
        """Return the state of the probe."""
        return ReportSection(check=self._told)

    def on_reply(self, reply: Assignment | Continue, *, waiting: bool) -> None:
        """Begin the requested task."""
        task = ReplySection.of(reply).check if isinstance(reply, Continue) else None
        if task is not None and waiting:
            self._take(task)

    async def before_workers(self, assignment: Assignment) -> None:
        """End the running task."""
        await self._stop()

    def _take(self, task: CheckTask) -> None:
        """Begin a task, unless it was begun already; what runs is ended."""
        known = self._told
        if known is None or (known.term, known.number) == (task.term, task.number):
            return
        before = self._running
        if self._attempt is not None:
            self._attempt.stop.set()
        self._attempt = _Attempt(task)
        self._told = CheckReport(store=known.store, term=task.term, number=task.number, state=ProbeState.RUNNING)
        self._changed()
        self._running = asyncio.create_task(self._try(self._attempt, before))

    async def _stop(self) -> None:
        """End what runs, and return when no probe is left: the devices are the workers' from here."""
        if self._attempt is not None and self._running is not None:
            self._attempt.stop.set()
            await self._running

    async def close(self) -> None:
        """End what runs, and stop listening."""
        await self._stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _try(self, attempt: _Attempt, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        task = attempt.task
        try:
            found = await self._run(attempt)
        except OSError as error:
            found = CheckReport(store="", state=ProbeState.FAILED, own=True, error=f"cannot start the test process: {error}")
        finally:
            attempt.kill()
        known = self._told
        if attempt.stop.is_set() or known is None:
            return
        if found.state is ProbeState.FAILED:
            log.warning("node check: test %d of this node failed: %s", task.number, found.error)
        else:
            log.info(
                "node check: test %d of this node passed; the computation took %.3g s, and the transfer %.3g s",
                task.number,
                found.compute,
                found.transfer,
            )
        self._told = dataclasses.replace(found, store=known.store, term=task.term, number=task.number)
        self._changed()

    async def _run(self, attempt: _Attempt) -> CheckReport:
        """Start the probes, wait for their end, and return how they went."""
        loop, probes = asyncio.get_running_loop(), self._plan.nproc_per_node
        folder = self._folder / "check"
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        ends: list[asyncio.Future[int]] = []
        try:
            for local_rank in range(probes):
                if not attempt.stop.is_set():
                    end: asyncio.Future[int] = loop.create_future()
                    await self._start(attempt, local_rank, folder, end)
                    ends.append(end)
            await attempt.over(ends)
            late = [not end.done() for end in ends]
        finally:
            attempt.kill()
            codes = await asyncio.gather(*ends)
            self._send_off()
        return await asyncio.to_thread(_judged, folder, codes, late, attempt.task.limit, self._plan)

    def _send_off(self) -> None:
        """Close the connections of those who wait for a store that is gone: they need not wait any longer."""
        sock = self._socket
        while sock is not None and select.select([sock], [], [], 0)[0]:
            with contextlib.suppress(OSError):
                sock.accept()[0].close()

    async def _start(self, attempt: _Attempt, local_rank: int, folder: Path, end: asyncio.Future[int]) -> None:
        task = attempt.task
        serves = task.group_rank == 0 and local_rank == 0 and self._socket is not None
        fd = self._socket.fileno() if serves and self._socket is not None else None
        argv = PlanSection.of(self._plan).check_program or run_module("rallypoint.capabilities.node_check.probe")
        started: list[int] = []

        def ended(code: int) -> None:
            attempt.pids.difference_update(started)
            if not end.done():
                end.set_result(code)

        with (folder / f"{local_rank}.out").open("wb") as out, (folder / f"{local_rank}.err").open("wb") as err:
            command = Command(
                argv=argv,
                env=probe_env(os.environ, self._plan, task, local_rank, fd=fd),
                cwd=self._plan.workdir,
                stdout=out.fileno(),
                stderr=err.fileno(),
                keep=() if fd is None else (fd,),
            )
            pid = await self._spawner.spawn(command, ended)
        started.append(pid)
        if not end.done():
            attempt.pids.add(pid)


def create(context: NodeContext) -> Checker | None:
    """Return the node's half, None if the plan has no node check."""
    return Checker(context) if PlanSection.of(context.plan).check_level else None


def probe_env(base: Mapping[str, str], plan: Plan, task: CheckTask, local_rank: int, *, fd: int | None) -> dict[str, str]:
    """Return the whole environment of a probe: that of a worker, as far as a collective needs it, and its task."""
    host, port = split_address(task.store)
    kind = accelerator(plan.devices.accelerator)
    told: dict[str, Any] = {"whole": task.whole, "limit": task.limit, "key": f"check-{task.term}-{task.number}", "fd": fd}
    if kind.name != NVIDIA:
        told["device"] = (kind.device, kind.backend, kind.module)
    result = {**base, **plan.env}
    result.pop(env.SECRET, None)
    return {
        **result,
        "OMP_NUM_THREADS": "1",
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(plan.nproc_per_node),
        "RANK": str(task.first_rank + local_rank),
        "WORLD_SIZE": str(task.world_size),
        "GROUP_RANK": str(task.group_rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        env.CHECK: json.dumps(told),
    }


def read_probe(output: bytes) -> Seen:
    """Return what a probe has said; lines that are none of its words are passed over."""
    seen = Seen()
    for line in output.splitlines():
        try:
            words = sanitize.parse(line)
        except ValueError:
            continue
        if not isinstance(words, dict):
            continue
        if isinstance(words.get("stage"), str):
            seen = dataclasses.replace(seen, stage=words["stage"])
        figures = {name: words.get(name, 0) for name in ("compute", "transfer", "moved", "latency")}
        if "compute" in words and all(_figure(value) for value in figures.values()):
            seen = dataclasses.replace(seen, figures=figures)
    return seen


def _figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _settled(ends: Sequence[asyncio.Future[int]]) -> asyncio.Future[None]:
    """Return a future that is done when all have ended, or one has ended badly: nothing is gained by waiting for the rest."""
    settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(_: asyncio.Future[int]) -> None:
        over = [end.result() for end in ends if end.done()]
        if not settled.done() and (len(over) == len(ends) or any(over)):
            settled.set_result(None)

    for end in ends:
        end.add_done_callback(look)
    if not ends:
        settled.set_result(None)
    return settled


def _judged(folder: Path, codes: Sequence[int], late: Sequence[bool], limit: float, plan: Plan) -> CheckReport:
    """Return how a node's probes went. One that ended badly by itself speaks for all, before those that were merely `late`.

    What a probe wrote is masked before it is cut: the program of a user has the environment of the job.
    """
    seen = [read_probe(_end_of(folder / f"{i}.out")) for i in range(len(codes))]
    bad = sorted((i for i, code in enumerate(codes) if code), key=lambda i: (late[i], seen[i].stage not in _ALONE))
    if not bad:
        silent = next((i for i, one in enumerate(seen) if one.figures is None), None)
        if silent is None:
            return _figures([one.figures for one in seen if one.figures is not None])
        error = "the test process exited with code 0, but without a measurement"
        return CheckReport(store="", state=ProbeState.FAILED, own=True, error=_which(error, silent, len(codes)))
    first, mask = bad[0], mask_of_plan(plan)
    stage = seen[first].stage
    shown = mask(stage)
    if late[first]:
        error = f"stage {shown}: not completed within {limit:g} s"
    else:
        how = f"was {describe_exit(codes[first])}" if codes[first] < 0 else describe_exit(codes[first])
        said = mask(_last_line(_end_of(folder / f"{first}.err")))
        error = f"stage {shown}: {said or how}"
    own = stage in _ALONE
    return CheckReport(store="", state=ProbeState.FAILED, own=own, error=_which(error, first, len(codes))[:_ERROR])


def _which(error: str, local_rank: int, probes: int) -> str:
    return error if probes == 1 else f"local rank {local_rank}: {error}"


def _figures(told: list[Mapping[str, float]]) -> CheckReport:
    """Return the figures of a node: its slowest device is what the others wait for."""
    return CheckReport(
        store="",
        state=ProbeState.OK,
        compute=max(float(one["compute"]) for one in told),
        transfer=max(float(one["transfer"]) for one in told),
        moved=max(int(one["moved"]) for one in told),
        latency=max(float(one["latency"]) for one in told),
    )


def _end_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            return file.read()
    except OSError:
        return b""


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    # Of a longer line, the beginning was not read.
    cut = "... " if len(lines) == 1 and len(text) >= _TAIL else ""
    return cut + lines[-1] if lines else ""
