"""What a script of a job leaves in the job's folder for a supervisor or a command of another user."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import time
import tracemalloc
from pathlib import Path

import pytest

from rallypoint.agent.node.copies import forget_old_rounds
from rallypoint.backends.contract import ActionError, BackendError
from rallypoint.backends.local import certificates, cgroup, durable, files, heartbeat, proc, store
from rallypoint.backends.local.backend import LocalBackend
from rallypoint.backends.local.changes import LocalChanges
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.logs import LogReader, UnitLogReader
from rallypoint.backends.local.node import NodeFolder, Shim
from rallypoint.backends.local.store import Store
from rallypoint.backends.local.units import _lives
from rallypoint.checkpoint.owned import new_name, own_folder
from rallypoint.job import ElasticJob
from rallypoint.supervision.record import Holder
from rallypoint.wire.bounds import VALUES
from rallypoint.wire.env import JOB_MARK
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.role_plans import RolePlan
from tests.waiting import eventually

HOST = "hosts/group/host-0"

PRECIOUS = "of another user\n"


@pytest.fixture
def precious(tmp_path):
    path = tmp_path / "precious"
    path.write_text(PRECIOUS)
    return path


@pytest.mark.parametrize("plant", [os.symlink, os.link, lambda _, path: os.mkfifo(path)], ids=["link", "hard link", "pipe"])
def test_a_file_is_replaced_beside_what_was_planted(tmp_path, precious, plant):
    """What was planted is deleted, and what it names stays."""
    path = tmp_path / "record.json"
    plant(precious, f"{path}.tmp")

    durable.write_text(str(path), "text")

    assert path.read_text() == "text"
    assert not path.is_symlink()
    assert precious.read_text() == PRECIOUS


@pytest.mark.parametrize("plant", [os.symlink, os.link, lambda _, path: os.mkfifo(path)], ids=["link", "hard link", "pipe"])
def test_a_lock_is_no_other_file(tmp_path, precious, plant):
    """Whoever holds it writes a name into it."""
    plant(precious, tmp_path / "supervisor.lock")

    with pytest.raises(OSError, match=r"delete the (link|file)|No such device"):
        durable.try_lock(str(tmp_path / "supervisor.lock"))
    assert precious.read_text() == PRECIOUS


def test_a_heartbeat_follows_no_link(tmp_path, precious):
    """The next beat is written again."""
    path = tmp_path / "supervisors" / "1.json"
    path.parent.mkdir()
    path.with_suffix(".tmp").symlink_to(precious)

    with pytest.raises(OSError, match="symbolic"):
        heartbeat._write(path, "beat")
    heartbeat._write(path, "beat")

    assert (path.read_text(), precious.read_text()) == ("beat", PRECIOUS)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_node_is_neither_seen_nor_started_behind_a_link(tmp_path, depth):
    """Its log and its exit code would be those of a folder of another user."""
    job = JobFolder(path=tmp_path / "jobs" / "job")
    job.path.mkdir(parents=True)
    node = job.node(0, 1, 1)
    elsewhere = tmp_path / "elsewhere" / "0" / "attempt-1.1"
    elsewhere.mkdir(parents=True)
    parts = [node.path, *node.path.parents][depth]
    parts.parent.mkdir(parents=True, exist_ok=True)
    parts.symlink_to([elsewhere, *elsewhere.parents][depth])
    (elsewhere / "shim.json").write_text("{}")

    assert list(job.everyone()) == []
    with pytest.raises(ActionError, match="is a symbolic link; expected a folder"):
        node.start(["true"], record=job.record, attempt=1, mark="u/1/0/1", environment={})
    assert [path.name for path in elsewhere.iterdir()] == ["shim.json"]


def test_the_log_of_a_node_is_no_link(tmp_path, precious):
    """A script knows the folders of the next nodes, and could create them."""
    node = NodeFolder(path=tmp_path / "jobs" / "job" / "nodes" / "0" / "attempt-1.1", number=0, incarnation=1)
    node.path.mkdir(parents=True)
    node.log.symlink_to(precious)

    with pytest.raises(ActionError, match="symbolic"):
        node.start(["echo", "hello"], record=tmp_path / "record.json", attempt=1, mark="u/1/0/1", environment={"PATH": "/bin"})
    assert precious.read_text() == PRECIOUS


def test_a_job_is_not_read_behind_a_link(tmp_path):
    """Which could change between two reads: from a folder that the script may read to one that it may not."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "record.json").write_text("{}")
    (tmp_path / "elsewhere" / "status.json").write_text("{}")
    (tmp_path / "jobs" / "job").symlink_to(tmp_path / "elsewhere")

    for read in (Store(home=tmp_path).load, Store(home=tmp_path).status):
        with pytest.raises(BackendError, match="'job' is a symbolic link"):
            read("job")


