"""Profile `mindcluster`, on real processes: each strategy, mode and clock of MindCluster acts, and no other one.

Jobs are submitted as users do. The table of tests/compat/mindcluster/README.md names the test of each.
"""

from __future__ import annotations

import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.supervision.record import Phase
from rallypoint.wire.incident import Cause, Rung
from tests.live.jobs import Job
from tests.live.mindcluster_jobs import (
    GRACE,
    Elastic,
    agents,
    counting,
    drain,
    faults,
    kill_worker,
    looks,
    lose_host,
    reaches,
    rewritten,
    rungs,
)
from tests.waiting import eventually


@pytest.mark.extended
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


@pytest.mark.extended
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


@pytest.mark.extended
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


@pytest.mark.extended
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


@pytest.mark.extended
@pytest.mark.parametrize(
    "reports", [pytest.param("100ms", id="snapshots reported"), pytest.param("10s", id="not reported yet")]
)
def test_dump_saves_what_survives_a_lost_node(tmp_path: Path, home: Path, reports: str) -> None:
    """The pod of rank 0 is lost: the whole job is rescheduled, but first the other node's memory becomes a checkpoint."""
    health = {"report_interval": reports, "node_lease": "40s"}
    run = Elastic.submit(tmp_path, home, labels=GRACE, annotations={"recover-strategy": "recover,dump"}, health=health)
    run.trains(0, 1)
    lose_host(run.job, 0)
    run.trains(0, 1, attempt=2)
    record = run.ends()

    last = max(line.step for line in run.lines(1) if line.attempt == 1)
    resumed = next(line.step for line in run.lines(1) if line.attempt == 2)
    assert last - 1 <= resumed <= last, "at most the step that was under way is lost"
    assert rungs(record) == [Rung.DUMP], run.job.tell()
    assert (record.phase, record.attempt, len(record.charges)) == (Phase.SUCCEEDED, 2, 0)


@pytest.mark.extended
def test_dump_saves_what_survives_a_drained_pod(tmp_path: Path, home: Path) -> None:
    """Its agent leaves after SIGTERM. Pod 0 cannot be replaced alone, so the memory of node 1 becomes a checkpoint.

    A pod that was asked to end costs nothing of fault-retry-times.
    """
    labels = {**GRACE, "fault-retry-times": "0"}
    run = Elastic.submit(tmp_path, home, labels=labels, annotations={"recover-strategy": "recover,dump"})
    run.trains(0, 1)
    drain(run.job, 0)
    run.trains(0, 1, attempt=2)
    record = run.ends()

    last = max(line.step for line in run.lines(1) if line.attempt == 1)
    resumed = next(line.step for line in run.lines(1) if line.attempt == 2)
    assert last - 1 <= resumed <= last, run.job.tell()
    assert "saved a last checkpoint of step" in record.attempts[0].message
    assert rungs(record).count(Rung.DUMP) == 1, run.job.tell()
    assert (record.phase, record.attempt, len(record.charges)) == (Phase.SUCCEEDED, 2, 0)


@pytest.mark.extended
def test_a_last_checkpoint_is_the_end_of_an_attempt(tmp_path: Path, home: Path) -> None:
    """A rank reports lost connections only, and all nodes are back before another cause shows: no round follows the dump."""
    run = Elastic.submit(tmp_path, home, labels={**GRACE, "fault-retry-times": "0"}, annotations={"recover-strategy": "dump"})
    run.trains(0, 1)
    run.breaks(1, "echo")
    record = run.job.ends(timeout=30.0)

    assert rungs(record) == [Rung.DUMP], run.job.tell()
    assert {line.round for rank in (0, 1) for line in run.lines(rank)} == {1}
    assert record.verdict is not None
    assert "saved a last checkpoint of step" in record.verdict.message


