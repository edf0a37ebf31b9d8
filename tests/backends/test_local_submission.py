"""What the local backend checks before it takes a job, and what a submission leaves when it is cut off."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.backends.contract import BackendError, JobExistsError, SubmitError
from rallypoint.backends.local.checks import check_agent, check_plan
from rallypoint.backends.local.files import describe
from rallypoint.backends.local.store import Store
from rallypoint.job import compile_plan
from tests.backends.stage import LocalStage

USED = os.strerror(errno.EADDRINUSE)


@pytest.fixture
def place(tmp_path, home):
    return LocalStage(tmp_path, home)


def refused(place, home, **fields) -> str:
    """The one line that refuses a job."""
    (plan,) = compile_plan(place.job(**fields))
    with pytest.raises(SubmitError) as error:
        check_plan(plan, home=home, host="127.0.0.1")
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_job_that_can_run_is_not_refused(place, home, tmp_path):
    """And the checks leave nothing behind."""
    (plan,) = compile_plan(place.job(logs={"dir": "logs"}, checkpoint_dir="checkpoints"))
    before = sorted(tmp_path.iterdir())

    check_plan(plan, home=home, host="127.0.0.1")

    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root can create a folder of another user")
def test_a_log_folder_of_another_user_is_refused(place, home, tmp_path):
    """Its owner could read the output and put links in the place of files."""
    taken = tmp_path / "scratch" / "counter"
    taken.mkdir(parents=True)
    os.chown(taken, 1234, 1234)

    said = refused(place, home, name="counter", logs={"dir": str(taken.parent)})

    assert said.startswith(f"logs.dir: cannot use {taken}: this folder belongs to user 1234")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can create a folder of another user")
@pytest.mark.parametrize(
    ("mode", "owner", "why"),
    [
        (0o777, 0, "every user can rename the folders in it"),
        (0o1777, 1234, "this folder belongs to user 1234"),
        (0o755, 1234, "this folder belongs to user 1234"),
    ],
)
def test_a_folder_of_logs_in_which_others_can_rename_is_refused(place, home, tmp_path, mode, owner, why):
    """They could put another folder in the place of the job's, and read the output of later rounds."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(mode)
    os.chown(scratch, owner, owner)

    assert f"logs.dir: cannot use {scratch}: {why}" in refused(place, home, logs={"dir": str(scratch)})


@pytest.mark.parametrize(
    ("entrypoint", "said"),
    [
        pytest.param("typo.py", "entrypoint: cannot run script {}/typo.py: file not found", id="missing"),
        pytest.param("folder", "entrypoint: cannot run script {}/folder: the path is a folder, not a script", id="folder"),
    ],
)
def test_a_script_that_is_not_there(place, home, tmp_path, entrypoint, said):
    """The error has the whole path, and where relative ones start."""
    (tmp_path / "folder").mkdir()

    text = refused(place, home, entrypoint=entrypoint)

    assert text.startswith(said.format(tmp_path))
    assert f"workdir ({tmp_path})" in text


def test_a_command_that_is_not_there(place, home):
    """It is looked for where the workers would find it."""
    text = refused(place, home, entrypoint=["no-such-program", "train"], env={"PATH": "/opt/nothing"})

    assert text == "entrypoint: the command no-such-program is not an executable on this machine (PATH /opt/nothing)"


def test_a_command_relative_to_the_workdir_is_found(place, home, tmp_path):
    """As the workers would find it; it is refused until it is executable."""
    program = tmp_path / "train.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o644)
    assert "./train.sh is not an executable" in refused(place, home, entrypoint=["./train.sh"])
    program.chmod(0o755)
    (plan,) = compile_plan(place.job(entrypoint=["./train.sh"]))

    check_plan(plan, home=home, host="127.0.0.1")


def test_a_workdir_that_is_not_there(place, home, tmp_path):
    """Named before the script in it is missed."""
    text = refused(place, home, workdir="nowhere")

    assert text == f"workdir: {tmp_path}/nowhere is not a folder; create the folder or choose another"


