"""Jobs with several roles by the command line: what is shown of them, and what can be asked of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from rallypoint.backends.local.backend import LocalBackend
from rallypoint.supervision.role_records import UnitKey
from tests.live.jobs import cli, processes
from tests.live.roles.jobs import RolesJob, kill
from tests.waiting import eventually, eventually_async


@pytest.mark.extended
def test_status_and_explain_show_every_role(place: Path, home: Path) -> None:
    """A row for each instance and one for the trainer; the timeline of the job, and that of its elastic role."""
    job = RolesJob.write(place, home).submit()
    before = job.all_begin()
    kill(before["rollout", 1])
    job.begins("rollout", 1, life=2)
    eventually(lambda: "all instances run" in cli("status", "rl").stdout, why=job.tell)

    rows = [line.split() for line in cli("status", "rl").stdout.splitlines()]
    assert ["trainer", "2", "workers", "1", "of", "1", "nodes", "-", "1", "0", "-"] in rows
    assert ["rollout", "0", "running", "0", "1", "0", "-"] in rows
    assert ["rollout", "1", "running", "1", "2", "1", "-"] in rows
    document = json.loads(cli("status", "rl", "--json").stdout)
    assert [role["name"] for role in document["roles"]] == ["trainer"]
    assert [line.split()[0] for line in cli("status").stdout.splitlines()] == ["NAME", "rl"]

    told = cli("explain", "rl").stdout
    assert "incident 1: rollout 1 was killed by SIGKILL" in told
    assert "verdict: an instance failed -> restart-instance; charged to the restarts of the instance" in told
    assert "action: restart-instance (the instance was started again), all instances run after" in told
    assert "\nRole trainer\n  Job rl-trainer: phase Running" in told
    assert "submitted: by rl" not in told
    cli("delete", "rl")
    assert not job.place.exists()


@pytest.mark.extended
def test_status_and_explain_show_why_a_job_of_roles_failed(place: Path, home: Path) -> None:
    """Which budget was used up at each step, in the words of roles; the instance that ended the job is marked."""
    failing = {"entrypoint": [sys.executable, "-c", "raise SystemExit(4)"]}
    job = RolesJob.write(place, home, roles={"trainer": None, "judge": failing}, recovery={"node_replacements": 1}).submit()
    assert job.ends().phase.value == "Failed"

    shown = cli("status", "rl").stdout
    rows = [line.split()[:3] for line in shown.splitlines()]
    assert ["judge", "0", "failed"] in rows
    assert ["rollout", "0", "ended"] in rows
    end = "no restarts of the instance left (limit: 1); no restarts of role judge left (limit: 3); no resets of the job left"
    assert f"judge 0 exited with code 4; {end} (limit: 1)" in shown
    told = cli("explain", "rl").stdout
    assert "verdict: an instance failed -> restart-role; charged to the restarts of the role" in told
    assert "action: restart-role (all instances of the role were started again)" in told
    assert "action: reset (the job was reset: all roles were started again)" in told
    assert "attempt 2: rollout x 2, judge x 1" in told
    assert "took over the supervision" not in told


@pytest.mark.extended
def test_a_suspended_job_goes_on_where_it_was(place: Path, home: Path) -> None:
    """No process is left while it is suspended; what has succeeded does not run again, and nothing is charged."""
    job = RolesJob.write(place, home).submit()
    job.all_begin()
    (place / "judge-0.code").write_text("0")
    eventually(lambda: job.record.conductor is not None and job.record.conductor.roles[2].done, why=job.tell)

    cli("suspend", "rl")
    eventually(lambda: job.record.phase.value == "Suspended", why=job.tell)
    # Those of the trainer have the home of the whole job, too.
    eventually(lambda: not [p for p in processes(str(home)) if " supervise " not in f"{p.command} "], why=job.tell)
    cli("resume", "rl")
    after = [job.begins(role, rank, life=2) for role in ("trainer", "rollout") for rank in range(2)]

    assert len({line.pid for line in after}) == 4
    job.may_end()
    record = job.ends()
    assert (record.phase.value, record.attempt, record.retries, job.causes()) == ("Succeeded", 1, 0, [])
    assert len(job.lines("judge", 0)) == 1


@pytest.mark.extended
def test_the_output_of_each_role(place: Path, home: Path) -> None:
    """All roles with their names, one role with its ranks, one rank as it is; what a job has not is refused by name."""
    RolesJob.write(
        place,
        home,
        roles={
            "trainer": {"entrypoint": [sys.executable, "-c", "print('train')"], "process_group": None},
            "rollout": {"entrypoint": [sys.executable, "-c", "print('roll')"], "driver": True},
            "judge": {"entrypoint": [sys.executable, "-c", "import sys; print('judge', file=sys.stderr)"]},
        },
    )
    followed = cli("submit", place / "rl.json", "--supervise", "here")
    assert "Job rl succeeded" in followed.stdout + followed.stderr

    assert sorted(cli("logs", "rl").stdout.splitlines()) == [
        "[judge 0] judge",
        "[rollout 0] roll",
        "[rollout 1] roll",
        "[trainer 0] train",
        "[trainer 1] train",
    ]
    assert cli("logs", "rl", "--follow", "--role", "rollout").stdout == "[0] roll\n[1] roll\n"
    assert cli("logs", "rl", "--role", "rollout", "--rank", "1", "--tail", "1").stdout == "roll\n"
    assert cli("logs", "rl", "--role", "judge", "--stderr").stdout == "judge\n"
    assert "expected one of trainer, rollout, judge" in cli("logs", "rl", "--role", "critic", check=False).stderr
    assert "role rollout has ranks 0 to 1" in cli("logs", "rl", "--role", "rollout", "--rank", "2", check=False).stderr
    refused = cli("resize", "rl", "2", "--role", "trainer", check=False).stderr
    assert "job rl cannot be resized any more: the job has ended (Succeeded)" in refused


@pytest.mark.extended
def test_the_trainer_is_resized_alone(place: Path, home: Path) -> None:
    """Its second node joins, and no process of another role ends."""
    job = RolesJob.write(place, home, roles={"trainer": {"nodes": "1:2", "nproc_per_node": 1}}).submit()
    before = {("rollout", rank): job.begins("rollout", rank).pid for rank in range(2)}
    job.begins("trainer", 0)
    job.begins("trainer", 1)
    shown = [line.split()[:6] for line in cli("status", "rl").stdout.splitlines()]
    assert ["trainer", "2", "workers", "2", "of", "2"] in shown
    assert "role trainer has ranks 0 to 1" in cli("logs", "rl", "--role", "trainer", "--rank", "2", check=False).stderr
    assert cli("logs", "rl", "--role", "trainer", "--rank", "1").returncode == 0

    assert "expected an elastic role: trainer" in cli("resize", "rl", "1", check=False).stderr
    assert "role 'judge' is not allowed" in cli("resize", "rl", "1", "--role", "judge", check=False).stderr
    assert "Role trainer of job rl is being resized from 1:2 to 1 nodes" in cli("resize", "rl", "1", "--role", "trainer").stdout

    eventually(lambda: (status := job.trainer.status) is not None and len(status.world) == 1, why=job.tell)
    shown = [line.split() for line in cli("status", "rl").stdout.splitlines()]
    assert ["trainer", "1", "worker", "1", "of", "1", "nodes", "-", "1", "0", "-"] in shown
    assert {key: pid for key, pid in job.pids().items() if key[0] == "rollout"} == before
    job.may_end()
    assert job.ends().phase.value == "Succeeded"


@pytest.mark.extended
def test_each_driver_leaves_a_result(place: Path, home: Path) -> None:
    """The result of the job holds that of each driver role by its name."""
    said = {"entrypoint": "role_parts:report"}
    job = RolesJob.write(place, home, roles={"trainer": said, "judge": said, "rollout": said}).submit()

    assert job.ends().result == {name: {"role": name} for name in ("trainer", "judge")}


@pytest.mark.extended
def test_a_second_submission(place: Path, home: Path) -> None:
    """The same document attaches, also without a supervisor; another document is refused. The job stays as it is."""
    job = RolesJob.write(place, home).submit()
    before = job.all_begin()

    supervisor = job.supervisor()
    assert "Job rl is already running, and nothing was started" in cli("submit", place / "rl.json").stdout
    assert job.supervisor() == supervisor
    (place / "other.json").write_text(json.dumps({**json.loads((place / "rl.json").read_text()), "config": {"lr": 2}}))
    other = cli("submit", place / "other.json", check=False)
    assert other.returncode == 1
    assert "already running with another specification" in other.stderr
    kill(job.supervisor())
    attached = cli("submit", place / "rl.json")
    assert "already exists; it had no supervisor and continues now" in attached.stdout

    assert job.pids() == before
    job.may_end()
    assert job.ends().phase.value == "Succeeded"
    assert job.pids() == before


def test_a_finished_job_that_is_submitted_again_with_another_spec(place: Path, home: Path) -> None:
    """Each role, also the elastic one, runs by the new spec: its environment, its arguments and its config."""
    tell = "import json, os, sys; print(os.environ['A'], sys.argv[1], json.load(open(os.environ['RALLYPOINT_CONFIG_FILE'])))"
    for value in ("old", "new"):
        own = {"entrypoint": [sys.executable, "-c", tell], "args": [value], "env": {"A": value}, "process_group": None}
        trainer = {**own, "nproc_per_node": 1}
        roles = {"trainer": trainer, "judge": {**own, "launch": "simple"}, "rollout": None}
        RolesJob.write(place, home, roles=roles, config={"lr": value})
        cli("submit", place / "rl.json", "--supervise", "here")

    for role in ("trainer", "judge"):
        assert cli("logs", "rl", "--role", role).stdout.splitlines() == [
            f"{one} {one} {{'lr': '{one}'}}" for one in ("old", "new")
        ]


@pytest.mark.extended
def test_the_next_life_is_warm(place: Path, home: Path, warm: None) -> None:
    """From the kill to the first line of the next life it takes at most 0.2 s on a quiet machine, and torch is there."""
    job = RolesJob.write(place, home, roles={"trainer": None}).submit()
    pid = job.begins("rollout", 1).pid
    took = []
    for life in range(2, 5):
        eventually(lambda: len(_standbys(job)) >= 1, why=job.tell)
        began = job.begins("rollout", 1, life=life - 1)
        assert began.pid == pid
        took.append(_kill_and_wait(job, pid, life))
        after = job.begins("rollout", 1, life=life)
        pid = after.pid
        assert after.torch

    print("kill to first line:", *(f"{seconds:.3f} s" for seconds in took))
    assert min(took) <= 0.2
    job.may_end()
    job.ends()


def _standbys(job: RolesJob) -> list[int]:
    """Return forks of the zygote of rollout 1 that wait: they have the command line of the zygote, and another parent."""
    _, host = job.host("rollout-1")
    children = [pid for task in Path(f"/proc/{host}/task").iterdir() for pid in (task / "children").read_text().split()]
    found = []
    for child in children:
        command = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        if "rallypoint.agent.workers.zygote" in command:
            found.append(int(child))
    return found[1:]


def _kill_and_wait(job: RolesJob, pid: int, life: int) -> float:

    at = time.time()
    kill(pid)
    return job.begins("rollout", 1, life=life).at - at


def test_output_goes_where_the_job_says(place: Path, home: Path) -> None:
    """Below `logs.dir`, and with `logs.tee` also to the log of the host; `rallypoint logs` finds it there."""
    roles = {"trainer": None, "judge": {"entrypoint": "role_parts:speak"}, "rollout": None}
    logs = {"dir": str(place / "logs"), "tee": "stdout"}
    job = RolesJob.write(place, home, roles=roles, logs=logs, recovery={"node_replacements": 0}).submit()
    (place / "enough").touch()
    job.ends()

    files = {path.relative_to(place / "logs").as_posix(): path.read_text() for path in (place / "logs").rglob("*.out")}
    assert files == {"rl/units/judge-0/1.0.1/rank-0.out": "to stdout\n"}
    assert not list(job.place.glob("hosts/*/*/units/*/*/*.out"))
    (host,) = job.place.glob("hosts/judge-0/*/agent.log")
    assert "[judge0]:to stdout" in host.read_text().splitlines()
    assert "to stderr" not in host.read_text()
    assert sorted(cli("logs", "rl", "--role", "judge").stdout.splitlines()) == ["to stderr", "to stdout"]


def test_exits_of_simple_roles_are_answered_by_the_rules_of_the_job(place: Path, home: Path) -> None:
    """A terminal exit code ends the job at once, whatever budget is left; another one starts the instance again."""
    tolerance = {"retry_limit": 5, "failure_grace_period": "1s", "terminal_exit_codes": [3]}
    job = RolesJob.write(place, home, roles={"trainer": None}, fault_tolerance=tolerance).submit()
    job.begins("judge", 0)
    (place / "judge-0.code").write_text("4")
    job.begins("judge", 0, life=2)
    (place / "judge-0.code").write_text("3")
    record = job.ends()

    assert record.phase.value == "Failed"
    assert record.verdict is not None
    assert record.verdict.message == "judge 0 exited with code 3; exit code 3 is terminal"
    assert len(job.lines("judge", 0)) == 2


@pytest.mark.extended
async def test_an_instance_waits_until_its_last_host_has_ended(place: Path, home: Path) -> None:
    """A job that is resumed at once: a host that was asked to end starts nothing, so the next one gets the instance."""
    job = RolesJob.write(place, home).submit()
    job.all_begin()
    supervisor, (_, host) = job.supervisor(), job.host("judge-0")
    backend = LocalBackend(home)
    stored = await backend.load("rl")
    assert stored is not None
    units, key = backend.units("rl"), UnitKey(role="judge", attempt=1, reset=0, index=0, incarnation=2)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        os.kill(host, signal.SIGSTOP)
        await units.release(stored.record, stored.plan)
        await units.start(stored.record, stored.plan, key)
        assert not list(job.place.glob("hosts/judge-0/*/units/judge-0/1.0.2/start.json"))
        os.kill(host, signal.SIGCONT)

        async def started() -> list[Path] | None:
            await units.start(stored.record, stored.plan, key)
            return list(job.place.glob("hosts/judge-0/*/units/judge-0/1.0.2/start.json"))

        found: list[Path] = await eventually_async(started, every=0.1, why=job.tell)
        assert [path.parents[3].name for path in found] == ["host-2"]
    finally:
        os.kill(supervisor, signal.SIGCONT)
    cli("delete", "rl")
