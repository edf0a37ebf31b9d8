"""One round on one node: its workers, their logs, their shared memory of progress."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.node.copies import console_tails, forget_old_rounds, pod_tails, shown_errors
from rallypoint.agent.node.health.collectives import called, files, has_finished
from rallypoint.agent.node.health.evidence import Asked, Subject, take
from rallypoint.agent.node.health.npus import Meter
from rallypoint.agent.node.health.pulses import Pulses, Seen
from rallypoint.agent.node.health.vitals import Vital, Vitals
from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.workers.affinity import bind
from rallypoint.agent.workers.group import Worker, WorkerGroup
from rallypoint.agent.workers.logs import OpenLogs, Streams, open_logs, written
from rallypoint.agent.workers.spawner import Command
from rallypoint.agent.workers.tee import Tee
from rallypoint.agent.workers.worker_env import Place, round_env, worker_argv, worker_env
from rallypoint.capabilities.base import NodeCapability
from rallypoint.wire import env
from rallypoint.wire.codec import WireError
from rallypoint.wire.fence import Fence
from rallypoint.wire.hang import Evidence, RankSeen
from rallypoint.wire.line import Assign
from rallypoint.wire.messages import Assignment, WorkerReport
from rallypoint.wire.private import private_folder
from rallypoint.wire.progress import ExitStatus, Life, ProgressFile, ProgressSlot
from rallypoint.wire.pulse import Learned, Pulse
from rallypoint.wire.result import RESULT_LIMIT, read_result

__all__ = ["Round", "StartError"]

log = logging.getLogger("rallypoint.round")


class StartError(Exception):
    """A worker could not be started; it counts as one that ended badly."""

    def __init__(self, worker: Worker, reason: str) -> None:
        super().__init__(reason)
        self.worker, self.reason = worker, reason


class Round:
    """The round whose workers run or are stopped; reused for the next."""

    def __init__(
        self,
        config: NodeConfig,
        group: WorkerGroup,
        *,
        now: Callable[[], float],
        devices: Meter,
        capabilities: Sequence[NodeCapability] = (),
    ) -> None:
        self._config, self._group, self._now = config, group, now
        self._tee = Tee()
        self._progress: ProgressFile | None = None
        self._progress_path: Path | None = None
        self._workers: list[Worker] = []
        self._last: dict[int, ProgressSlot] = {}
        self._lives: dict[int, Life] = {}
        self._vitals = Vitals()
        self._devices = devices
        self._pulses = Pulses(gpus=devices)
        self._capabilities = capabilities
        self._result_path: Path | None = None
        self._result: Any = None
        self._looks: dict[str, tuple[tuple[int, int], ...]] = {}
        self._evidence: list[str] = []

    @property
    def evidence_files(self) -> tuple[str, ...]:
        """Files of evidence of silences that no sign of life has ended, in order."""
        return tuple(self._evidence)

    async def start(
        self,
        assignment: Assignment,
        ended: Callable[[Worker], None],
        *,
        kept: frozenset[int] = frozenset(),
        tell: Callable[[int, Assign], bool],
        line: Path | None = None,
    ) -> None:
        """Start the workers but for the local ranks that were `kept`: those `tell` tells their places, by local rank.

        They are told first: what they do for the new world takes longer than to start somebody. Raises `ConfigError` when logs
        or shared memory cannot be written, `StartError` when a worker cannot be started.
        """
        living = {worker.place.local_rank: worker for worker in self._workers if worker.place.local_rank in kept}
        logs = await self._begin(assignment, kept)
        self._workers, missing = [], []
        try:
            for place, opened in self._places(assignment, logs, line):
                worker = living.get(place.local_rank)
                if worker is None:
                    missing.append((place, opened))
                else:
                    tell(place.local_rank, self._go_on(worker, place, opened))
            # Together: each answers for itself, and nobody waits for the answer of another.
            started = await asyncio.gather(*(self._start_one(*one, ended) for one in missing), return_exceptions=True)
            self._workers.sort(key=lambda worker: worker.place.local_rank)
        finally:
            for opened in logs:
                opened.close()
        for error in started:
            if error is not None:
                raise error

    def command(self) -> Command:
        """Return the command of a worker of a round that is not known yet: what of it says a place says nothing."""
        plan, folder = self._config.plan, self._config.folder
        nowhere = Assignment(
            fence=Fence(attempt=self._config.attempt),
            node=0,
            group_rank=0,
            group_world_size=1,
            first_rank=0,
            world_size=plan.nproc_per_node,
            store=f"{self._config.host}:0" if ":" not in self._config.host else f"[{self._config.host}]:0",
            restart_count=0,
            max_restarts=plan.budgets.max_restarts,
            digest="",
        )
        place = Place(
            assignment=nowhere,
            local_rank=0,
            error_file=folder / "error",
            progress_file=folder / "progress",
            stack_file=folder / "stacks",
            result_file=folder / "result",
            told=self._config.worker_environment,
        )
        argv = worker_argv(plan, 0, os.environ)
        return Command(argv=argv, env=worker_env(os.environ, plan, place), cwd=plan.workdir)

    async def _begin(self, assignment: Assignment, kept: frozenset[int]) -> list[OpenLogs]:
        """Open the round's files; with the workers that live on the memory lives on in which they report."""
        config, round_ = self._config, assignment.fence.round
        if kept:
            await self._tee.finish()  # what they say from now on goes to this round's files
        slots = config.plan.nproc_per_node
        ranks = range(assignment.first_rank, assignment.first_rank + slots)
        path = config.folder / f"progress-{round_}.bin"
        if kept and self._progress is not None and self._progress_path is not None:
            path = self._progress_path
            for local_rank in range(slots):
                self._progress.begin_again(local_rank, lives=local_rank in kept)
        else:
            self._progress = await asyncio.to_thread(_make_progress, path, slots)
            self._progress_path = path
        logs = await asyncio.to_thread(_open_all, config.log_folder / f"round-{round_}", ranks, config.streams)
        if config.bounded:
            await asyncio.to_thread(forget_old_rounds, config.log_folder)
        self._last, self._lives, self._vitals = {}, {}, Vitals()
        self._pulses = Pulses(gpus=self._devices)
        self._devices.renew()
        for capability in self._capabilities:
            await capability.begin_round(round_)
        result = config.folder / f"result-{round_}.json"
        self._result_path, self._result = (result if assignment.first_rank == 0 else None), None
        return logs

    def _places(self, assignment: Assignment, logs: list[OpenLogs], line: Path | None) -> Iterator[tuple[Place, OpenLogs]]:
        config, round_ = self._config, assignment.fence.round
        folder, environ = config.folder, {**os.environ, **config.plan.env}
        assert self._progress_path is not None
        for local_rank, opened in enumerate(logs):
            place = Place(
                assignment=assignment,
                local_rank=local_rank,
                error_file=opened.paths.error_file,
                progress_file=self._progress_path,
                stack_file=folder / f"stacks-{round_}-{local_rank}.txt",
                result_file=folder / f"result-{round_}.json",
                line=line,
                told={
                    **config.worker_environment,
                    **self._given(environ, round_, local_rank),
                    **shown_errors(config, opened.paths, local_rank),
                },
            )
            yield place, opened

    def _given(self, environ: Mapping[str, str], round_: int, local_rank: int) -> dict[str, str]:
        """Return the variables that optional capabilities give a worker."""
        given: dict[str, str] = {}
        for capability in self._capabilities:
            given.update(capability.worker_environment(environ, round_, local_rank))
        return given

    def _go_on(self, worker: Worker, place: Place, opened: OpenLogs) -> Assign:
        """Take a worker that lives on over into this round."""
        # Its Python has the file for its stacks open since it started.
        worker.place = dataclasses.replace(place, stack_file=worker.place.stack_file)
        worker.logs = opened.paths
        self._workers.append(worker)
        self._copy(worker)
        environment = round_env(self._config.plan, worker.place)
        paths = opened.paths
        return Assign(
            round=place.assignment.fence.round,
            environment=environment,
            unset=() if env.RESULT_FILE in environment else (env.RESULT_FILE,),
            stdout="" if paths.out is None else str(paths.out),
            stderr="" if paths.err is None else str(paths.err),
        )

    async def _start_one(self, place: Place, opened: OpenLogs, ended: Callable[[Worker], None]) -> None:
        plan = self._config.plan
        worker = Worker(place=place, logs=opened.paths)
        self._workers.append(worker)
        argv = worker_argv(plan, place.local_rank, os.environ)
        environment = worker_env(os.environ, plan, place)
        command = Command(argv=argv, env=environment, cwd=plan.workdir, stdout=opened.out, stderr=opened.err)
        try:
            await self._group.start(worker, command, ended)
        except OSError as error:
            where = f" (in {plan.workdir})" if plan.workdir else ""
            raise StartError(worker, f"cannot start {argv[0]}{where}: {error.strerror}: {error.filename}") from error
        cpus = self._config.cpus.get(place.local_rank)
        if cpus:
            bind(worker.pid, cpus)
        self._copy(worker)

    def _copy(self, worker: Worker) -> None:
        for tail in pod_tails(self._config, worker) if self._config.pod else console_tails(self._config, worker):
            self._tee.add(tail)

    def reports(self) -> tuple[WorkerReport, ...]:
        """Return the last word of each worker of the round, whether it lives or not, until the next round starts.

        The last step before a fault counts most, and the first report that tells it may be lost.
        """
        return tuple(self._report(worker) for worker in self._workers)

    def reached(self, local_rank: int) -> int | None:
        """Return the last step of a worker in this round, or the step that it resumed from; None where neither is known."""
        return next((worker.reached for worker in self.reports() if worker.local_rank == local_rank), None)

    def pids(self) -> dict[int, int]:
        """Return the process that trains of each worker that lives, by local rank."""
        alive = (worker for worker in self._workers if worker.code is None)
        return {w.place.local_rank: self._lives.get(w.place.local_rank, Life()).pid or w.pid for w in alive}

    def result(self) -> Any:
        """Return what rank 0 left as the job's result once it has ended, None where it left none or runs elsewhere."""
        path = self._result_path
        if path is None:
            return self._result
        try:
            with path.open("rb") as file:
                self._result = read_result(file.read(RESULT_LIMIT + 1))
        except FileNotFoundError:
            self._result = None
        except (OSError, WireError) as error:
            # A worker is the user's code, and a result that nobody can read is none.
            log.warning(
                "the agent cannot read the result of the job that a worker has written (%s); the job has no result", error
            )
        self._result_path = None
        return self._result

    def _report(self, worker: Worker) -> WorkerReport:
        local_rank = worker.place.local_rank
        slot, vital = self._look(worker)
        seen = self._seen(local_rank, slot)
        # Without a pulse it is as old as the agent knows.
        quiet = vital.quiet(self._now()) if seen.quiet is None and vital.liveness else seen.quiet
        return WorkerReport(
            local_rank=local_rank,
            pid=worker.pid,
            step=slot.step,
            resumed_from=slot.resumed_from,
            liveness=vital.liveness,
            checkpoint=slot.checkpoint,
            metrics=_numbers(slot.metrics),
            cpu=vital.busy,
            output=written(worker.logs),
            phase=seen.phase,
            beat=seen.beat,
            quiet=quiet,
            moved=seen.moved,
            gpu=seen.gpu,
            ended=worker.code is not None,
            finished=self._is_finished(local_rank),
            pace=seen.pace,
        )

    def _is_finished(self, local_rank: int) -> bool:
        pulse = Pulse() if self._progress is None else self._progress.pulse(local_rank)
        return has_finished(self._lives.get(local_rank, Life()), pulse)

    def _seen(self, local_rank: int, slot: ProgressSlot) -> Seen:
        progress, life = self._progress, self._lives.get(local_rank, Life())
        # The last word stays when the memory is gone.
        return self._pulses.look(local_rank, Pulse() if progress is None else progress.pulse(local_rank), life, slot)

    def learned(self) -> tuple[Learned, ...]:
        """Return how long the phases of the workers took so far in this round."""
        return self._pulses.learned(self._progress, range(self._config.plan.nproc_per_node))

    def _look(self, worker: Worker) -> tuple[ProgressSlot, Vital]:
        """Return what a worker said last, and how it is."""
        local_rank = worker.place.local_rank
        slot, life = self._read(local_rank), self._lives.get(local_rank, Life())
        pids = (life.pid, worker.pid) if worker.code is None else ()
        return slot, self._vitals.look(local_rank, pids, slot.liveness + life.steps, self._now())

    async def evidence(self, number: int) -> Evidence:
        """Return what can be found of the workers, with their stacks, as the answer to the coordinator's request `number`."""
        assignment = self._workers[0].place.assignment if self._workers else None
        round_ = 0 if assignment is None else assignment.fence.round
        file = self._config.log_folder / f"round-{round_}" / f"hang-{number}.txt"
        taken = await take(number, [self._subject(worker) for worker in self._workers], round_=round_, file=file)
        if taken.path:
            self._looks[taken.path] = self._signs()
        return taken

    def settle_evidence(self) -> None:
        """Keep the evidence of this round after which no worker has shown a sign of life; a second call changes nothing.

        Call it before workers are stopped, since the error that ends one of them may look like a sign of life.
        """
        looks, self._looks = self._looks, {}
        if looks and not all(worker.code == 0 for worker in self._workers):
            now = self._signs()
            self._evidence += [path for path, signs in looks.items() if signs == now and path not in self._evidence]

    def _signs(self) -> tuple[tuple[int, int], ...]:
        return tuple((report.liveness, report.beat) for report in self.reports())

    def _subject(self, worker: Worker) -> Subject:
        local_rank, life = worker.place.local_rank, self._lives.get(worker.place.local_rank, Life())
        asked = Asked(local_rank=local_rank, pid=life.pid, stacks=life.stacks, file=worker.place.stack_file)
        if worker.code is not None:
            asked = dataclasses.replace(asked, note=f"the worker exited with code {worker.code}")

        def look() -> RankSeen:
            now = self._now()
            slot, vital = self._look(worker)
            seen = self._seen(local_rank, slot)
            return RankSeen(
                local_rank=local_rank,
                pid=vital.pid,
                step=slot.step,
                liveness=vital.liveness,
                quiet=vital.quiet(now),
                cpu=vital.used(now),
                state=vital.state,
                gpu=seen.gpu,
                device="; ".join(map(str, self._devices.faults(local_rank))),
                phase="" if seen.phase is None else seen.phase.value,
                collective="" if self._progress is None else called(self._progress.pulse(local_rank)),
            )

        return Subject(rank=worker.place.rank, asked=asked, look=look)

    def exit_status(self, worker: Worker) -> ExitStatus | None:
        """Return with which status a worker of this round is about to end; None where it has not said."""
        if self._progress is None or worker not in self._workers:
            return None
        return self._progress.life(worker.place.local_rank).exit_status

    def _read(self, local_rank: int) -> ProgressSlot:
        slot = None
        if self._progress is not None:
            # A worker is the user's code: what it scribbles into the shared file must not end its agent.
            with contextlib.suppress(ValueError):
                slot = self._progress.read(local_rank)
                self._lives[local_rank] = self._progress.life(local_rank)
        if slot is not None:
            self._last[local_rank] = slot
        slot = self._last.get(local_rank, ProgressSlot())
        for capability in self._capabilities:
            slot = capability.progress(local_rank, slot)
        return slot

    async def finish(self) -> None:
        """Let the last lines out and drop the shared memory; the logs stay."""
        await self._tee.finish()
        self.settle_evidence()
        self.reports()  # the last look into the shared memory
        progress, path = self._progress, self._progress_path
        self._progress = self._progress_path = None
        if progress is not None and path is not None:
            progress.close()
            await asyncio.to_thread(path.unlink, missing_ok=True)
            await asyncio.to_thread(_forget_stacks, self._workers)


def _forget_stacks(workers: list[Worker]) -> None:
    for worker in workers:
        for path in (worker.place.stack_file, *files(worker.place.stack_file)):
            path.unlink(missing_ok=True)


def _numbers(metrics: object) -> dict[str, float]:
    """Keep what the wire can carry of metrics that a worker wrote."""
    if not isinstance(metrics, dict):
        return {}
    return {str(name): float(value) for name, value in metrics.items() if isinstance(value, (int, float))}


def _make_progress(path: Path, slots: int) -> ProgressFile:
    try:
        private_folder(path.parent)
        return ProgressFile.create(path, slots)
    except OSError as error:
        raise ConfigError(f"folder {path.parent}: cannot write {path.name}: {error.strerror}") from error


def _open_all(folder: Path, ranks: range, streams: Streams) -> list[OpenLogs]:
    opened: list[OpenLogs] = []
    try:
        for local_rank, rank in enumerate(ranks):
            opened.append(open_logs(folder, rank, streams.filed(local_rank)))
    except ConfigError:
        for logs in opened:
            logs.close()
        raise
    return opened