def test_a_port_in_use(place, home):
    """Tried by binding it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        text = refused(place, home, rendezvous={"port": port})

        other = refused(place, home, health={"metrics_port": port})

    taken_by_us = f"cannot open port {port} on this machine: {USED}; choose another port"
    assert text == f"rendezvous.port: {taken_by_us}, or 0 to use a free port"
    assert other == f"health.metrics_port: {taken_by_us}, or 0 for no metrics"


def test_the_metrics_have_a_port_of_their_own(place, home):
    """What is open to everybody is not where the secret is asked for."""
    text = refused(place, home, rendezvous={"port": 29400}, health={"metrics_port": 29400})

    assert text == "health.metrics_port: 29400 is already the coordinator port (rendezvous.port); choose another port"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        pytest.param({"logs": {"dir": "train.py/logs"}}, "logs.dir", id="logs"),
        pytest.param({"checkpoint_dir": "train.py/checkpoints"}, "checkpoint_dir", id="checkpoints"),
    ],
)
def test_a_folder_that_cannot_be_made(place, home, fields, name):
    """Tried by writing where it would be."""
    text = refused(place, home, **fields)

    assert text.startswith(f"{name}: ")
    assert "not a folder" in text


def test_a_home_that_cannot_be_made(place, tmp_path):
    """A file is in the way."""
    (plan,) = compile_plan(place.job())

    with pytest.raises(SubmitError, match=r"RALLYPOINT_HOME: .*train\.py/home: a part of this path is not a folder"):
        check_plan(plan, home=tmp_path / "train.py" / "home", host="127.0.0.1")


def test_a_full_disk(place, tmp_path):
    """Tried by writing; the error says what to do, and nothing is left."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        (disk / "ballast").write_bytes(bytes(4096))
        (plan,) = compile_plan(place.job(logs={"dir": str(disk / "logs")}))
        with pytest.raises(SubmitError, match=r"logs\.dir: .*disk/logs: no space left on the disk; free some space") as error:
            check_plan(plan, home=tmp_path / "home", host="127.0.0.1")
        assert "\n" not in str(error.value)
        assert [path.name for path in disk.iterdir()] == ["ballast"]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_path_that_this_user_may_not_write():
    """As the kernel says it, with what to do."""
    text = describe(PermissionError(errno.EACCES, "Permission denied", "/root/x"), Path("/elsewhere"))

    assert text == "/root/x: not writable for this user; change its owner or mode, or point RALLYPOINT_HOME to another folder"


def test_a_python_that_cannot_run_agents():
    """The error names what is missing and how to get it."""
    with pytest.raises(
        SubmitError, match=r"\(missing packages: no_such_package\); pip install 'airflow-provider-rallypoint\[agent\]'"
    ):
        check_agent(("json", "no_such_package"))


# --- The store -------------------------------------------------------------------------------------------------------------


def test_a_taken_name_tells_everything(place, home):
    """Who has it, how far it is, both specs, and what to do; nothing is left of the second."""
    store = Store(home=home)
    store.create(place.backend.plan(place.job()), owner="ann", now=1.0)

    with pytest.raises(JobExistsError, match="name: 'digits' was just taken by another submission; choose another name"):
        store.create(place.backend.plan(place.job()), owner="bob", now=2.0)
    assert [path.name for path in (home / "jobs").iterdir()] == ["digits"]


async def test_the_backend_tells_who_has_the_name(place):
    """Owner, phase, both specs, and what to do."""
    first = await place.backend.submit(place.backend.plan(place.job()), owner="ann")
    other = place.backend.plan(place.job(args=["--other"]))

    with pytest.raises(JobExistsError) as error:
        await place.backend.submit(other, owner="bob")
    assert str(error.value) == (
        f"name: a job digits already exists (owner ann, just submitted, spec {first.record.digest}; "
        f"this one: owner bob, spec {other.plan.digest}); choose another name, or delete it with: rallypoint delete digits"
    )


