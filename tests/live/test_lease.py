"""Who supervises, and what a job does by itself that nobody supervises: real processes, leases of seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.supervision.record import Phase
from rallypoint.wire.exits import Exit
from rallypoint.wire.status import JobStatus
from tests.backends.stage import remove_tree
from tests.live.jobs import Job, cli, supervising
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("light")

#: A lease whose end is waited for: many beats of a supervisor, so that a machine that is slow makes no orphans.
SHORT = "15s"


def write(folder: Path, home: Path, *, lease: str, policy: str, mode: str = "well") -> Job:
    """Two nodes of one worker."""
    return Job.write(
        folder,
        home,
        20,
        0.05,
        mode,
        endless=True,
        nodes=2,
        fault_tolerance={"lease": lease, "orphan_policy": policy},
        recovery={"stop_grace_period": "10m"},  # the scripts save, and then end
        rendezvous={"fence_timeout": "10m"},
    )


@contextlib.contextmanager
def submitted(job: Job) -> Iterator[Job]:
    """Submitted and training; deleted at the end."""
    job.submit()
    try:
        job.trains(ranks=2, beyond=3)
        yield job
    finally:
        job.discard()


def kill(job: Job) -> int:
    """Kill the supervisor as a reboot of its machine does; return its process number."""
    pid = job.supervisor()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not job.processes("supervise"))
    return pid


def gone(job: Job) -> None:
    """Wait until no process of the job is left, shims included."""
    eventually(lambda: not [p for p in job.processes() if p.mark], why=lambda: f"{job.processes()}")


def said(job: Job, kind: str) -> list[str]:
    """What the coordinator's story says of one kind."""
    status = job.status
    return [] if status is None else [event.detail for event in status.events if event.kind == kind]


def saved(job: Job) -> dict[str, int]:
    """The step of each rank's checkpoint."""
    return {path.name: int(path.read_text()) for path in (job.folder / "checkpoints").glob("rank-*")}


def last_steps(job: Job) -> dict[str, int]:
    """The last step that each rank printed that it saved."""
    lines = [line for path in job.place.rglob("rank-*.out") for line in path.read_text().splitlines() if "saved step" in line]
    return {f"rank-{line.split()[1]}": int(line.split()[4]) for line in lines}


@pytest.mark.extended
def test_an_orphan_that_must_stop_saves_and_ends(tmp_path: Path, home: Path) -> None:
    """Nobody is left, each rank's last step is on disk, and the next supervisor takes the verdict as it is: no retry."""
    with submitted(write(tmp_path, home, lease=SHORT, policy="stop", mode="saving")) as job:
        assert saved(job) == {}
        kill(job)
        gone(job)
        status = job.status

        assert isinstance(status, JobStatus)
        assert status.verdict is not None
        assert (status.verdict.outcome.value, status.verdict.reason) == ("failed", "Orphaned")
        assert set(saved(job)) == {"rank-0", "rank-1"}
        assert saved(job) == last_steps(job)
        assert min(saved(job).values()) > 3

        cli("supervise", job.name, check=False)
        record = job.record
        assert (record.phase, record.retries, len(record.attempts)) == (Phase.FAILED, 0, 1)
        assert record.verdict is not None
        assert record.verdict.reason == "Orphaned"


def test_an_orphan_without_its_coordinator_stops_by_its_agents(tmp_path: Path, home: Path) -> None:
    """Each of them counts on by itself, saves, and ends with its own exit code, long before contact counts as lost."""
    with submitted(write(tmp_path, home, lease=SHORT, policy="stop", mode="saving")) as job:
        kill(job)
        for coordinator in job.agents("coordinator"):
            coordinator.kill()
        gone(job)

        status = job.status
        assert status is not None
        assert status.verdict is None
        ends = [json.loads(path.read_text())["exit_code"] for path in job.place.glob("nodes/*/attempt-1.1/exit.json")]
        assert ends == [Exit.ORPHANED, Exit.ORPHANED]
        assert saved(job) == last_steps(job)
        assert set(saved(job)) == {"rank-0", "rank-1"}

        cli("supervise", job.name, check=False)
        record = job.record
        assert (record.phase, record.retries, len(record.attempts)) == (Phase.FAILED, 0, 1)
        assert record.verdict is not None
        assert record.verdict.reason == "Orphaned"