def test_certificates_are_read_from_regular_files(tmp_path, caplog):
    """A pipe would stop the thread of its supervisor for ever."""
    pytest.importorskip("cryptography")
    folder = JobFolder(path=tmp_path / "job")
    certificates.create(folder, "job", time.time())
    (folder.tls / "ca.crt").unlink()
    os.mkfifo(folder.tls / "ca.crt")

    assert certificates.renew(folder, "job", time.time(), after=0.0) is False
    assert "ca.crt: the path is not a regular file" in caplog.text


def test_a_small_file_of_too_many_values_is_not_parsed(tmp_path):
    """11 million empty lists in 32 MiB need 24 times as much memory."""
    path = tmp_path / "status.json"
    path.write_text("[" + "[]," * VALUES + "[]]")

    with pytest.raises(files.UnreadableError, match=r"has more than \d+ JSON values, the largest allowed size"):
        files.read_bytes(path)
    shutil.rmtree(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can signal processes of others")
def test_a_node_ends_only_for_the_user_whose_job_it_was(tmp_path):
    """A link can take the place of the folder of all jobs between two looks; what is there then may belong to another user."""
    node = NodeFolder(path=tmp_path / "jobs" / "job" / "nodes" / "0" / "attempt-1.1", number=0, incarnation=1)
    node.path.mkdir(parents=True)
    shim = {"boot_id": "b", "pid": 1, "start_ticks": 1, "attempt": 1, "mark": "m", "cgroup": "", "host": "h"}
    (node.path / "shim.json").write_text(json.dumps({**shim, "started_at": 1.0, "command": []}))

    with pytest.raises(ActionError, match="not to the user of the job"):
        node.end(force=True, user=65534)
    assert not (node.path / "exit.json").exists()

    node.end(force=True, user=os.geteuid())
    assert (node.path / "exit.json").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can signal processes of others")
@pytest.mark.parametrize("force", [False, True])
def test_root_ends_processes_of_the_jobs_user_alone(tmp_path, force):
    """A script can write any process, mark and cgroup into `shim.json`."""
    planted = tmp_path / "cgroup"
    planted.mkdir()
    (planted / "cgroup.kill").write_text(PRECIOUS)
    node = NodeFolder(path=tmp_path / "jobs" / "job" / "nodes" / "0" / "attempt-1.1", number=0, incarnation=1)
    node.path.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "RALLYPOINT_JOB_MARK": "u/1/0/1"}) as other:
        # For a moment after exec the kernel shows no environment.
        eventually(lambda: other.pid in proc.marked("u/1/0/1"))
        told = {
            "boot_id": proc.boot_id(),
            "pid": other.pid,
            "start_ticks": proc.start_ticks(other.pid),
            "attempt": 1,
            "mark": "u/1/0/1",
            "cgroup": str(planted),
            "host": "here",
            "started_at": 1.0,
            "command": [],
        }
        (node.path / "shim.json").write_text(json.dumps(told))
        os.chown(node.path / "shim.json", 65534, 65534)
        with pytest.raises(
            ActionError, match=r"shim\.json belongs to user 65534, not to the user of the job; delete the folder"
        ):
            node.end(force=force)
        os.chown(node.path.parents[2], 65534, 65534)

        node.end(force=force)
        (node.path / "shim.json").write_text(json.dumps({**told, "start_ticks": 1}))
        node.end(force=force)
        time.sleep(0.1)

        assert other.poll() is None
        assert (planted / "cgroup.kill").read_text() == PRECIOUS
        node.remove_cgroup()
        assert planted.is_dir()
        (node.path / "exit.json").unlink()  # a process of another user is none of the node
        os.chown(node.path.parents[2], 0, 0)
        os.chown(node.path / "shim.json", 0, 0)
        (node.path / "shim.json").write_text(json.dumps(told))
        node.end(force=True)
        assert other.wait(10) == -signal.SIGUSR1


