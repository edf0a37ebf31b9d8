"""Whatever is killed of a job with roles: only that starts again, all else keeps its processes, and nothing is left behind.

| Killed, or ends by itself | Test |
|---|---|
| an instance of a simple role | `test_an_instance_of_a_simple_role` |
| a rank of the elastic role | `test_a_rank_of_the_elastic_role`; with five lines: `test_a_rank_with_five_lines_loses_no_step` |
| the coordinator | `test_the_coordinator_of_the_elastic_role` |
| the supervisor | `test_the_supervisor` |
| a node with a whole group | `test_a_node_with_a_whole_group` |
| a node with a group that has an elastic role | `test_a_node_with_a_group_of_an_elastic_role` |
| several roles within 50 ms | `test_three_roles_at_once`; while the supervisor is stopped: `test_causes_keep_their_order` |
| a server that ignores SIGTERM | `test_a_server_that_ignores_sigterm` |
| a function that calls `sys.exit(3)` | `test_a_function_that_exits_with_code_3` |
| a driver, while servers loop | `test_a_driver_that_ends_while_servers_loop` |

Each test asserts the causes in the record, in order (`causes`, and `incidents` of the elastic role). `RolesJob.ends` asserts
that no process, shared memory, socket or partial file is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.live.jobs import cli
from tests.live.roles.jobs import SCRIPTS, RolesJob, kill
from tests.waiting import eventually


def started(place: Path, home: Path, **fields: Any) -> tuple[RolesJob, dict[tuple[str, int], int]]:
    job = RolesJob.write(place, home, **fields).submit()
    return job, job.all_begin()


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def succeeds(job: RolesJob) -> None:
    job.may_end()
    record = job.ends()
    assert record.phase.value == "Succeeded", job.tell()


@pytest.mark.extended
def test_an_instance_of_a_simple_role(place: Path, home: Path) -> None:
    """Only it begins its next life; all others keep their processes."""
    job, before = started(place, home)

    kill(before["rollout", 1])

    after = job.begins("rollout", 1, life=2)
    assert after.incarnation == 2
    assert job.pids() == {**before, ("rollout", 1): after.pid}
    succeeds(job)
    assert job.causes() == ["rollout 1 was killed by SIGKILL; the instance is started again"]
    assert job.record.attempt == 1


@pytest.mark.extended
def test_a_rank_of_the_elastic_role(place: Path, home: Path) -> None:
    """The trainer recovers by its own ladder; the other roles keep their processes."""
    job, before = started(place, home)

    kill(before["trainer", 0])

    again = job.begins("trainer", 0, life=2)
    assert again.pid != before["trainer", 0]
    assert {key: pid for key, pid in job.pids().items() if key[0] != "trainer"} == {
        key: pid for key, pid in before.items() if key[0] != "trainer"
    }
    succeeds(job)
    assert job.causes() == []
    (incident,) = job.trainer.record.incidents
    assert (incident.cause.value, incident.culprit is not None and incident.culprit.rank) == ("process", 0)


@pytest.mark.extended
def test_a_rank_with_five_lines_loses_no_step(place: Path, home: Path, warm: None) -> None:
    """The other rank and all other roles keep their processes; every step is trained once, and none is missing."""
    trainer = {"entrypoint": str(SCRIPTS / "recovering.py"), "args": [str(place)], "process_group": None}
    job = RolesJob.write(place, home, roles={"trainer": trainer}).submit()
    eventually(lambda: len(_steps(place, 1)) > 50, timeout=60.0, why=job.tell)
    before = job.pids()
    assert set(before) == {("rollout", 0), ("rollout", 1), ("judge", 0)}

    (place / "fault.0").write_text("kill")
    eventually(lambda: {round_ for round_, _, _ in _steps(place, 1)} == {1, 2}, timeout=60.0, why=job.tell)
    reached = _steps(place, 1)[-1][2]
    eventually(lambda: _steps(place, 1)[-1][2] > reached + 20, why=job.tell)

    assert job.pids() == before
    assert len({pid for _, pid, _ in _steps(place, 1)}) == 1
    assert len({pid for _, pid, _ in _steps(place, 0)}) == 2
    succeeds(job)
    (incident,) = job.trainer.record.incidents
    assert (incident.rung.value, incident.steps_lost) == ("recover-in-place", 0)


def _steps(place: Path, rank: int) -> list[tuple[int, int, int]]:
    """Return round, process and step of each line of a rank of scripts/recovering.py."""
    path = place / f"steps.{rank}"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(row[1]), int(row[2]), int(row[3])) for row in rows if len(row) == 5]


@pytest.mark.extended
def test_the_coordinator_of_the_elastic_role(place: Path, home: Path) -> None:
    """No instance of any role ends."""
    job, before = started(place, home)
    (shim,) = job.place.glob("jobs/rl-trainer/coordinator/term-*/shim.json")
    pid = json.loads(shim.read_text())["pid"]
    child = int((Path("/proc") / str(pid) / "task" / str(pid) / "children").read_text().split()[0])

    kill(child)

    eventually(lambda: len(list(job.place.glob("jobs/rl-trainer/coordinator/term-*/shim.json"))) == 2, why=job.tell)
    succeeds(job)
    assert job.pids() == before
    assert job.causes() == []
    assert [incident.cause.value for incident in job.trainer.record.incidents] == ["coordinator"]


def test_the_supervisor(place: Path, home: Path) -> None:
    """The job lives on; another supervisor answers what happened meanwhile, and the loss of the first is in the record."""
    job, before = started(place, home)
    kill(job.supervisor())
    kill(before["rollout", 0])

    taken = subprocess.Popen([sys.executable, "-m", "rallypoint.cli.main", "supervise", "rl"], stdout=subprocess.DEVNULL)
    after = job.begins("rollout", 0, life=2)

    assert job.pids() == {**before, ("rollout", 0): after.pid}
    succeeds(job)
    assert taken.wait(timeout=60) == 0
    assert job.causes() == ["rollout 0 was killed by SIGKILL; the instance is started again"]
    assert job.record.conductor is not None
    assert job.record.conductor.term == 2


@pytest.mark.extended
def test_a_node_with_a_whole_group(place: Path, home: Path) -> None:
    """Both instances of the group are lost with their host, and both begin again on the next."""
    job, before = started(place, home, roles={"rollout": {"per_group": 2}})
    shim, host = job.host("rollout-0")

    kill(shim)
    kill(host)

    after = {("rollout", rank): job.begins("rollout", rank, life=2).pid for rank in range(2)}
    assert job.pids() == {**before, **after}
    succeeds(job)
    causes = job.causes()
    assert [cause.partition(" was lost with its host")[0] for cause in causes] == ["rollout 0", "rollout 1"]
    assert {incident.cause.value for incident in job.record.incidents} == {"node"}


@pytest.mark.extended
def test_a_node_with_a_group_of_an_elastic_role(place: Path, home: Path) -> None:
    """The node of the trainer and the host of the rollouts that share its devices are lost; the judge keeps its process."""
    group = {"name": "pair", "roles": ["trainer", "rollout"]}
    trainer = {"total": 2, "nodes": None}
    job, before = started(place, home, roles={"trainer": trainer, "rollout": {"per_group": 2}}, groups=[group])
    shim, host = job.host("pair-0")
    (told,) = job.place.glob("jobs/rl-trainer/nodes/0/*/shim.json")
    nodes_shim = int(json.loads(told.read_text())["pid"])
    # By the command line, a process that the agent has forked is an agent until it becomes another program.
    (agent,) = children(nodes_shim)

    for pid in (shim, host, nodes_shim, agent):
        kill(pid)

    after = {(role, rank): job.begins(role, rank, life=2).pid for role in ("trainer", "rollout") for rank in range(2)}
    assert job.pids() == {**before, **after}
    succeeds(job)
    assert [cause.partition(" was lost with its host")[0] for cause in job.causes()] == ["rollout 0", "rollout 1"]
    assert {incident.cause.value for incident in job.record.incidents} == {"node"}
    (incident,) = job.trainer.record.incidents
    assert (incident.cause.value, incident.culprit is not None and incident.culprit.node) == ("node", 0)


@pytest.mark.extended
def test_three_roles_at_once(place: Path, home: Path) -> None:
    """A rollout, the judge and a rank of the trainer are killed at once: each role answers for itself."""
    job, before = started(place, home)

    # On a busy machine 50 ms can pass between two of them: the supervisor looks only once all three are dead.
    supervisor = job.supervisor()
    os.kill(supervisor, signal.SIGSTOP)
    try:
        kill(before["rollout", 0])
        kill(before["judge", 0])
        kill(before["trainer", 1])
    finally:
        os.kill(supervisor, signal.SIGCONT)

    after = {("rollout", 0): job.begins("rollout", 0, life=2).pid, ("judge", 0): job.begins("judge", 0, life=2).pid}
    job.begins("trainer", 1, life=2)
    assert {key: pid for key, pid in job.pids().items() if key[0] != "trainer"} == {
        **{key: pid for key, pid in before.items() if key[0] != "trainer"},
        **after,
    }
    succeeds(job)
    ends = sorted((_ended_at(job, role), role) for role in ("rollout", "judge"))
    assert job.causes() == [f"{role} 0 was killed by SIGKILL; the instance is started again" for _, role in ends]
    (incident,) = job.trainer.record.incidents
    assert (incident.cause.value, incident.culprit is not None and incident.culprit.rank) == ("process", 1)


@pytest.mark.extended
def test_causes_keep_their_order(place: Path, home: Path) -> None:
    """Processes that end while the supervisor is stopped are recorded in the order of their ends."""
    job, before = started(place, home)
    os.kill(job.supervisor(), signal.SIGSTOP)
    for role, rank in (("rollout", 1), ("judge", 0), ("rollout", 0)):
        kill(before[role, rank])
        eventually(partial(_has_ended, job, role, rank), why=job.tell)

    os.kill(job.supervisor(), signal.SIGCONT)

    after = {key: job.begins(*key, life=2).pid for key in (("rollout", 0), ("rollout", 1), ("judge", 0))}
    assert job.pids() == {**before, **after}
    succeeds(job)
    assert [cause.partition(" was killed")[0] for cause in job.causes()] == ["rollout 1", "judge 0", "rollout 0"]


def _ended_at(job: RolesJob, role: str) -> float:
    """Return when the first life of instance 0 ended."""
    (path,) = job.place.glob(f"hosts/*/*/units/{role}-0/1.0.1/exit.json")
    return float(json.loads(path.read_text())["ended_at"])


def _has_ended(job: RolesJob, role: str, rank: int) -> bool:
    """Return whether the host of an instance has written down its end."""
    return bool(list(job.place.glob(f"hosts/*/*/units/{role}-{rank}/*/exit.json")))


@pytest.mark.extended
def test_a_server_that_ignores_sigterm(place: Path, home: Path) -> None:
    """It is killed after its grace, with the child that it has left; the job has succeeded all the same."""
    job, before = started(place, home, roles={"rollout": {"entrypoint": "role_parts:refuse_to_end"}})
    assert len(before) == 5

    succeeds(job)

    assert not any(Path(f"/proc/{pid}").exists() for pid in before.values())
    assert job.causes() == []


@pytest.mark.extended
def test_a_function_that_exits_with_code_3(place: Path, home: Path) -> None:
    """It is started again as often as its node may be, then its role, then the job; then the job has failed with code 3."""
    job = RolesJob.write(
        place,
        home,
        roles={"judge": {"entrypoint": "role_parts:fail"}, "trainer": None},
        recovery={"stop_grace_period": "1s", "node_replacements": 1},
        fault_tolerance={"retry_limit": 0},
    ).submit()

    record = job.ends()

    assert record.phase.value == "Failed"
    assert record.verdict is not None
    assert record.verdict.message.startswith("judge 0 exited with code 3")
    levels = [cause.rpartition("; ")[2] for cause in job.causes()]
    assert levels == [
        *["the instance is started again", "the role is started again"] * 3,
        "the instance is started again",
        "the job fails",
    ]
    assert len(job.lines("judge", 0)) == 8
    assert len({line.pid for line in job.lines("rollout", 0)}) == 1
    assert cli("submit", place / "rl.json", "--watch", check=False).returncode == 1


@pytest.mark.extended
def test_a_driver_that_ends_while_servers_loop(place: Path, home: Path) -> None:
    """The servers get SIGTERM once all drivers have succeeded, not before."""
    job, before = started(place, home)
    (place / "judge-0.code").write_text("0")

    eventually(lambda: job.record.conductor is not None and [role.done for role in job.record.conductor.roles][2], why=job.tell)
    assert all(Path(f"/proc/{before['rollout', rank]}").exists() for rank in range(2))
    succeeds(job)
    assert job.pids() == before
    assert job.causes() == []