@pytest.mark.extended
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
    """With pod-rescheduling only the faulty pod is replaced, also when its max_restarts are used up; then the budget is.

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
    assert (
        "all 0 restarts are used up" in record.verdict.message
        or "restarts are disabled (the limit is 0)" in record.verdict.message
    )
    assert "1 of 1 fault-retry-times are used" in record.verdict.message


@pytest.mark.extended
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
    assert "1 restarts reach the backoff limit of 1" in record.verdict.message


@pytest.mark.extended
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


@pytest.mark.extended
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


@pytest.mark.extended
@pytest.mark.usefixtures("light")
def test_grace_over_time_forces_a_deletion(tmp_path: Path, home: Path) -> None:
    """A pod that does not end when it is asked to is deleted by force after grace_over_time."""
    job = counting(
        tmp_path, home, labels=GRACE, mindcluster={"grace_over_time": "2s"}, recovery={"stop_grace_period": "1s"}
    ).submit()

    assert seconds_of_a_reset(job) >= 2.0
    assert job.ends().phase is Phase.SUCCEEDED


@pytest.mark.extended
@pytest.mark.usefixtures("light")
def test_force_deletes_at_once(tmp_path: Path, home: Path) -> None:
    """`fault-scheduling: force` waits neither for the grace of a pod nor for grace_over_time."""
    job = counting(tmp_path, home, labels={"fault-scheduling": "force"}, recovery={"stop_grace_period": "10m"}).submit()

    assert seconds_of_a_reset(job) < 30.0
    assert job.ends().phase is Phase.SUCCEEDED


def seconds_of_a_reset(job: Job) -> float:
    """Lose node 1 while node 0 is stopped; return how long the reset takes."""
    job.trains(ranks=2)
    [stopped] = [process for process in job.agents("node") if "--node 0 " in process.command]
    stopped.kill(signal.SIGSTOP)
    lose_host(job, 1)
    record = reaches(job, 2)
    job.may_end()
    reset = next(event for event in record.history if event.kind == "resetting")
    resumed = next(event for event in record.history if event.kind == "resuming" and event.at > reset.at)
    return resumed.at - reset.at


@pytest.mark.extended
@pytest.mark.usefixtures("light")
def test_off_leaves_a_lost_pod_alone(tmp_path: Path, home: Path) -> None:
    """With `fault-scheduling: off` nothing is deleted and nothing replaced: after the failure grace the job has failed."""
    job = counting(
        tmp_path, home, labels={"fault-scheduling": "off", "pod-rescheduling": "on", "fault-retry-times": "3"}
    ).submit()
    job.trains(ranks=2)
    lose_host(job, 1)
    record = job.ends()

    assert (record.phase, record.attempt, record.restarts) == (Phase.FAILED, 1, 0)
    assert record.verdict is not None
    assert "fault-scheduling is off" in record.verdict.message


@pytest.mark.extended
@pytest.mark.usefixtures("light")
def test_retry_limit_bounds_what_fault_retry_times_allows(tmp_path: Path, home: Path) -> None:
    """The second end of a container is left alone, though fault-retry-times has four more. A lost host is free."""
    job = counting(
        tmp_path,
        home,
        labels={**GRACE, "pod-rescheduling": "on", "fault-retry-times": "5"},
        recovery={"max_restarts": 0, "stop_grace_period": "1s"},
    )
    rewritten(job, "fault_tolerance", retry_limit=1).submit()
    kill_worker(job, job.trains(ranks=2), 1)
    job.trains(ranks=2, round_=2)
    lose_host(job, 1)
    status = job.trains(ranks=2, round_=3)
    assert (job.record.restarts, len(job.record.charges)) == (2, 1)
    kill_worker(job, status, 1)
    record = job.ends()

    assert (record.phase, record.restarts, len(record.charges)) == (Phase.FAILED, 2, 1)
    assert record.verdict is not None
    assert "1 of 1 retries (retry_limit) are used" in record.verdict.message


@pytest.mark.extended
@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(
    ("written", "least", "most"), [({}, 4.0, 7.0), ({"monitor_interval": 2}, 1.5, 3.5)], ids=["default", "2"]
)
def test_monitor_interval(tmp_path: Path, home: Path, written: dict[str, float], least: float, most: float) -> None:
    """Health is looked at every 5 s, or as often as is written; the end of a worker is seen at once all the same."""
    job = counting(tmp_path, home, labels=GRACE)
    rewritten(job, "health", report_interval=None, node_lease=None, **written).submit()
    job.trains(ranks=2)
    gaps = looks(job, 4)
    begun = time.monotonic()
    kill_worker(job, job.trains(ranks=2), 1)
    eventually(lambda: job.status is not None and job.status.fence.round == 2, why=job.tell)
    seen = time.monotonic() - begun
    job.trains(ranks=2, round_=2)
    job.may_end()

    assert least <= statistics.median(gaps) <= most, gaps
    assert seen < 4.0
    assert job.ends().phase is Phase.SUCCEEDED


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize(
    ("fields", "node", "everything"),
    [
        pytest.param({"annotations": {"huawei.com/recover_policy_path": "pod"}}, 0, False, marks=pytest.mark.extended),
        pytest.param({"labels": {"pod-rescheduling": "on"}}, 0, True, marks=pytest.mark.extended),
        pytest.param({"labels": {"pod-rescheduling": "yes"}}, 1, True, marks=pytest.mark.extended),
        pytest.param({"labels": {"process-recover-enable": "on"}}, 1, False, marks=pytest.mark.extended),
        pytest.param({"labels": {"process-recover-enable": "off"}}, 1, True, marks=pytest.mark.extended),
        pytest.param(
            {"labels": {"process-recover-enable": "on"}, "mindcluster": {"graceful_tolerance": True}},
            1,
            True,
            marks=pytest.mark.extended,
        ),
    ],
    ids=["recover_policy_path", "rank 0", "no pod-rescheduling", "process-recover-enable", "off", "graceful_tolerance"],
)
def test_which_pods_a_lost_host_costs(
    tmp_path: Path, home: Path, fields: dict[str, Any], node: int, *, everything: bool
) -> None:
    """Either the faulty pod alone is replaced, and the other keeps its agent, or all are."""
    job = counting(tmp_path, home, **{**fields, "labels": {**GRACE, **fields.get("labels", {})}}).submit()
    job.trains(ranks=2)
    [other] = agents(job, 1 - node)
    lose_host(job, node)
    if everything:
        reaches(job, 2)
    else:
        job.trains(ranks=2, round_=2)
        assert agents(job, 1 - node) == [other]
    job.may_end()
    record = job.ends()

    assert (record.phase, record.restarts, len(record.charges)) == (Phase.SUCCEEDED, 1, 0)
    assert record.attempt == (2 if everything else 1)
