"""What is known of a worker that has ended, or whose step raised: who, how, and with which last words."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
from collections.abc import Iterable, Mapping, Sequence

from rallypoint.agent.clock import Clock
from rallypoint.agent.culprit import is_collateral
from rallypoint.agent.node.events import StepFailed, WorkersEnded
from rallypoint.agent.node.health.npus import Meter
from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.node.profile import NodeRules
from rallypoint.agent.workers.facts import OomWatch, end_of, how, is_ending, raised
from rallypoint.agent.workers.group import Worker
from rallypoint.wire.incident import Culprit, FaultKind
from rallypoint.wire.line import Failed
from rallypoint.wire.masked import mask_of_plan

__all__ = ["Judge", "another_ends", "went_wrong"]

log = logging.getLogger("rallypoint.node")


class Judge:
    """Reads what workers left behind. Made before the first of them starts: what the kernel kills from then on is counted."""

    def __init__(self, config: NodeConfig, *, now: Clock, devices: Meter, profile: NodeRules | None) -> None:
        self._config, self._now, self._devices = config, now, devices
        self._memory, self._profile = OomWatch(), profile

    async def ended(self, workers: Sequence[Worker]) -> WorkersEnded:
        """Say how each of the workers that ended by themselves has ended."""
        for worker in workers:
            log.info("worker rank=%d pid=%d %s", worker.place.rank, worker.pid, how(worker))
        failures = [await asyncio.to_thread(self.end_of, worker) for worker in workers if went_wrong(worker)]
        return WorkersEnded(ranks=frozenset(w.place.local_rank for w in workers), failures=tuple(failures))

    async def raised(self, worker: Worker, word: Failed, *, broke: bool, step: int | None) -> StepFailed:
        """Say what the step after `step` of a worker raised; with its log where that may be what `broke` the round."""
        config = self._config
        error = mask_of_plan(config.plan)(word.error)
        log.info("worker rank=%d pid=%d: a training step raised an error: %s", worker.place.rank, worker.pid, error)
        failure = raised(worker, error, host=config.told, incarnation=config.incarnation, at=self._now())
        if broke and not is_collateral(failure):
            # Of the others nobody will want to read the log, and who broke the round may have to wait for this.
            end = await asyncio.to_thread(self.end_of, worker)
            failure = dataclasses.replace(failure, log_tail=end.log_tail, log_path=end.log_path)
            return StepFailed(round=word.round, failure=failure, replace=self._replaces(worker.place.local_rank, step))
        return StepFailed(round=word.round, failure=failure)

    def _replaces(self, local_rank: int, step: int | None) -> bool:
        """Return whether a process whose step raised must be replaced; the coordinator decides the same."""
        return self._profile is not None and self._profile.replaces_raised(local_rank, step, self._now())

    def end_of(self, worker: Worker) -> Culprit:
        """Return what is known of a worker's end. Reads files."""
        plan = self._config.plan
        mask = mask_of_plan(plan)
        end = end_of(
            worker, host=self._config.told, incarnation=self._config.incarnation, log_tail=plan.logs.log_tail, mask=mask
        )
        if end.signal == signal.SIGKILL and self._memory.killed():
            return dataclasses.replace(end, kind=FaultKind.OOM)
        return self._with_device(end)

    def _with_device(self, end: Culprit) -> Culprit:
        """Return an end with the error that the worker's device has reported; one of the hardware is the cause."""
        faults = self._devices.faults(end.local_rank)
        if not faults or is_collateral(end):
            return end
        hardware = next((fault for fault in faults if fault.hardware), None)
        # Behind the script's own error, whose beginning tells what kind it is.
        error = "; ".join(filter(None, (end.error, str(hardware or faults[-1]))))
        return dataclasses.replace(end, error=error, kind=end.kind if hardware is None else FaultKind.HARDWARE)


def went_wrong(worker: Worker) -> bool:
    """Return whether a worker that has ended failed, rather than was done or told to."""
    return worker.code != 0 and not worker.stopped


def another_ends(local_rank: int, workers: Iterable[Worker], pids: Mapping[int, int]) -> bool:
    """Return whether a worker other than `local_rank` has failed or is ending, by the process started for it or by its own.

    `pids` has the process that each rank says it is: a command that starts another one waits for it. Reads /proc.
    """
    return any(_ends(worker, pids) for worker in workers if worker.place.local_rank != local_rank)


def _ends(worker: Worker, pids: Mapping[int, int]) -> bool:
    if worker.code is not None:
        return went_wrong(worker)
    return any(is_ending(pid) for pid in {worker.pid, pids.get(worker.place.local_rank, worker.pid)})
