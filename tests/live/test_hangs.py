"""Hangs of real training, which reports nothing: found, told with every rank's stack, and recovered from."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from rallypoint.capabilities.hang.wire import StatusSection
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.wire.hang import Hang, HangState
from rallypoint.wire.incident import Cause, FaultKind, Incident, Rung
from tests.live.jobs import Job, cli
from tests.optional import needs
from tests.waiting import eventually

needs("torch")

HANG = Path(__file__).parent / "scripts" / "hang.py"


def job(folder: Path, home: Path, how: str, *, action: int, rank: int = 1, entrypoint: object = None, **health: object) -> Job:
    return Job.write(
        folder,
        home,
        entrypoint=str(HANG) if entrypoint is None else entrypoint,
        args=[str(folder), how, str(rank)],
        nodes=1,
        nproc_per_node=2,
        health={"hang_downtime": "6s", "hang_detection": action, **health},
        # On a slow machine the end of the processes may look like another hang: it must not end the job.
        recovery={"stop_grace_period": "1s", "max_hangs": 100},
    ).submit()


def verdict(job: Job) -> Hang:
    """Wait until the status tells of a verdict."""

    def told() -> Hang | None:
        hang = None if job.status is None else StatusSection.of(job.status).hang
        return hang if hang is not None and hang.state is HangState.VERDICT else None

    return eventually(told, timeout=60.0, why=job.tell)


def hang_of(record: JobRecord) -> Incident:
    """Return the first one."""
    found = [incident for incident in record.incidents if incident.cause is Cause.HANG]
    return min(found, key=lambda incident: incident.detected_at)


@pytest.mark.parametrize(
    ("how", "state", "where"),
    [
        pytest.param("sleep", "sleeping", "hang.py:", id="it sleeps in its step"),
        pytest.param("busy", "running", "hang.py:", id="it runs in a circle", marks=pytest.mark.extended),
        pytest.param(
            "stop", "stopped", "the process is stopped and cannot answer", id="it is stopped", marks=pytest.mark.extended
        ),
    ],
)
@pytest.mark.extended
def test_a_hang_is_found_and_the_workers_start_again(tmp_path: Path, home: Path, how: str, state: str, where: str) -> None:
    """`hang_detection: 2`: the culprit is named with its stack, the workers are restarted, and the budget of hangs pays."""
    counter = job(tmp_path, home, how, action=2)
    eventually(lambda: list(tmp_path.glob("trains-[2-9]*")), timeout=90.0, why=counter.tell)
    (tmp_path / "enough").touch()
    record = counter.ends()
    incident = hang_of(record)
    culprit, others = incident.evidence

    assert (record.phase, incident.kind, incident.rung) == (Phase.SUCCEEDED, FaultKind.HANG, Rung.RESTART_WORKERS)
    assert (culprit.culprit, culprit.ranks, culprit.state) == (True, (1,), state)
    assert culprit.frames[0].startswith(where)
    assert (others.culprit, others.ranks) == (False, (0,))
    assert any("all_reduce" in frame for frame in others.frames)
    assert incident.culprit is not None
    assert incident.culprit.rank == 1
    assert incident.healed_at is not None
    said = cli("explain", counter.name, "--incident", 1).stdout
    assert said.index("rank 1 (the others wait for it)") < said.index("rank 0: ")


@pytest.mark.extended
def test_notify_tells_and_touches_nothing(tmp_path: Path, home: Path) -> None:
    """`hang_detection: 1`: one incident, every process is left alone, and a sign of life heals it."""
    counter = job(tmp_path, home, "stop", action=1)
    hang = verdict(counter)
    status = counter.status
    assert status is not None
    pids = [rank.pid for rank in status.ranks]
    incident = hang_of(eventually(lambda: counter.record if counter.record.incidents else None, why=counter.tell))

    assert (hang.culprits, hang.incident, status.fence.round) == ((1,), incident.id, 1)
    assert (incident.rung, incident.healed_at) == (Rung.NOTIFY, None)
    os.kill(pids[1], signal.SIGCONT)
    eventually((tmp_path / "trains-1").exists, why="the same processes train on")
    (tmp_path / "enough").touch()
    record = counter.ends()

    assert (record.phase, hang_of(record).healed_at is not None) == (Phase.SUCCEEDED, True)


@pytest.mark.extended
def test_log_only_makes_no_incident(tmp_path: Path, home: Path) -> None:
    """`hang_detection: 0`: a line in the story; behind a shell, the Python in it is looked into."""
    shell = ["bash", "-c", f'{shlex.quote(sys.executable)} {HANG} "$@"; exit $?', "hang"]
    counter = job(tmp_path, home, "sleep", action=0, entrypoint=shell)
    hang = verdict(counter)
    status = counter.status
    assert status is not None

    assert (hang.incident, hang.culprits, status.incidents) == (None, (1,), ())
    assert [event.detail for event in status.events if event.kind == "hang"] == [hang.reason]
    assert "sleeping in hang.py:" in hang.reason
    stacks = [path.read_text() for path in counter.place.rglob("hang-1.txt")]
    assert len(stacks) == 1
    assert "in sleeps" in stacks[0]
    cli("delete", counter.name)


@pytest.mark.extended
def test_a_long_first_step_is_no_hang(tmp_path: Path, home: Path) -> None:
    """Before the first sign of life the warm-up grace is the bound."""
    counter = job(tmp_path, home, "late", action=2)
    eventually((tmp_path / "trains-1").exists, timeout=90.0, why=counter.tell)

    assert [incident.reason for incident in counter.record.incidents] == []
    cli("delete", counter.name)