def test_a_heartbeat_is_read_from_its_folder_alone(tmp_path):
    """A script can write any path into the record of its job, and an error would quote the file."""
    (tmp_path / "supervisors").mkdir()
    (tmp_path / "secret.json").write_text(PRECIOUS)
    os.mkfifo(tmp_path / "pipe.json")

    for path in (tmp_path / "secret.json", tmp_path / "pipe.json", "/dev/zero", "..", "/", f"{'x' * 300}.json\n"):
        holder = Holder(id="1", name="x", host="h", pid=1, heartbeat=str(path))
        assert heartbeat.read_pulse(holder, tmp_path) is None
        assert heartbeat.read_pulse(dataclasses.replace(holder, id=str(path), heartbeat=""), tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can signal processes of others")
def test_root_sweeps_processes_of_the_jobs_user_alone():
    """A script can write the uid of any job into the record of its own."""
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "RALLYPOINT_JOB_MARK": "victim/1/0/1"}) as other:
        eventually(lambda: other.pid in proc.marked("victim/1/0/1"))
        assert proc.kill_job("victim", spare="no-shim", user=65534) == 0
        assert other.poll() is None
        assert proc.kill_job("victim", spare="no-shim", user=0) == 1
        assert other.wait(10) == -signal.SIGKILL


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write the files of others")
def test_root_replaces_no_certificate_of_a_user(tmp_path):
    """The folder could become a link to another one after its files were read."""
    pytest.importorskip("cryptography")
    folder = JobFolder(path=tmp_path / "job")
    certificates.create(folder, "job", time.time())
    before = (folder.tls / "tls.crt").read_bytes()
    os.chown(folder.path, 65534, 65534)

    assert certificates.renew(folder, "job", time.time(), after=0.0) is False
    assert (folder.tls / "tls.crt").read_bytes() == before


async def test_numbers_of_a_script_make_no_supervisor_allocate(tmp_path):
    """Two members of 10**9 and -10**9 ranks are none in all; 10**9 nodes would be 10**9 slots."""
    backend = LocalBackend(tmp_path, agent_command=["true"])
    blueprint = backend.plan(ElasticJob.model_validate({"name": "digits", "entrypoint": ["true"], "workdir": str(tmp_path)}))
    stored = await backend.submit(blueprint, owner="cli")
    folder = JobFolder(path=tmp_path / "jobs" / "digits")
    member = {"node": 0, "incarnation": 1, "agent": "a", "host": "h", "first_rank": 0}
    world = [{**member, "local_world_size": size} for size in (10**9, -(10**9))]
    status = {"version": 2, "job": "digits", "uid": stored.record.uid, "fence": {"attempt": 1}, "state": "running"}
    folder.status.write_text(json.dumps({**status, "world": world}))

    assert await backend.status("digits") is None
    assert (await backend.observe(stored.record)).status is None

    folder.status.write_text(json.dumps({**status, "world": []}))
    assert await backend.status("digits") is not None
    for path, key in ((folder.record, "size"), (folder.plan, None)):
        before = path.read_text()
        size = {"min_nodes": 1, "max_nodes": 10**9}
        path.write_text(json.dumps(json.loads(before) | (size if key is None else {key: size})))
        with pytest.raises(BackendError, match="max_nodes: 1000000000 is not allowed; expected a number from 0 to 16384"):
            await backend.load("digits")
        path.write_text(before)


@pytest.mark.parametrize(
    "link", ["nodes", "nodes/0", "nodes/0/attempt-1.1/logs/round-1", "nodes/0/attempt-1.1/logs/round-1/rank-0.out"]
)
def test_only_logs_of_the_job_are_emptied_for_a_deletion(tmp_path, link):
    """Where the disk is full; a script has put a link to files of another user in the place of one of its folders."""
    job = JobFolder(path=tmp_path / "jobs" / "job")
    own = job.path / "nodes" / "1" / "attempt-1.1" / "logs" / "round-1" / "rank-1.err"
    own.parent.mkdir(parents=True)
    own.write_text("a log")
    elsewhere = tmp_path / "elsewhere"
    theirs = elsewhere / "0" / "attempt-1.1" / "logs" / "round-1" / "rank-0.out"
    theirs.parent.mkdir(parents=True)
    theirs.write_text(PRECIOUS)
    path = job.path / link
    if link == "nodes":
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(elsewhere / Path(link).relative_to("nodes"))

    store._empty_logs(job)

    assert theirs.read_text() == PRECIOUS
    assert link == "nodes" or own.read_text() == ""


