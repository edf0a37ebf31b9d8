"""One DAG run of a scenario: what is seen of its task, its job and their processes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rallypoint.provider.naming import default_name
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire import codec
from rallypoint.wire.status import JobStatus
from tests.airflow.deployment import TRIGGERERS, Component, Deployment
from tests.airflow.processes import Process, kill, of_job, processes
from tests.airflow.rest import Task
from tests.airflow.scenario import Fate, Mode, Moment
from tests.waiting import eventually

__all__ = ["OVER", "SOON", "TASK", "Stage"]

TASK = "train"

#: States in which a task stays.
OVER = frozenset({"failed", "removed", "skipped", "success", "upstream_failed"})

#: Seconds on a quiet machine for anything that Airflow does by itself within seconds; waiting is free where all is well.
SOON = 30.0

_ORPHANED = "Orphaned"


@dataclass
class Stage:
    """A run of one of the two DAGs in a folder of its own, which its task and its training write to."""

    made: Deployment
    mode: Mode
    run: str
    lease: float
    uids: set[str] = field(default_factory=set)
    was_orphaned: bool = False  #: it was seen to end by its lease, whatever has become of it since

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)

    @property
    def folder(self) -> Path:
        """Where the gates and the ledger are."""
        return self.made.folder / "runs" / self.run

    @property
    def dag(self) -> str:
        """The DAG's id."""
        return self.mode.value

    @property
    def job(self) -> str:
        """The job's name."""
        return default_name(dag_id=self.dag, run_id=self.run, task_id=TASK, map_index=-1)

    @property
    def place(self) -> Path:
        """The job's folder."""
        return self.made.home / "jobs" / self.job

    def begin(self) -> None:
        """Trigger the DAG run."""
        at, held = (self.folder / f"{word}-{Moment.ROUND_FORMING.value}" for word in ("at", "hold"))
        setup = f"touch {at}; while [ -e {held} ]; do sleep 0.1; done"
        conf = {"folder": str(self.folder), "lease": f"{self.lease:g}s", "setup": setup}
        self.made.rest.trigger(self.dag, self.run, conf)

    def may_end(self) -> None:
        """Let the training come to its end."""
        (self.folder / "enough").touch()

    @property
    def task(self) -> Task | None:
        """The task instance as Airflow has it now."""
        return self.made.rest.task(self.dag, self.run, TASK)

    @property
    def record(self) -> JobRecord | None:
        """The job's record on disk; its uid is remembered."""
        try:
            record = JobRecord.from_json((self.place / "record.json").read_bytes())
        except FileNotFoundError:
            return None
        self.uids.add(record.uid)
        return record

    def is_at(self, moment: Moment) -> dict[str, Any]:
        """Return what was told at a gate; empty before."""
        try:
            text = (self.folder / f"at-{moment.value}").read_text()
        except FileNotFoundError:
            return {}
        told: dict[str, Any] = json.loads(text or '{"pid": 0}')
        return told

    def ledger(self, what: str) -> int:
        """Return how many lines of a kind the training wrote."""
        try:
            lines = (self.folder / "ledger").read_text().splitlines()
        except FileNotFoundError:
            return 0
        return sum(json.loads(line)["what"] == what for line in lines)

    @property
    def watcher(self) -> int:
        """The process that supervises the job, 0 while none that lives does."""
        record = self.record
        if record is None or record.holder is None or not Path(f"/proc/{record.holder.pid}/stat").exists():
            return 0
        return record.holder.pid

    @property
    def triggerer(self) -> Component | None:
        """The triggerer that supervises the job; None while none that lives does."""
        watcher = self.watcher
        with contextlib.suppress(ProcessLookupError):
            session = os.getsid(watcher) if watcher else 0
            return next((one for one in self._triggerers() if one.up and one.pid == session), None)
        return None

    def _triggerers(self) -> list[Component]:
        return [self.made.components[name] for name in TRIGGERERS]

    @property
    def trains(self) -> bool:
        """Whether the training has begun, and is watched from where the task waits."""
        return bool(self.ledger("begins")) and self.is_watched

    @property
    def is_watched(self) -> bool:
        """Whether somebody supervises the job from where the task waits."""
        return self.triggerer is not None if self.mode is Mode.DEFERRED else bool(self.watcher)

    @property
    def is_watched_by_its_task(self) -> bool:
        """Whether the present try has the job, and somebody who lives supervises it."""
        record, task = self.record, self.task
        return bool(record and task and record.owner == task.id and self.watcher and self.ledger("begins"))

    def comes_to(self, moment: Moment) -> None:
        """Wait for a moment; fails at once when the task is over before."""

        def has_come() -> bool:
            task = self.task
            state = None if task is None else task.state
            assert state not in OVER, f"the task is over before it comes to {moment.value}: {state}"
            return self._is_in(moment, state)

        self.waits(has_come, f"should come to {moment.value}")

    def _is_in(self, moment: Moment, state: str | None) -> bool:
        if moment is Moment.QUEUED:
            return state == "queued"
        if moment.is_gate:
            return bool(self.is_at(moment))
        if moment is Moment.ROUND_FORMING:
            return bool(self.is_at(moment)) and self.is_watched
        return self.trains and state == ("running" if self.mode is Mode.SYNC else "deferred")

    def waits(self, predicate: Callable[[], object], what: str) -> None:
        """Wait until something is so, as long as Airflow runs."""

        def holds() -> bool:
            self.made.check()
            self.record  # noqa: B018  each look remembers the job that is there
            return bool(predicate())

        eventually(holds, timeout=SOON, every=0.1, why=f"{self.run} {what}")

    def executor_workers(self) -> list[Process]:
        """Return the executor's workers."""
        scheduler = self.made.components["scheduler"].pid
        return [one for one in processes() if one.parent == scheduler and "LocalExecutor:" in one.title]

    @property
    def fate(self) -> Fate | None:
        """What has become of the job; None while it is not over."""
        record = self.record
        self.was_orphaned = self.was_orphaned or self._is_orphaned()
        if self.was_orphaned:
            return Fate.LEASE
        if record is None:
            return Fate.DELETED if self.uids else Fate.NEVER
        return Fate.SUCCEEDS if record.phase is Phase.SUCCEEDED and record.collected_by else None

    def _is_orphaned(self) -> bool:
        """Whether the coordinator's last word is that nobody supervises the job."""
        with contextlib.suppress(FileNotFoundError):
            verdict = codec.loads(JobStatus, (self.place / "status.json").read_bytes()).verdict
            return verdict is not None and verdict.reason == _ORPHANED
        return False

    def leftovers(self) -> list[Process]:
        """Return the processes that still run for the job."""
        return [one for uid in self.uids or {""} for one in of_job(self.job, uid)]

    def tidy(self) -> None:
        """End whatever is left, so that the next scenario begins as this one did."""
        self.may_end()
        for path in self.folder.glob("hold-*"):
            path.unlink()
        kill(one.pid for one in self.leftovers())

    def tell(self) -> str:
        """Return what there is to say of a run that did not go as it should."""
        record = self.record
        lines = [f"task {self.task}", f"run {self.made.rest.run_state(self.dag, self.run)}"]
        lines += [f"files {sorted(path.name for path in self.folder.iterdir())}"]
        if record is not None:
            lines += [
                f"job {record.phase.value} owner {record.owner} holder {record.holder} collected by {record.collected_by!r}"
            ]
            lines += [f"  {event.kind}: {event.detail}" for event in record.history]
        lines += [f"  {one.pid} {one.title}" for one in self.leftovers()]
        log = self.made.folder / "airflow" / "logs" / f"dag_id={self.dag}" / f"run_id={self.run}"
        lines += [f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(log.rglob("*.log"))]
        return "\n".join(lines)
