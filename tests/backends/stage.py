"""A backend together with hands that do what outside of it happens: nodes end, coordinators speak, workers write."""

from __future__ import annotations

import abc
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rallypoint.backends.contract import Backend, LogLine
from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.local.layout import JobFolder
from rallypoint.job import ElasticJob, load_job
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.env import JOB_MARK
from rallypoint.wire.fence import Fence
from rallypoint.wire.status import JobState, JobStatus, Outcome, Progress, Verdict
from tests.backends.fake import FakeBackend, World
from tests.leftovers import marked_with
from tests.waiting import eventually

__all__ = ["FAST", "STAND_IN", "FakeStage", "LocalStage", "Stage", "remove_tree", "running", "verdict"]

STAND_IN = Path(__file__).with_name("stand_in.py")

#: Policies without pauses.
FAST: dict[str, Any] = {
    "fault_tolerance": {"retry_limit": 1, "retry_pause_period": 0, "failure_grace_period": 0},
    "recovery": {"node_replacements": 0, "stop_grace_period": 0},
}


def running(record: JobRecord, step: int | None = None) -> JobStatus:
    """What a coordinator says while the current attempt trains."""
    fence = Fence(attempt=record.attempt, term=record.term, round=1)
    return JobStatus(job=record.name, uid=record.uid, fence=fence, state=JobState.RUNNING, progress=Progress(step=step))


def verdict(record: JobRecord, outcome: Outcome, message: str = "every worker ended") -> JobStatus:
    """What a coordinator says when the current attempt is over."""
    fence = Fence(attempt=record.attempt, term=record.term, round=1)
    state = JobState.SUCCEEDED if outcome is Outcome.SUCCEEDED else JobState.FAILED
    reason = "Completed" if outcome is Outcome.SUCCEEDED else "WorkersFailed"
    said = Verdict(outcome=outcome, reason=reason, message=message)
    return JobStatus(job=record.name, uid=record.uid, fence=fence, state=state, verdict=said)


class Stage(abc.ABC):
    """One place where jobs run."""

    backend: Backend

    #: How the refusal begins that `break_submissions` brings about.
    refusal = "entrypoint: "

    #: What was removed is remembered with the way it ended.
    remembers = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text("print('never run')\n")

    def job(self, name: str = "digits", **fields: Any) -> ElasticJob:
        """A job that can be submitted here."""
        what = {} if "roles" in fields else {"entrypoint": "train.py"}
        return load_job({"name": name, **what, **FAST, **fields}, base=self.folder)

    async def close(self) -> None:  # noqa: B027  most stages hold nothing
        """Let go of what the stage holds."""

    @abc.abstractmethod
    def another(self) -> Backend:
        """The same place as another process would open it."""

    @abc.abstractmethod
    def break_submissions(self) -> None:
        """From now on something is missing here that `job` needs."""

    @abc.abstractmethod
    def clock(self) -> Callable[[], float]:
        """The wall clock of this place."""

    @abc.abstractmethod
    def end_node(self, record: JobRecord, node: int, exit_code: int) -> None:
        """Let a node of the current attempt (its first incarnation) end by itself."""

    @abc.abstractmethod
    def say(self, status: JobStatus) -> None:
        """Let the coordinator say something."""

    @abc.abstractmethod
    def delete_from_outside(self, name: str) -> None:
        """Remove all that stands for a job, as somebody does who knows nothing of Rallypoint."""

    @abc.abstractmethod
    def left_of(self, record: JobRecord) -> int:
        """How much of a job that was deleted by another client still runs."""

    @abc.abstractmethod
    def write_log(self, line: LogLine, *, attempt: int, round_: int, end: str = "\n") -> None:
        """Let a worker of node 0's first incarnation write a line."""


class FakeStage(Stage):
    """The fake backend's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.world = World()
        self.backend = FakeBackend(self.world)

    def another(self) -> Backend:
        return FakeBackend(self.world)

    def break_submissions(self) -> None:
        self.world.refusal = "entrypoint: the script is not there"

    def clock(self) -> Callable[[], float]:
        return self.world.clock

    def end_node(self, record: JobRecord, node: int, exit_code: int) -> None:
        self.world.end(record.name, (record.attempt, node, 1), exit_code)

    def say(self, status: JobStatus) -> None:
        self.world.jobs[status.job].status = status
        self.world.changed += 1

    def delete_from_outside(self, name: str) -> None:
        self.world.delete_from_outside(name)

    def left_of(self, record: JobRecord) -> int:
        return self.world.left[record.uid]

    def write_log(self, line: LogLine, *, attempt: int, round_: int, end: str = "\n") -> None:
        if end:
            self.world.jobs["digits"].logs.append(line)


class LocalStage(Stage):
    """The local backend's, with stand-ins for agents."""

    def __init__(self, folder: Path, home: Path, *flags: str) -> None:
        super().__init__(folder)
        self.home = home
        self.agent = (sys.executable, "-I", "-S", str(STAND_IN), *flags)
        self.backend = LocalBackend(home, agent_command=self.agent)

    def folder_of(self, name: str) -> JobFolder:
        return JobFolder(path=self.home / "jobs" / name)

    def another(self) -> Backend:
        return LocalBackend(self.home, agent_command=self.agent)

    def break_submissions(self) -> None:
        self.script.unlink()

    def clock(self) -> Callable[[], float]:
        return time.time

    def end_node(self, record: JobRecord, node: int, exit_code: int) -> None:
        path = self.folder_of(record.name).node(node, record.attempt, 1).path
        eventually((path / "started").exists)
        _replace(path / "end", str(exit_code))

    def say(self, status: JobStatus) -> None:
        _replace(self.folder_of(status.job).status, codec.dumps(status))

    def delete_from_outside(self, name: str) -> None:
        remove_tree(self.folder_of(name).path)

    def left_of(self, record: JobRecord) -> int:
        return len(marked_with(f"{JOB_MARK}={record.uid}/"))

    def write_log(self, line: LogLine, *, attempt: int, round_: int, end: str = "\n") -> None:
        folder = self.folder_of("digits").node(0, attempt, 1).path / "logs" / f"round-{round_}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"rank-{line.rank}.{line.stream}").open("a") as file:
            file.write(line.text + end)


def remove_tree(path: Path) -> None:
    """Remove a folder as `rm -rf` does, again if somebody who is not gone yet puts a file into it meanwhile."""

    def removed() -> bool:
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()

    eventually(removed)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(text)
    temporary.replace(path)
