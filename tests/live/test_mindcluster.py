"""Profile `mindcluster`, on real processes: each strategy, mode and clock of MindCluster acts, and no other one.

Jobs are submitted as users do. The table of docs/guides/mindcluster.md names the test of each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.incident import Cause, Incident, Rung
from rallypoint.wire.status import JobStatus
from tests.live.jobs import Job
from tests.waiting import eventually

SCRIPT = Path(__file__).parent / "scripts" / "recovering.py"
GRACE = {"fault-scheduling": "grace"}


@dataclass(frozen=True)
class Line:
    """What a rank noted at the start of a round, or after a step."""

    attempt: int
    round: int
    pid: int
    step: int
    world: int


@dataclass
class Elastic:
    """A job of scripts/recovering.py: one worker on each node."""

    job: Job

    @classmethod
    def submit(cls, folder: Path, home: Path, *flags: str, nodes: str = "2", **fields: Any) -> Elastic:
        work = folder / "work"
        work.mkdir()
        job = Job.write(folder, home, str(work), *flags, entrypoint=str(SCRIPT), nodes=nodes, **{**settings(), **fields})
        return cls(without_retry_limit(job).submit())

    @property
    def work(self) -> Path:
        return self.job.folder / "work"

    def lines(self, rank: int) -> list[Line]:
        path = self.work / f"steps.{rank}"
        rows = path.read_text().splitlines() if path.exists() else []
        return [Line(*map(int, row.split())) for row in rows if len(row.split()) == 5]

    def trains(self, *ranks: int, attempt: int = 1, round_: int = 1, steps: int = 2) -> dict[int, Line]:
        """Wait until these ranks have finished steps in a round from `round_` on; return the last line of each."""

        def ready() -> dict[int, Line] | None:
            assert not self.job.record.finished, self.job.tell()
            found = {}
            for rank in ranks:
                rows = [line for line in self.lines(rank) if (line.attempt, line.round) >= (attempt, round_)]
                if not rows or sum(line.round == rows[-1].round for line in rows) <= steps:
                    return None
                found[rank] = rows[-1]
            return found

        why = f"ranks {ranks} should train in round {round_} of attempt {attempt}"
        return eventually(ready, timeout=30.0, why=lambda: f"{why}: {self.job.tell()}")

    def breaks(self, rank: int, how: str) -> None:
        (self.work / f"fault.{rank}").write_text(how)

    def ends(self) -> JobRecord:
        (self.work / "enough").touch()
        return self.job.ends(timeout=30.0)


def settings() -> dict[str, Any]:
    """Return the fields that all jobs here have."""
    return {
        "nproc_per_node": 1,
        "recovery": {"stop_grace_period": "1s"},
        "health": {"report_interval": "100ms", "node_lease": "15s"},
    }


def without_retry_limit(job: Job) -> Job:
    """Let the budget of a job follow its label fault-retry-times."""
    path = job.folder / "job.json"
    document = json.loads(path.read_text())
    del document["fault_tolerance"]["retry_limit"]
    path.write_text(json.dumps(document))
    return job


def faults(record: JobRecord, attempt: int = 1) -> list[Incident]:
    """Return the incidents of an attempt in the order in which they were detected, without the resets."""
    found = [i for i in record.incidents if i.id.attempt == attempt and i.rung is not Rung.RESET]
    return sorted(found, key=lambda incident: incident.detected_at)


def rungs(record: JobRecord, attempt: int = 1) -> list[Rung]:
    return [incident.rung for incident in faults(record, attempt)]


def test_a_step_that_always_raises_climbs_to_the_last_checkpoint(tmp_path: Path, home: Path) -> None:
    """retry, then recover-in-place, then recover, then dump: each once, and the other rank keeps its process for all of it.

    The replaced pod costs the one restart of fault-retry-times, so that the job has failed when its checkpoint is written.
    """
    run = Elastic.submit(
        tmp_path,
        home,
        labels={**GRACE, "fault-retry-times": "1"},
        annotations={"recover-strategy": "exit,dump,recover,retry,recover-in-place"},
    )
    run.trains(0, 1)
    run.breaks(1, "always")
    record = run.job.ends(timeout=30.0)

    assert rungs(record) == [Rung.RETRY, Rung.RECOVER_IN_PLACE, Rung.RECOVER, Rung.DUMP], run.job.tell()
    assert (record.phase, len(record.charges)) == (Phase.FAILED, 1)
    worlds = {rank: list(dict.fromkeys((line.round, line.pid) for line in run.lines(rank))) for rank in (0, 1)}
    assert [round_ for round_, _ in worlds[0]] == [1, 2, 3, 4]
    assert len({pid for _, pid in worlds[0]}) == 1
    first, second, third, fourth = (pid for _, pid in worlds[1])
    assert first == second, "a retry restarts nobody"
    assert len({second, third, fourth}) == 3
    [stored] = FolderStore(run.work / "storage").complete()
    assert stored.step == max(line.step for line in run.lines(0))


def test_retry_and_recover_in_place(tmp_path: Path, home: Path) -> None:
    """A step that raises is run again by the same processes; a killed process alone is replaced, in its pod."""
    run = Elastic.submit(tmp_path, home, labels=GRACE, annotations={"recover-strategy": "retry,recover-in-place,recover,dump"})
    before = run.trains(0, 1)
    run.breaks(1, "raise")
    retried = run.trains(0, 1, round_=2)
    run.breaks(1, "kill")
    in_place = run.trains(0, 1, round_=3)
    record = run.ends()

    assert rungs(record) == [Rung.RETRY, Rung.RECOVER_IN_PLACE], run.job.tell()
    assert [retried[rank].pid for rank in (0, 1)] == [before[rank].pid for rank in (0, 1)]
    assert in_place[0].pid == before[0].pid
    assert in_place[1].pid != before[1].pid
    assert all(incident.steps_lost == 0 for incident in faults(record))
    assert (record.phase, record.restarts, [slot.incarnation for slot in record.slots]) == (Phase.SUCCEEDED, 0, [1, 1])


def test_recover_answers_ends_of_processes_and_of_nodes(tmp_path: Path, home: Path) -> None:
    """`--enable-worker-reboot` asks for it: the pod of the fault is replaced, and all other processes live.

    The pod of rank 0 is not replaced for a broken process, since that would restart the whole job: the process alone is.
    """
    run = Elastic.submit(
        tmp_path,
        home,
        *("--enable-high-availability", "--enable-worker-reboot"),
        labels={**GRACE, "fault-retry-times": "1"},
    )
    first = run.trains(0, 1)
    run.breaks(1, "kill")
    second = run.trains(0, 1, round_=2)
    lose_host(run.job, 1)
    third = run.trains(0, 1, round_=3)
    run.breaks(0, "kill")
    fourth = run.trains(0, 1, round_=4)
    record = run.ends()

    assert rungs(record) == [Rung.RECOVER] * 3, run.job.tell()
    assert [incident.cause for incident in faults(record)] == [Cause.NODE, Cause.EVACUATION, Cause.PROCESS]
    assert first[0].pid == second[0].pid == third[0].pid != fourth[0].pid
    assert len({first[1].pid, second[1].pid, third[1].pid}) == 3
    assert third[1].pid == fourth[1].pid
    assert (record.phase, len(record.charges), record.restarts) == (Phase.SUCCEEDED, 1, 2)
    assert [slot.incarnation for slot in record.slots] == [1, 3]


def test_elastic_training_goes_on_without_the_scheduler(tmp_path: Path, home: Path) -> None:
    """Without fault-scheduling no pod comes back: the world shrinks at once, the other process lives, and the job succeeds."""
    run = Elastic.submit(tmp_path, home, nodes="1:2", annotations={"recover-strategy": "elastic-training"})
    before = run.trains(0, 1)
    lose_host(run.job, 1)
    after = run.trains(0, round_=2, steps=20)
    unhealthy = run.job.record
    record = run.ends()

    assert rungs(record) == [Rung.ELASTIC_TRAINING], run.job.tell()
    assert (after[0].pid, after[0].world) == (before[0].pid, 1)
    assert unhealthy.phase is Phase.RUNNING
    assert (record.phase, record.attempt, record.restarts) == (Phase.SUCCEEDED, 1, 0)


def test_dump_saves_what_survives_a_lost_node(tmp_path: Path, home: Path) -> None:
    """The pod of rank 0 is lost: the whole job is rescheduled, but first the other node's memory becomes a checkpoint."""
    run = Elastic.submit(tmp_path, home, labels=GRACE, annotations={"recover-strategy": "recover,dump"})
    run.trains(0, 1)
    lose_host(run.job, 0)
    run.trains(0, 1, attempt=2)
    record = run.ends()

    last = max(line.step for line in run.lines(1) if line.attempt == 1)
    resumed = next(line.step for line in run.lines(1) if line.attempt == 2)
    assert last - 1 <= resumed <= last, "at most the step that was under way is lost"
    assert rungs(record) == [Rung.DUMP], run.job.tell()
    assert (record.phase, record.attempt, len(record.charges)) == (Phase.SUCCEEDED, 2, 0)