@pytest.mark.extended
def test_an_orphan_that_may_go_on_goes_on(tmp_path: Path, home: Path) -> None:
    """It says so, the status tells that nobody is there, and whoever takes it over is in its record."""
    with submitted(write(tmp_path, home, lease=SHORT, policy="continue")) as job:
        before = job.trains(ranks=2)
        first = job.record.holder
        pid = kill(job)
        eventually(lambda: said(job, "orphaned"), why=job.tell)
        after = job.trains(ranks=2, beyond=(before.progress.step or 0) + 5)
        told = cli("status", job.name).stdout

        assert said(job, "orphaned") == ["no supervisor heartbeat for 15 s; the job continues (orphan policy: continue)"]
        assert [rank.pid for rank in after.ranks] == [rank.pid for rank in before.ranks]
        assert f"to supervise it: rallypoint supervise {job.name}" in told
        assert f"(process {pid} on " in told
        assert json.loads(cli("status", job.name, "--json").stdout)["supervisor"]["alive"] is False

        with supervising(job) as process:
            eventually(lambda: said(job, "supervised"), why=job.tell)
            holder = job.record.holder
            told = cli("status", job.name).stdout
            assert holder is not None
            assert first is not None
            assert (holder.pid, holder.name) == (process.pid, "rallypoint supervise")
            assert holder.id != first.id
            assert f"rallypoint supervise (process {process.pid} on " in told
            cli("delete", job.name)


@pytest.mark.extended
def test_an_outage_shorter_than_the_lease_costs_nothing(tmp_path: Path, home: Path) -> None:
    """The same processes train on, no incident is noted, and nobody ever calls the job an orphan."""
    with submitted(write(tmp_path, home, lease="1h", policy="stop")) as job:
        before = job.trains(ranks=2)
        kill(job)
        job.trains(ranks=2, beyond=(before.progress.step or 0) + 20)
        with supervising(job) as process:
            eventually(lambda: (h := job.record.holder) and h.pid == process.pid)
            after = job.trains(ranks=2, beyond=(before.progress.step or 0) + 40)

            assert [rank.pid for rank in after.ranks] == [rank.pid for rank in before.ranks]
            assert (after.verdict, said(job, "orphaned"), job.record.incidents) == (None, [], ())
            assert job.record.retries == 0
            cli("delete", job.name)


@pytest.mark.extended
@pytest.mark.parametrize("supervised", [pytest.param(True, id="supervised"), pytest.param(False, id="no supervisor")])
def test_a_job_whose_folder_is_removed_is_over(tmp_path: Path, home: Path, supervised: bool) -> None:
    """Somebody removes it from outside: nothing of it is left, not even a supervisor, and nothing comes back."""
    job = write(tmp_path, home, lease="1h", policy="continue").submit()
    job.trains(ranks=2, beyond=3)
    if not supervised:
        kill(job)

    remove_tree(job.place)
    eventually(lambda: not job.processes(), why=lambda: f"{job.processes()}")

    remove_tree(job.place)  # who was still writing may have made it again
    assert "no jobs" in cli("status").stdout


@pytest.mark.extended
def test_a_heart_leaves_nothing_behind(tmp_path: Path, home: Path) -> None:
    """Its file is there while the job is supervised, and gone when the supervisor has done its work."""
    job = write(tmp_path, home, lease="1h", policy="continue")
    with submitted(job):
        holder = job.record.holder
        assert holder is not None
        assert json.loads(Path(holder.heartbeat).read_text())["pid"] == holder.pid == job.supervisor()
        job.may_end()
        assert job.ends().phase is Phase.SUCCEEDED
        eventually(lambda: not list((home / "supervisors").iterdir()))


@pytest.mark.extended
def test_a_job_is_suspended_and_resumed(tmp_path: Path, home: Path) -> None:
    """Suspended, only its supervisor is left, and its scripts have saved; resumed, it goes on from there at no cost."""
    with submitted(write(tmp_path, home, lease="1h", policy="continue", mode="saving")) as job:
        cli("suspend", job.name)
        eventually(lambda: job.record.phase is Phase.SUSPENDED, why=job.tell)
        assert [p for p in job.processes() if p.mark] == []
        assert job.supervisor()
        steps = saved(job)
        assert set(steps) == {"rank-0", "rank-1"}

        cli("resume", job.name)
        eventually(lambda: job.record.attempt == 2 and job.record.phase is Phase.RUNNING, why=job.tell)
        status = job.trains(ranks=2, beyond=max(steps.values()))
        assert status.progress.resumed_from == steps["rank-0"]
        assert job.record.retries == 0