@pytest.mark.parametrize(
    "number", ["\u00b2", "\u0664", "9" * 200, "-1", "1e3"], ids=["square", "arabic", "long", "minus", "float"]
)
def test_a_folder_whose_name_is_no_number_is_no_node(tmp_path, number):
    """`str.isdigit` is true of some texts that `int` refuses: one folder of that name broke each command for the job."""
    job = JobFolder(path=tmp_path / "jobs" / "job")
    for name in (f"nodes/{number}/attempt-1.1", f"nodes/0/attempt-{number}.1", f"coordinator/term-{number}"):
        (job.path / name).mkdir(parents=True)
    unit = job.path / "hosts" / "actor-0" / f"host-{number}" / "units" / f"actor-{number}" / "1.0.1"
    real = job.path / "hosts" / "actor-0" / "host-1" / "units" / f"actor-{number}" / "1.0.1"
    for folder in (unit, real):
        folder.mkdir(parents=True)
        (folder / "start.json").write_text("{}")
        (folder / "rank-0.out").write_text("line\n")
    (job.node(0, 1, 1).path / "logs" / f"round-{number}").mkdir(parents=True)
    (job.node(0, 1, 1).path / "logs" / f"round-{number}" / "rank-0.out").write_text("line\n")

    assert [node.path.name for node in job.everyone()] == ["attempt-1.1", "host-1"]
    role = RolePlan(name="actor", elastic=False, total=1, plan={})
    assert list(_lives(job.host("actor-0", 1), {"actor": role})) == []
    plan = Plan(name="job", role="", min_nodes=1, max_nodes=1, entry=Entry.SCRIPT, entrypoint="x")
    assert list(UnitLogReader(job, plan, "actor", rank=None).read(final=True)) == []
    assert list(LogReader(job, plan, rank=None).read(final=True)) == []
    forget_old_rounds(job.node(0, 1, 1).path / "logs")


def test_no_more_folders_are_looked_at_than_a_job_can_need(tmp_path, monkeypatch):
    """A script can create a million of them."""
    monkeypatch.setattr("rallypoint.backends.local.layout.FOLDERS", 10)
    job = JobFolder(path=tmp_path / "job")
    for number in range(30):
        job.node(number, 1, 1).path.mkdir(parents=True)

    assert len(list(job.nodes())) == 10


@pytest.mark.parametrize(
    ("folder", "look"),
    [
        pytest.param("coordinator", lambda job, _: list(job.everyone()), id="coordinators"),
        pytest.param("nodes", lambda job, _: list(job.everyone()), id="nodes"),
        pytest.param("hosts/group", lambda job, _: list(job.everyone()), id="hosts"),
        pytest.param(f"{HOST}/units/a-0", lambda job, _: LocalChanges(job)._find_units(), id="instances"),
        pytest.param(f"{HOST}/units/a-0", lambda job, _: list(_lives(job.host("group", 0), {})), id="instances of a host"),
        pytest.param(
            f"{HOST}/units/a-0/1.0.0",
            lambda job, plan: UnitLogReader(job, plan, "a", rank=None).read(final=True),
            id="output of an instance",
        ),
    ],
)
def test_no_more_entries_of_a_folder_are_read_than_a_job_can_need(folder, look, tmp_path, monkeypatch):
    """A script can create a million files, which took a third of a second and 95 MiB at each look."""
    monkeypatch.setattr("rallypoint.backends.local.layout.FOLDERS", 10)
    plan = Plan(name="job", role="a", min_nodes=1, max_nodes=1, entry=Entry.SCRIPT, entrypoint="x")
    job = JobFolder(path=tmp_path / "job")
    (job.path / folder).mkdir(parents=True)
    for number in range(5000):
        os.close(os.open(job.path / folder / f"{number}", os.O_CREAT | os.O_WRONLY))
    look(job, plan)

    tracemalloc.start()
    try:
        look(job, plan)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_a_process_of_another_user_is_no_part_of_a_node(tmp_path):
    """Marks of jobs are no secret: such a process kept a node of root's job that was lost, and its end waited for it."""
    mark = f"u-{os.getpid()}/1/0/1"
    process = subprocess.Popen(["sleep", "1000"], env={**os.environ, JOB_MARK: mark})
    try:
        shim = Shim(
            boot_id=proc.boot_id(),
            pid=1,
            start_ticks=1,
            attempt=1,
            mark=mark,
            cgroup="",
            host="h",
            started_at=1.0,
            command=(),
        )
        eventually(lambda: shim.left_something(os.geteuid()), why="the process has its variable")
        assert not shim.left_something(os.geteuid() + 1)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("plant", [os.symlink, lambda _, path: os.mkfifo(path)], ids=["link", "pipe"])