@pytest.mark.usefixtures("light")
def test_job_level_rescheduling(tmp_path: Path, home: Path) -> None:
    """Without pod-rescheduling a lost pod costs all of them, and nothing of fault-retry-times."""
    job = counting(tmp_path, home, labels=GRACE).submit()
    job.trains(ranks=2)
    lose_host(job, 1)
    record = reaches(job, 2)
    job.may_end()

    assert (len(record.charges), record.restarts) == (0, 1)
    assert job.ends().phase is Phase.SUCCEEDED


@pytest.mark.usefixtures("light")
def test_pod_level_rescheduling_and_its_budget(tmp_path: Path, home: Path) -> None:
    """With pod-rescheduling only the faulty pod is replaced, also when its max_restarts are spent; then the budget is.

    A lost host costs nothing, the end of a container one of fault-retry-times; the second such end is left alone.
    """
    job = counting(
        tmp_path,
        home,
        labels={**GRACE, "pod-rescheduling": "on", "fault-retry-times": "1"},
        recovery={"max_restarts": 0, "stop_grace_period": "1s"},
    ).submit()
    status = job.trains(ranks=2)
    agent = agents(job, 0)
    lose_host(job, 1)
    status = job.trains(ranks=2, round_=2)
    assert (job.record.restarts, len(job.record.charges)) == (1, 0)
    kill_worker(job, status, 1)
    status = job.trains(ranks=2, round_=3)
    assert (job.record.restarts, len(job.record.charges), agents(job, 0)) == (2, 1, agent)
    kill_worker(job, status, 1)
    record = job.ends()

    assert (record.phase, record.attempt) == (Phase.FAILED, 1)
    assert record.verdict is not None
    assert "all 0 restarts are spent" in record.verdict.message or "no restart is allowed" in record.verdict.message
    assert "1 of 1 fault-retry-times are used" in record.verdict.message


