"""The workers of one round on one node: started, watched, and stopped down to the last process of each group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from rallypoint.agent.linux import children
from rallypoint.agent.workers.logs import RankLogs
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Command, Starter
from rallypoint.agent.workers.worker_env import Place

__all__ = ["Worker", "WorkerGroup"]

log = logging.getLogger("rallypoint.workers")

#: Seconds between two looks at the groups while they are stopped, for the odd process whose end nobody tells us.
_RECHECK = 0.5


@dataclass(kw_only=True)
class Worker:
    """One worker process; it leads a process group of its own, whose number is `pid`.

    Attributes:
        code: its exit code, minus the signal that ended it, or None while it lives.
        published: the status with which it said it would end, once `WorkerGroup.end` has killed it in its teardown.
        ended_at: seconds since the epoch, 0 while it lives.
        stopped: whether its end was our doing.
        group_gone: whether no process of its group is left.
    """

    place: Place
    logs: RankLogs
    pid: int = 0
    code: int | None = None
    published: int | None = None
    ended_at: float = 0.0
    stopped: bool = False
    group_gone: bool = False


class WorkerGroup:
    """All workers of the running round; empty between two rounds."""

    def __init__(self, spawner: Starter, reaper: Reaper, *, grace: float, now: Callable[[], float]) -> None:
        self._spawner, self._reaper, self._grace, self._now = spawner, reaper, grace, now
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = self._at_once = self._warned = False
        self._spared: frozenset[int] = frozenset()
        self._gone: Callable[[], None] | None = None
        self.workers: list[Worker] = []
        self.stop_signal = signal.SIGTERM
        reaper.listen(self._look)

    async def start(self, worker: Worker, command: Command, ended: Callable[[Worker], None]) -> None:
        """Start one worker; `ended` is called when it has ended. Raises `OSError` when it cannot be started."""

        def note(code: int) -> None:
            if code == -signal.SIGKILL and worker.published is not None:
                code = worker.published
            worker.code, worker.ended_at, worker.stopped = code, self._now(), self._is_ours(worker, code)
            ended(worker)

        self.workers.append(worker)
        try:
            worker.pid = await self._spawner.spawn(command, note)
        except BaseException:
            worker.code, worker.ended_at, worker.group_gone = 127, self._now(), True
            raise

    def stop(self, gone: Callable[[], None], *, spare: frozenset[int] = frozenset()) -> None:
        """TERM all groups now (or what `stop_signal` is) and KILL what is left after the grace.

        `gone` is called once when no process is left.

        The workers of the local ranks `spare` live on, and stay in the list. A second call replaces `gone`, and stops those
        too that it spares no longer.
        """
        before = self._spared if self._stopping else None
        self._gone, self._spared = gone, spare
        if before is None:
            self._stopping = True
            self._signal(self.stop_signal)
            self._begin_grace()
        elif before - spare:
            self._signal(self.stop_signal, only=before - spare)
            self._begin_grace()
        self._look()

    def kill(self, *, spare: frozenset[int] = frozenset()) -> None:
        """KILL what is left, now. Who ends by another signal or with a code all the same had ended before, by itself."""
        self._at_once = self._stopping
        self._kill(spare)

    def _kill(self, spare: frozenset[int]) -> None:
        self._signal(signal.SIGKILL, spare=spare)
        if not spare:
            self._kill_orphans()

    def end(self, worker: Worker, published: int | None) -> None:
        """Kill a worker that does not get through its teardown; the status counts that it has published, if it is known."""
        worker.published = published
        if worker.pid > 0 and worker.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)

    def close(self) -> None:
        """Forget the reaper."""
        self._cancel_timer()
        self._reaper.unlisten(self._look)

    def _is_ours(self, worker: Worker, code: int) -> bool:
        """Return whether we have ended it. Of two that end at once the second may be the one that broke the round."""
        if not self._stopping or self._spares(worker):
            return False
        signals = (signal.SIGKILL, self.stop_signal)
        return not self._at_once or code in (*(-one for one in signals), *(128 + one for one in signals))

    def _spares(self, worker: Worker) -> bool:
        return worker.place.local_rank in self._spared

    def _signal(
        self, number: signal.Signals, *, only: frozenset[int] | None = None, spare: frozenset[int] | None = None
    ) -> None:
        spared = self._spared if spare is None else spare
        for worker in self.workers:
            rank = worker.place.local_rank
            if rank in spared or (only is not None and rank not in only):
                continue
            if worker.pid > 0 and not worker.group_gone:  # one that is being born has no number yet
                _signal_group(worker.pid, number)

    def _begin_grace(self) -> None:
        self._cancel_timer()
        self._again(asyncio.get_running_loop().time() + self._grace)

    def _again(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        left = deadline - loop.time()
        delay = min(_RECHECK, left) if left > 0 else _RECHECK
        self._timer = loop.call_later(delay, self._recheck, deadline)

    def _recheck(self, deadline: float) -> None:
        if asyncio.get_running_loop().time() >= deadline:
            if not self._warned:
                log.warning("workers of this node are still running %g s after SIGTERM; sending SIGKILL", self._grace)
            self._warned = True
            self._kill(self._spared)
        self._look()
        if self._gone is not None:
            self._again(deadline)

    def _look(self) -> None:
        if not self._stopping or self._gone is None:
            return
        for worker in self.workers:
            if worker.pid > 0 and worker.code is not None and not worker.group_gone:
                worker.group_gone = not _group_lives(worker.pid)
        if all(worker.group_gone for worker in self.workers if not self._spares(worker)):
            self._finish()

    def _finish(self) -> None:
        gone, self._gone = self._gone, None
        self._cancel_timer()
        self.workers = [worker for worker in self.workers if self._spares(worker)]
        if not self.workers:  # what a worker that lives on has left behind is its own
            self._kill_orphans()
        self._stopping = self._at_once = self._warned = False
        self._spared = frozenset()
        if gone is not None:
            gone()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _kill_orphans(self) -> None:
        """Kill what workers left behind in sessions of their own: it became our child, and no round owns it any more."""
        for pid in children():
            if not self._reaper.watched(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    if group <= 1:  # to the kernel 0 is our own group, and -1 is everybody
        raise ValueError(
            f"process group id {group} is not allowed; "
            "expected a number above 1, the id of a worker's operating-system process group"
        )
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