def test_no_lock_of_a_snapshot_folder_is_followed(tmp_path, precious, plant):
    """Anyone can make a folder of that name in shared memory; a pipe would stop each worker that starts."""
    folder = tmp_path / "rallypoint-snapshots-x"
    folder.mkdir()
    plant(precious, folder / "owner")

    own_folder(tmp_path / new_name()).remove()

    assert precious.read_text() == PRECIOUS


def test_a_pinned_folder_stays_the_same_when_a_link_takes_its_place(tmp_path):
    """A script can do that between the check of a folder and a write; the file must not appear where the link leads."""
    job, elsewhere = tmp_path / "jobs" / "job", tmp_path / "elsewhere"
    job.mkdir(parents=True)
    elsewhere.mkdir()

    with files.pinned(job, tmp_path / "jobs") as inside:
        job.rename(tmp_path / "jobs" / "moved")
        job.symlink_to(elsewhere)
        durable.write_text(str(inside / "record.json"), "text")

    assert list(elsewhere.iterdir()) == []
    assert (tmp_path / "jobs" / "moved" / "record.json").read_text() == "text"
    with pytest.raises(files.UnreadableError, match="'job' is a symbolic link"), files.pinned(job, tmp_path / "jobs"):
        pass


def test_an_error_in_a_pinned_folder_names_the_folder(tmp_path):
    """And not the number of a descriptor."""
    (tmp_path / "job").mkdir()

    with pytest.raises(FileNotFoundError) as raised, files.pinned(tmp_path / "job", tmp_path) as inside:
        (inside / "record.json").read_bytes()

    assert raised.value.filename == str(tmp_path / "job" / "record.json")


@pytest.mark.parametrize("events", ["pipe", "endless", "folder"])
def test_a_planted_cgroup_is_not_read(tmp_path, events):
    """A script can name any folder as the cgroup of its node: reading a pipe there would wait for ever."""
    if events == "pipe":
        os.mkfifo(tmp_path / "cgroup.events")
    elif events == "endless":
        (tmp_path / "cgroup.events").symlink_to("/dev/zero")
    else:
        (tmp_path / "cgroup.events").mkdir()
    (tmp_path / "cgroup.kill").write_text(PRECIOUS)
    (tmp_path / "empty").mkdir()

    assert not cgroup.populated(str(tmp_path), os.geteuid())
    cgroup.kill(str(tmp_path), os.geteuid())
    cgroup.remove(str(tmp_path), os.geteuid())

    assert (tmp_path / "cgroup.kill").read_text() == PRECIOUS
    assert (tmp_path / "empty").is_dir()


@pytest.mark.parametrize("text", ["", "\0", "\ud800", "/dev/zero", "x" * 10_000, "."])
def test_a_text_that_is_no_path_of_a_cgroup_is_none(text):
    """It ended the supervision of the job with a traceback."""
    assert not cgroup.populated(text, os.geteuid())
    cgroup.kill(text, os.geteuid())
    cgroup.remove(text, os.geteuid())
    assert proc.marked(text) == []


@pytest.mark.extended
def test_of_rounds_without_number_a_reader_looks_at_some(tmp_path):
    """A script links any number of rounds to one folder; the tab and triggers read logs again and again."""
    folder = JobFolder(path=tmp_path / "jobs" / "job")
    logs = folder.node(0, 1, 1).path / "logs"
    (logs / "round-1").mkdir(parents=True)
    (logs / "round-1" / "rank-0.out").write_text("line\n")
    for number in range(2, (1 << 14) + 2000):
        (logs / f"round-{number}").symlink_to(logs / "round-1")

    plan = Plan(name="job", role="", min_nodes=1, max_nodes=1, entry=Entry.SCRIPT, entrypoint="x")

    assert len(LogReader(folder, plan, rank=0, own_folder=True)._segments()) <= 1 << 14


async def test_a_heartbeat_is_written_through_no_link(tmp_path, caplog):
    """A script can link the folder of the heartbeats of its job's roles to any other folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "supervisors").symlink_to(elsewhere)

    async with heartbeat.beating(tmp_path, "attack"):
        pass

    assert list(elsewhere.iterdir()) == []
    assert "this supervisor cannot write its heartbeat" in caplog.text
    assert "'supervisors' is a symbolic link" in caplog.text
