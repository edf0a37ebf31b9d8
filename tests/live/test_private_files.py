"""What a job leaves on a machine that several people use: nobody but its owner may read it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.jobs import Job, cli, processes
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("light")]

SECRET = "canary-env-77aa"


def open_to_others(*folders):
    """Return what group or others have a right to, links aside."""
    found = []
    for folder in folders:
        for root, _, names in os.walk(folder):
            for path in (Path(root), *(Path(root, name) for name in names)):
                with contextlib.suppress(FileNotFoundError):  # a file that is being replaced
                    mode = path.lstat().st_mode
                    if mode & 0o077 and not stat.S_ISLNK(mode):
                        found.append(f"{stat.filemode(mode)} {path}")
    return found


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(False, id="a new home"),
        pytest.param(True, id="a home of an earlier version", marks=pytest.mark.extended),
    ],
)
def test_the_files_of_a_job_are_its_owners_alone(tmp_path, home, before):
    """Its environment, plan, token, output and supervisors, while it runs and after; a usual umask would open them."""
    if before:
        for name in ("jobs", "supervisors"):
            (home / name).mkdir(parents=True)
            (home / name).chmod(0o755)
    usual = os.umask(0o022)
    try:
        env = {"API_TOKEN": SECRET}
        job = Job.write(tmp_path, home, 3, 0.01, endless=True, nproc_per_node=2, env=env, name="private")
        job.name = "private"
        submitted = cli("submit", tmp_path / "job.json")
        job.trains(ranks=2)
        folders = (home / "jobs", home / "supervisors")
        assert open_to_others(*folders) == []
        job.may_end()
        job.ends()
    finally:
        os.umask(usual)

    assert open_to_others(*folders) == []
    assert before or not home.stat().st_mode & 0o077
    assert "warning: env: 'API_TOKEN' looks like a credential" in submitted.stderr
    assert SECRET not in submitted.stderr + submitted.stdout


@pytest.mark.extended
def test_commands_write_no_file_that_a_script_names(tmp_path, home):
    """Root looks after a job of a user whose script leaves links in the job's folder; other jobs are shown as before."""
    precious = tmp_path / "precious"
    precious.write_text("of another user\n")
    job = Job.write(tmp_path, home, 3, 0.01, endless=True).submit()
    job.trains(ranks=1)
    (job.place / "record.json.tmp").symlink_to(precious)

    cli("suspend", "counter")
    suspended = job.record.suspend
    (home / "jobs" / "damaged").mkdir()
    (home / "jobs" / "damaged" / "record.json").symlink_to(precious)
    shown = cli("status", check=False)
    os.kill(json.loads(next((home / "supervisors").glob("*.json")).read_text())["pid"], signal.SIGKILL)
    (job.place / "supervisor.lock").unlink()
    (job.place / "supervisor.lock").symlink_to(precious)
    command = [sys.executable, "-m", "rallypoint.cli.main", "supervise", "counter"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as supervising:
        assert supervising.stderr is not None
        said = supervising.stderr.readline()
        supervising.kill()

    assert suspended
    assert precious.read_text() == "of another user\n"
    assert (shown.returncode, "counter" in shown.stdout) == (1, True)
    assert "rallypoint: job 'damaged': " in shown.stderr
    assert "'record.json' is a symbolic link" in shown.stderr
    assert "supervisor.lock: cannot open the file for writing: its path is a symbolic link; delete the link" in said
    (job.place / "supervisor.lock").unlink()
    cli("delete", "counter")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root looks after the jobs of others")
@pytest.mark.parametrize("command", ["supervise", pytest.param("delete", marks=pytest.mark.extended)])
def test_root_starts_no_process_of_a_users_job(tmp_path, home, command):
    """A script that restores its record while root deletes the job would run again, and as root."""
    job = Job.write(tmp_path, home, 3, 0.01, endless=True).submit()
    job.trains(ranks=1)
    record = job.place / "record.json"
    running = record.read_bytes()
    for path in (*(home / "supervisors").glob("*.json"), *job.place.rglob("shim.json")):
        os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL if path.parent.name == "supervisors" else signal.SIGUSR1)
    eventually(lambda: not processes(str(home)))
    before = sorted(path.name for path in job.place.rglob("attempt-*"))
    for path in (job.place, *job.place.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)

    line = [sys.executable, "-m", "rallypoint.cli.main", command, "counter"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as acting:
        assert acting.stderr is not None
        said = ""
        while "belongs to user 65534" not in said and acting.poll() is None:
            if command == "delete":  # as a script does that looks at its record all the time
                with contextlib.suppress(OSError):
                    (job.place / "restored").write_bytes(running)
                    (job.place / "restored").replace(record)
            if select.select([acting.stderr], [], [], 0.0)[0]:
                said = acting.stderr.readline()
        acting.kill()

    assert "processes of a job run only as its user, and this process runs as user 0" in said
    assert sorted(path.name for path in job.place.rglob("attempt-*")) == before
    os.chown(job.place, 0, 0)
    cli("delete", "counter")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open the folders of others")
@pytest.mark.parametrize(
    "planted",
    [
        "home",
        *(pytest.param(f"link to the {what}", marks=pytest.mark.extended) for what in ("jobs", "supervisors", "home")),
    ],
)
def test_root_acts_on_no_job_in_the_home_of_another_user(tmp_path, home, planted):
    """The owner of a home can exchange its folders for links to those of a third user, between any two steps of a command."""
    job = Job.write(tmp_path, home, 3, 0.01)
    cli("submit", job.folder / "job.json", "--supervise", "none")
    before, theirs = (job.place / "record.json").read_bytes(), tmp_path / "theirs"
    (home / "supervisors").mkdir(exist_ok=True)
    if planted == "home":
        theirs = home
    elif planted == "link to the home":
        theirs.symlink_to(home)
    else:
        name = planted.rpartition(" ")[2]
        theirs.mkdir()
        (theirs / "jobs").mkdir()
        (theirs / name).rmdir() if name == "jobs" else None
        (theirs / name).symlink_to(home / name)
        if name != "jobs":
            shutil.copytree(job.place, theirs / "jobs" / "counter")
    changed = {"home": home, "link to the home": theirs}.get(planted, theirs / planted.rpartition(" ")[2])
    os.chown(changed, 65534, 65534, follow_symlinks=False)

    for command in (
        ("status", "counter"),
        ("suspend", "counter"),
        ("supervise", "counter"),
        ("delete", "counter"),
        ("logs", "counter"),
    ):
        refused = cli(*command, "--home", theirs, check=False)
        assert refused.returncode == 1
        assert "belongs to user 65534, but this process runs as user 0; run it as user 65534" in refused.stderr

    assert (job.place / "record.json").read_bytes() == before
    os.chown(changed, 0, 0, follow_symlinks=False)
    cli("delete", "counter")


ROLES = {
    "trainer": {"entrypoint": ["echo", "output of the trainer"], "nodes": 1, "nproc_per_node": 1},
    "judge": {"launch": "simple", "entrypoint": ["sleep", "1"]},
}


def write_roles(folder):
    path = folder / "roles.json"
    path.write_text(json.dumps({"name": "roles", "roles": ROLES}))
    return path


@pytest.mark.extended
@pytest.mark.skipif(os.geteuid() != 0, reason="only root looks after the jobs of others")
def test_root_starts_no_role_of_a_users_job(tmp_path, home):
    """The job of an elastic role is made by its supervisor, so that the owner of its folder shows nothing."""
    cli("submit", write_roles(tmp_path), "--supervise", "none")
    place = home / "jobs" / "roles"
    before = sorted(path.name for path in place.iterdir())
    for path in (place, *place.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)

    ended = cli("supervise", "roles", check=False)

    assert "processes of a job run only as its user, and this process runs as user 0" in ended.stderr
    left = {path.name for path in place.iterdir()} - set(before)
    assert left <= {"record.lock", "supervisor.lock"}
    os.chown(place, 0, 0)
    cli("delete", "roles")


@pytest.mark.extended
def test_no_command_follows_a_link_to_the_roles_of_another_job(tmp_path, home):
    """A script links the folder of its job's roles to that of another user, and takes the name and uid of that job."""
    other, document = ("--home", tmp_path / "other"), write_roles(tmp_path)
    cli("submit", document, "--watch", *other)
    cli("submit", document, "--supervise", "none")
    theirs, ours = (folder / "jobs" / "roles" for folder in (tmp_path / "other", home))
    record = theirs / "jobs" / "roles-trainer" / "record.json"
    before = record.read_bytes()
    uids = [json.loads((folder / "record.json").read_text())["uid"] for folder in (ours, theirs)]
    (ours / "record.json").write_text((ours / "record.json").read_text().replace(*uids))
    (ours / "jobs").symlink_to(theirs / "jobs")

    shown = cli("status", "roles", "--json")
    logs = cli("logs", "roles", "--role", "trainer", check=False)
    ended = cli("supervise", "roles", check=False)
    cli("delete", "roles")

    assert "output of the trainer" in cli("logs", "roles", "--role", "trainer", *other).stdout
    assert json.loads(before)["uid"] not in shown.stdout
    assert "output of the trainer" not in logs.stdout
    assert "the path is a link or belongs to another user" in ended.stderr
    assert record.read_bytes() == before
    cli("delete", "roles", *other)


@pytest.mark.extended
def test_a_pipe_in_the_place_of_a_jobs_secret_ends_its_job(tmp_path, home):
    """A process that opens the pipe to read would wait for ever, in a thread that other jobs need."""
    cli("submit", write_roles(tmp_path), "--supervise", "none")
    secret = home / "jobs" / "roles" / "secret"
    secret.unlink()
    os.mkfifo(secret)

    ended = cli("supervise", "roles", check=False)

    assert "secret: the path is not a regular file" in ended.stderr
    cli("delete", "roles")


def test_a_status_with_times_that_are_no_numbers_stops_no_command(tmp_path, home):
    """A script stops its coordinator and writes the status of its job by itself."""
    deleted_within = {"forceful_deletion_grace_period": "2s"}
    job = Job.write(tmp_path, home, 3, 0.01, endless=True, fault_tolerance=deleted_within).submit()
    job.trains(ranks=1)
    for coordinator in job.agents("coordinator"):
        coordinator.kill(signal.SIGSTOP)
    status = json.loads((job.place / "status.json").read_text())
    incident = {"cause": "process", "rung": "restart-workers", "reason": "r" * 300, "detected_at": "NaN"}
    status["incidents"] = [{"id": {"attempt": 1, "round": n, "node": 0}, **incident} for n in range(1, 601)]
    (job.place / "forged").write_text(json.dumps(status))
    (job.place / "forged").replace(job.place / "status.json")

    explained = cli("explain", "counter", check=False)
    cli("delete", "counter")

    assert "Traceback" not in explained.stderr
    assert "unexpected error" not in explained.stderr
    assert not job.place.exists()
    eventually(lambda: not processes(str(home)))


@pytest.mark.extended
def test_a_planted_cgroup_and_many_rounds_stop_no_command(tmp_path, home):
    """A script names a folder with a pipe as the cgroup of its node, and links rounds without number to one folder."""
    cli("submit", Job.write(tmp_path, home, 3, 0.01).folder / "job.json", "--supervise", "none")
    place, planted = home / "jobs" / "counter", tmp_path / "cgroup"
    planted.mkdir()
    os.mkfifo(planted / "cgroup.events")
    node = place / "nodes" / "0" / "attempt-1.1"
    (node / "logs" / "round-1").mkdir(parents=True)
    (node / "logs" / "round-1" / "rank-0.out").write_text("of the script\n")
    for number in range(2, 17_000):
        (node / "logs" / f"round-{number}").symlink_to(node / "logs" / "round-1")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    shim = {"boot_id": boot, "pid": 1 << 22, "start_ticks": 1, "attempt": 1, "mark": "x/1/0/1", "cgroup": str(planted)}
    (node / "shim.json").write_text(json.dumps({**shim, "host": "here", "started_at": 1.0, "command": []}))

    explained = cli("explain", "counter")
    logs = cli("logs", "counter", "--tail", "1", check=False)
    cli("delete", "counter")

    assert "Job counter" in explained.stdout
    assert "is a symbolic link; expected a regular file without links" in logs.stderr
    assert not place.exists()
