"""Node agents and coordinators on real processes, as a supervisor starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.wire.exits import Exit
from rallypoint.wire.incident import Cause
from rallypoint.wire.status import JobState, Outcome
from tests.live.agent_processes import GROUP, Agents, agents, alive, free_port, said
from tests.waiting import eventually


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path) as job:
        yield job


def test_a_job_ends_well_everywhere(job: Agents) -> None:
    """Two nodes, four ranks, one verdict; the coordinator goes when everybody was told."""
    job.write_plan(min_nodes=2, max_nodes=2)
    job.finish()
    processes = [job.coordinator(), job.node(0), job.node(1)]

    assert [said(process)[0] for process in processes] == [Exit.OK] * 3
    status = job.status()
    assert status is not None
    assert (status.state, status.world_size, status.incidents) == (JobState.SUCCEEDED, 4, ())
    assert {path.name for path in (job.folder / "node-1.0/logs/round-1").iterdir()} == {
        "rank-2.out",
        "rank-2.err",
        "rank-3.out",
        "rank-3.err",
    }


def test_progress_alone_is_written_as_often_as_the_flag_says(job: Agents) -> None:
    """Who reads the status of many jobs asks for fewer writes; what else changes is written at once."""
    job.write_plan("count", nproc_per_node=1)
    coordinator, node = job.coordinator(1, "--progress-period", 600), job.node()
    job.published(JobState.RUNNING, 1)
    written: set[int] = set()

    def counted() -> bool:
        written.add((job.folder / "status.json").stat().st_mtime_ns)
        steps = job.work / "steps.0"
        return steps.exists() and int(steps.read_text()) >= 150

    eventually(counted, why="150 steps, which take more than 3 s")
    assert len(written) <= 2
    job.finish()
    assert [said(process)[0] for process in (coordinator, node)] == [Exit.OK, Exit.OK]
    status = job.status()
    assert status is not None
    assert status.state is JobState.SUCCEEDED
    assert (status.progress.step or 0) >= 150


def test_the_budget_ends_a_job_that_always_fails(job: Agents) -> None:
    """Each fault is an incident with its culprit, and the verdict names the last."""
    job.write_plan("fail", max_restarts=1)
    coordinator, node = job.coordinator(), job.node()

    assert (said(coordinator)[0], said(node)[0]) == (Exit.OK, Exit.JOB_FAILED)
    status = job.status()
    assert status is not None
    assert status.verdict is not None
    assert (status.verdict.outcome, status.verdict.reason) == (Outcome.FAILED, "WorkersFailed")
    assert [incident.cause for incident in status.incidents] == [Cause.PROCESS] * 2
    culprit = status.incidents[0].culprit
    assert culprit is not None
    assert (culprit.rank, culprit.exit_code, culprit.error) == (1, 3, "ValueError: loss is nan")
    assert culprit.log_tail[0] == "about to fail"
    assert culprit.log_path.endswith("node-0.0/logs/round-1/rank-1.err")


def test_the_last_step_before_a_fault_is_known(job: Agents) -> None:
    """It is read from shared memory when the worker ends, however long the next report of progress is away."""
    job.write_plan("step", nproc_per_node=1, max_restarts=0, report_interval=60.0, node_lease=600.0)
    coordinator, node = job.coordinator(), job.node()

    assert (said(coordinator)[0], said(node)[0]) == (Exit.OK, Exit.JOB_FAILED)
    status = job.status()
    assert status is not None
    assert (status.incidents[0].last_step, status.progress.metrics) == (7, {"loss": 0.5})


def test_a_new_coordinator_disturbs_no_worker(job: Agents) -> None:
    """Killed and replaced by one of a higher term: the same processes go on, and the job ends well."""
    job.write_plan(min_nodes=2, max_nodes=2)
    first, nodes = job.coordinator(1), [job.node(0), job.node(1)]
    workers = job.running(1, 4)
    job.published(JobState.RUNNING, 1)
    first.kill()
    second = job.coordinator(2)
    eventually(lambda: (status := job.status()) is not None and status.fence.term == 2 and len(status.ranks) == 4)
    assert all(map(alive, workers.values()))
    job.finish()

    assert [said(process)[0] for process in (second, *nodes)] == [Exit.OK] * 3
    status = job.status()
    assert status is not None
    assert (status.fence.round, status.incidents) == (1, ())


def test_a_coordinator_of_an_older_term_stays_away(job: Agents) -> None:
    """It writes nothing and says why it ends."""
    job.write_plan()
    newer = job.coordinator(3)
    eventually((job.folder / "endpoint.json").exists)

    code, output = said(job.coordinator(2))

    assert (code, "term 3) wrote this file; this coordinator has attempt 1, term 2" in output) == (Exit.STALE, True), output
    newer.send_signal(signal.SIGTERM)
    assert said(newer)[0] == 128 + signal.SIGTERM


def test_without_a_coordinator_an_agent_stops_its_workers(job: Agents) -> None:
    """A world that nobody can speak to must not train for ever."""
    job.write_plan(fence_timeout=5.0)
    coordinator, node = job.coordinator(), job.node()
    workers = job.running(1, 2)
    coordinator.kill()

    assert said(node)[0] == Exit.LOST_CONTACT
    assert not any(map(alive, workers.values()))


def test_a_node_that_is_told_to_leave_costs_nothing(job: Agents) -> None:
    """The others shrink and go on; the incident is a scale event."""
    job.write_plan(min_nodes=1, max_nodes=2, nproc_per_node=1)
    coordinator, stays, leaves = job.coordinator(), job.node(0), job.node(1)
    job.running(1, 2)
    leaves.send_signal(signal.SIGTERM)
    assert said(leaves)[0] == 128 + signal.SIGTERM
    job.running(2, 1)
    job.finish()

    assert [said(process)[0] for process in (coordinator, stays)] == [Exit.OK] * 2
    status = job.status()
    assert status is not None
    assert [incident.cause for incident in status.incidents] == [Cause.SCALE]


def test_a_killed_node_is_replaced_by_the_next_incarnation(job: Agents) -> None:
    """The others wait for nobody but the one that comes back."""
    job.write_plan(min_nodes=2, max_nodes=2, nproc_per_node=1)
    coordinator, stays, lost = job.coordinator(), job.node(0), job.node(1)
    job.running(1, 2)
    lost.kill()
    eventually(lambda: (status := job.status()) is not None and status.state is JobState.FORMING)
    replacement = job.node(1, incarnation=1)
    job.running(2, 2)
    job.finish()

    assert [said(process)[0] for process in (coordinator, stays, replacement)] == [Exit.OK] * 3
    status = job.status()
    assert status is not None
    assert [incident.cause for incident in status.incidents] == [Cause.NODE]


def test_a_port_in_use_ends_the_coordinator(job: Agents) -> None:
    """One line with the port, and no file is written."""
    port = free_port()
    job.write_plan(coordinator_port=port)
    holder = job.coordinator(1)
    eventually((job.folder / "endpoint.json").exists)
    for name in ("endpoint.json", "status.json"):
        (job.folder / name).unlink()

    code, output = said(job.coordinator(2))

    assert (code, f"port {port} on 127.0.0.1 for the coordinator" in output) == (Exit.CONFIG, True), output
    assert not (job.folder / "endpoint.json").exists()
    holder.kill()


def test_a_full_disk_is_named(job: Agents) -> None:
    """The node ends at once with the folder and the reason, before any worker is started."""
    job.write_plan(log_dir=str(job.folder / "full"))
    (job.folder / "full").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(job.folder / "full")]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    try:
        (job.folder / "full" / "filler").write_bytes(b"x" * 4096)
        code, output = said(job.node())
    finally:
        subprocess.run(["umount", str(job.folder / "full")], check=True)

    assert (code, "cannot write: no space left on the disk" in output) == (Exit.CONFIG, True), output
    assert not (job.work / "started").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can create a folder of another user")
def test_a_log_folder_of_another_user_is_not_used(job: Agents) -> None:
    """In a folder where everybody may create folders: its owner could read the output and put links in the place of files."""
    job.write_plan(log_dir=str(job.folder / "scratch"))
    taken = job.folder / "scratch" / "job"
    taken.mkdir(parents=True)
    os.chown(taken, 1234, 1234)

    code, output = said(job.node())

    why = f"logs.dir: cannot use {taken}: this folder belongs to user 1234, who could replace the files in it"
    assert (code, why in output) == (Exit.CONFIG, True), output
    assert not (job.work / "started").exists()


def test_no_torch_in_the_agent(job: Agents) -> None:
    """Neither torch nor a transport is imported before it is needed, and torch never."""
    code = (
        "import sys; import rallypoint.agent.main; assert 'aiohttp' not in sys.modules; "
        "import rallypoint.agent.commands, rallypoint.agent.coordinator.coordinating, rallypoint.agent.run; "
        "assert not {'torch', 'pydantic', 'yaml'} & set(sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert process.returncode == 0, process.stderr


# --- With torch ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Agents]:
    with agents(tmp_path, torch=True) as job:
        yield job


def rounds(job: Agents) -> dict[str, str]:
    return {path.name: path.read_text() for path in job.work.iterdir()}


@pytest.mark.extended
def test_every_round_has_a_whole_process_group(training: Agents) -> None:
    """Three kills, four rounds, and each forms its gloo group on a fresh store."""
    code, output = said(training.run("--standalone", "--nproc-per-node", 2, "--max-restarts", 3, GROUP, training.work, 3))

    assert code == Exit.OK, output
    assert rounds(training) == {f"{round_}.{rank}": "2" for round_ in (1, 2, 3, 4) for rank in (0, 1)}


@pytest.mark.extended
def test_the_world_of_two_nodes_is_whole_after_each_kill(training: Agents) -> None:
    """The store moves with the round, and each node finds the other on it."""
    script = {"entrypoint": str(GROUP), "args": (str(training.work), "3")}
    training.write_plan(min_nodes=2, max_nodes=2, nproc_per_node=1, max_restarts=3, **script)
    processes = [training.coordinator(), training.node(0), training.node(1)]

    assert [said(process)[0] for process in processes] == [Exit.OK] * 3
    assert rounds(training) == {f"{round_}.{rank}": "2" for round_ in (1, 2, 3, 4) for rank in (0, 1)}


def test_a_lost_store_costs_a_round(training: Agents) -> None:
    """The process of the store is killed: the round fails with that reason, and the next has a store again."""
    training.write_plan(nproc_per_node=1)
    coordinator, node = training.coordinator(), training.node()
    training.running(1, 1)
    os.kill(_store_host(node.pid), signal.SIGKILL)
    training.running(2, 1)
    assert _store_host(node.pid)
    training.finish()

    assert [said(process)[0] for process in (coordinator, node)] == [Exit.OK] * 2
    status = training.status()
    assert status is not None
    assert "the process of the rendezvous store ended with signal 9" in status.incidents[0].reason


def _store_host(agent: int) -> int:
    def found() -> int:
        children = Path(f"/proc/{agent}/task").glob("*/children")
        pids = [int(pid) for path in children for pid in path.read_text().split()]
        return next((p for p in pids if "store_host" in Path(f"/proc/{p}/cmdline").read_text()), 0)

    return eventually(found, why="a store host")