def test_what_cut_off_submissions_and_deletions_left_is_cleaned_up(place, home):
    """By the next submission; one that is still at work is left alone."""
    store, jobs = Store(home=home), home / "jobs"
    gone = subprocess.run([sys.executable, "-I", "-S", "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    mine = f".new-{os.getpid()}-{_ticks()}-other-0123"
    for name in (f".new-{int(gone.stdout)}-17-digits-0123", ".deleted-digits-4567", mine):
        (jobs / name / "nodes").mkdir(parents=True)
    assert store.names() == ()

    store.create(place.backend.plan(place.job()), owner="ann", now=1.0)

    assert sorted(path.name for path in jobs.iterdir()) == [mine, "digits"]


def test_what_somebody_else_left_under_such_names_breaks_no_command(place, home):
    """Files, links and folders with any name: jobs are listed, submitted and deleted all the same, by the CLI, too."""
    store, jobs = Store(home=home), home / "jobs"
    jobs.mkdir(parents=True)
    (home / "kept").mkdir()
    strays = (".new-", ".new-x", ".new-1-2", ".new-99999999999999999999-1-x", ".new-\u0663-1-x", "file", ".other")
    for name in strays:
        (jobs / name).touch()
    (jobs / ".deleted-file").touch()
    (jobs / ".deleted-link").symlink_to(home / "kept")
    (jobs / ".deleted-dangling").symlink_to(home / "nowhere")
    (jobs / ".new-1-99999999999-digits-0123").write_text("a file of a submission that is gone")
    (jobs / "link").symlink_to(jobs / "link")

    stored = store.create(place.backend.plan(place.job()), owner="ann", now=1.0)
    (jobs / f".deleted-digits-{stored.record.uid}").write_text("in the way")
    assert store.names() == ("digits",)
    for words in (["status"], ["status", "digits"], ["status", "--json"]):
        command = [sys.executable, "-m", "rallypoint.cli.main", *words, "--home", str(home)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert "digits" in done.stdout
    store.purge(stored.record)

    assert store.names() == ()
    assert sorted(path.name for path in jobs.iterdir()) == sorted([*strays, "link"])
    assert (home / "kept").exists()


def _ticks() -> str:
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../digits", "a\0b"])
async def test_what_is_no_name_of_a_job(place, name):
    """No path is made of it; it is simply not there."""
    assert await place.backend.load(name) is None
    assert await place.backend.status(name) is None


@pytest.mark.parametrize("file", ["record.json", "plan.json"])
async def test_a_file_that_somebody_broke_is_named(place, home, file):
    """The error has the file's path and what is wrong with it."""
    await place.backend.submit(place.backend.plan(place.job()), owner="ann")
    path = home / "jobs" / "digits" / file
    path.write_text("{}")

    with pytest.raises(BackendError, match=f"digits/{file}: "):
        await place.backend.load("digits")


def test_the_printed_plan_is_what_is_done(place, home):
    """Folder, files, and each process with its exact command; what is not used here is said."""
    blueprint = place.backend.plan(place.job(nodes="1:2", image="torch:2", resources={"gpus": 1}))

    kinds = [(thing["kind"], thing.get("name")) for thing in blueprint.objects]
    assert kinds[0] == ("folder", None)
    assert [name for kind, name in kinds if kind == "process"] == ["coordinator", "node 0", "node 1"]
    node = blueprint.objects[-1]
    assert node["folder"] == str(home / "jobs/digits/nodes/1/attempt-1.1")
    assert node["command"][len(place.agent) :] == [
        *("node", "--plan", str(home / "jobs/digits/plan.json"), "--attempt", "1", "--node", "1", "--incarnation", "1"),
        *("--secret-file", str(home / "jobs/digits/secret"), "--endpoint-file", str(home / "jobs/digits/endpoint.json")),
        *("--dir", node["folder"], "--host", "127.0.0.1"),
    ]
    assert [note.partition(":")[0] for note in blueprint.notes] == ["resources", "image"]
    assert not home.exists()
