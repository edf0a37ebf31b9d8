"""The node's part in a tuned batch: it measures what the workers' batch costs, and writes down which they are to use.

What is decided, and why, is in `rendezvous/batch.py`; when it is measured in `measuring.py`; the file in `parallel_config.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from rallypoint.agent.node import parallel_config
from rallypoint.agent.node.measuring import Measuring, Now
from rallypoint.agent.node.parallel_config import ParallelConfig
from rallypoint.agent.node.peak import Peak
from rallypoint.agent.waiting import in_background
from rallypoint.wire import env
from rallypoint.wire.messages import WorkerReport
from rallypoint.wire.tuning import NodeTuning, Tuned

__all__ = ["Tuner"]

log = logging.getLogger("rallypoint.tuner")

_FILE = "parallel-config.json"


class Tuner:
    """Looks when a report is made. `pids` gives the workers that live; `changed` is called when something was measured."""

    def __init__(self, folder: Path, peak: Peak, *, pids: Callable[[], dict[int, int]], changed: Callable[[], None]) -> None:
        self._path, self._peak, self._pids, self._changed = folder / _FILE, peak, pids, changed
        self._wanted: Tuned | None = None
        self._measuring = Measuring()
        self._told = NodeTuning()
        self._task: asyncio.Task[None] | None = None
        self._written = 0

    @property
    def told(self) -> NodeTuning:
        """What there was to tell last."""
        return self._told

    async def begin(self) -> None:
        """Make the file; without a limit that can be known nothing is tuned, which is said once."""
        limit = await asyncio.to_thread(self._peak.limit)
        if not limit:
            log.warning("batch tuning is off: this node has no GPU and the job sets no memory limit per worker")
        self._told = NodeTuning(limit=limit)
        await asyncio.to_thread(self._write, ParallelConfig())

    def environment(self) -> dict[str, str]:
        """Return where the file is, for workers."""
        return {env.PARALLEL_CONFIG: str(self._path), env.PARALLEL_CONFIG_DLROVER: str(self._path)}

    async def close(self) -> None:
        """Measure nothing any more, and remove the file."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    def take(self, tuned: Tuned | None) -> None:
        """Take over what workers are to use; an older word than the last changes nothing."""
        if tuned is None or tuned.version <= self._told.version:
            return
        self._wanted = tuned
        self._told = dataclasses.replace(self._told, version=tuned.version, batch=tuned.batch, memory=0)
        self._write(ParallelConfig(version=self._next(), batch=tuned.batch))
        log.info("set the batch size of each worker to %d", tuned.batch)
        self._changed()

    def look(self, workers: Iterable[WorkerReport]) -> NodeTuning | None:
        """Look at the file and at the workers; return what there is to tell, None where nothing is tuned."""
        if not self._told.limit:
            return None
        found = parallel_config.read(self._path)
        if found is not None and self._wanted is not None and found.batch != self._wanted.batch:
            # A script that has just begun wrote its own.
            self._write(ParallelConfig(version=max(self._next(), found.version + 1), batch=self._wanted.batch))
            self._measuring = Measuring()
        elif found is not None and (self._task is None or self._task.done()):
            self._step(found.batch, tuple(workers))
        return self._told

    def _step(self, batch: int, workers: tuple[WorkerReport, ...]) -> None:
        steps = {worker.local_rank: worker.liveness for worker in workers}
        self._measuring, now = self._measuring.looked(batch, steps)
        if batch != self._told.batch:
            self._told = dataclasses.replace(self._told, batch=batch, memory=0)
        if now is not Now.NOTHING:
            self._task = in_background(self._measure(now, self._pids()), log, "measuring the memory use of a batch")

    async def _measure(self, now: Now, pids: dict[int, int]) -> None:
        asked = self._measuring
        if now is Now.FORGET_PEAK:
            await asyncio.to_thread(self._peak.forget, pids)
            return
        memory = await asyncio.to_thread(self._peak.read, pids)
        if memory and self._measuring is asked:
            self._told = dataclasses.replace(self._told, memory=memory)
            log.info("measured batch size %d: %d of %d MiB used", asked.batch, memory >> 20, self._told.limit >> 20)
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