@pytest.mark.usefixtures("light")
def test_the_backoff_limit_ends_every_kind_of_restart(tmp_path: Path, home: Path) -> None:
    """One restart for a lost host is made, the next is not; and retry_limit bounds those that cost something."""
    job = counting(tmp_path, home, labels={**GRACE, "pod-rescheduling": "on"}, mindcluster={"backoff_limit": 1}).submit()
    job.trains(ranks=2)
    lose_host(job, 1)
    job.trains(ranks=2, round_=2)
    lose_host(job, 1)
    record = job.ends()

    assert (record.phase, record.restarts) == (Phase.FAILED, 1)
    assert record.verdict is not None
    assert "1 restarts were made, and the backoff limit is 1" in record.verdict.message


@pytest.mark.usefixtures("light")
def test_elastic_wait_and_the_pod_that_comes_back(tmp_path: Path, home: Path) -> None:
    """The world shrinks only when the lost pod is not back within elastic_wait, and grows when it is there."""
    gate = tmp_path / "closed"
    job = counting(
        tmp_path,
        home,
        nodes="1:2",
        labels=GRACE,
        annotations={"recover-strategy": "elastic-training"},
        mindcluster={"elastic_wait": "2s"},
        setup_commands=[f"while [ -e {gate} ]; do sleep 0.05; done"],
    ).submit()
    job.trains(ranks=2)
    lose_host(job, 1)
    status = job.trains(ranks=2, round_=2)
    assert [event.kind for event in status.events].count("awaiting") == 1, "the pod was back in time"

    gate.touch()
    lose_host(job, 1)
    status = job.trains(ranks=1, round_=3)
    lost = max(incident.detected_at for incident in status.incidents if incident.rung is Rung.ELASTIC_TRAINING)
    formed = max(event.at for event in status.events if event.kind == "round")
    assert formed - lost >= 2.0
    gate.unlink()
    job.trains(ranks=2, round_=4)
    job.may_end()
    assert job.ends().phase is Phase.SUCCEEDED


@pytest.mark.usefixtures("light")
def test_a_pause_by_the_user_leaves_the_scheduler(tmp_path: Path, home: Path) -> None:
    """process-recover-enable: pause switches every strategy off but exit: the lost pod costs the whole job."""
    job = counting(
        tmp_path,
        home,
        labels={**GRACE, "process-recover-enable": "pause"},
        annotations={"recover-strategy": "recover,recover-in-place"},
    ).submit()
    status = job.trains(ranks=2)
    kill_worker(job, status, 1)
    status = job.trains(ranks=2, round_=2)
    assert [incident.rung for incident in status.incidents] == [Rung.RESTART_WORKERS]
    lose_host(job, 1)
    reaches(job, 2)
    job.may_end()
    assert job.ends().phase is Phase.SUCCEEDED


@pytest.mark.usefixtures("light")
def test_grace_over_time_forces_a_deletion(tmp_path: Path, home: Path) -> None:
    """A pod that does not end when it is asked to is deleted by force after grace_over_time."""
    job = counting(
        tmp_path, home, labels=GRACE, mindcluster={"grace_over_time": "2s"}, recovery={"stop_grace_period": "1s"}
    ).submit()
    job.trains(ranks=2)
    [stopped] = [process for process in job.agents("node") if "--node 0 " in process.command]
    stopped.kill(19)
    lose_host(job, 1)
    record = reaches(job, 2)
    job.may_end()

    reset = next(event for event in record.history if event.kind == "resetting")
    resumed = next(event for event in record.history if event.kind == "resuming" and event.at > reset.at)
    assert resumed.at - reset.at >= 2.0
    assert job.ends().phase is Phase.SUCCEEDED


def counting(folder: Path, home: Path, **fields: Any) -> Job:
    """Return an endless job of scripts/count.py: two nodes with a worker each."""
    return without_retry_limit(Job.write(folder, home, 1, 0.05, endless=True, **{"nodes": 2, **settings(), **fields}))


def agents(job: Job, node: int) -> list[int]:
    return [process.pid for process in job.agents("node") if f"--node {node} " in process.command]


def lose_host(job: Job, node: int) -> None:
    """Kill everything that runs on a node, its shim first, so that nothing tells how its agent ended."""
    found = job.processes("rallypoint", f"--node {node} ")
    assert found, job.tell()
    for process in sorted(found, key=lambda process: "shim" not in process.command):
        process.kill()


def kill_worker(job: Job, status: JobStatus, rank: int) -> None:
    pid = next(worker.pid for worker in status.ranks if worker.rank == rank)
    next(process for process in job.processes() if process.pid == pid).kill()


def reaches(job: Job, attempt: int) -> JobRecord:
    """Wait for an attempt to begin."""

    def begun() -> JobRecord | None:
        record = job.record
        assert not record.finished, job.tell()
        return record if record.attempt >= attempt else None

    return eventually(begun, timeout=30.0, why=job.tell)
