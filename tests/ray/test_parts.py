"""The parts of the Ray backend that need no cluster."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import stat
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rallypoint.backends.contract import ActionError, BackendError, ConflictError, HeldError, LogLine, SubmitError, Tail
from rallypoint.backends.cursors import Cursors
from rallypoint.backends.local import proc
from rallypoint.backends.ray import calls
from rallypoint.backends.ray.access import Access
from rallypoint.backends.ray.cluster.holds import SILENT, Holds
from rallypoint.backends.ray.cluster.host import NodeSpec, new_folder, remove_stale
from rallypoint.backends.ray.heart import Heart
from rallypoint.backends.ray.placement import FILE, Placement, draw
from rallypoint.backends.ray.working_dir import package
from rallypoint.backends.site import RAY, Site, SiteError
from rallypoint.job import ElasticJob, load_job
from rallypoint.provider.connections.connection import ConnectionFieldError, read_settings
from rallypoint.supervision.actions import CreateNode, Purge, RemoveCoordinator
from rallypoint.supervision.record import Holder, JobRecord
from rallypoint.wire import codec


def job(**fields: object) -> ElasticJob:
    return load_job({"name": "digits", "entrypoint": "train.py", **fields}, based=False)


def placed(**fields: object) -> Placement:
    blueprint = draw(job(**fields), namespace="team", runtime_env={})
    return codec.loads(Placement, blueprint.attached[FILE])


@pytest.mark.parametrize(
    ("fields", "bundle"),
    [
        pytest.param({"nproc_per_node": 4}, {"CPU": 4.0}, id="one CPU for each worker"),
        pytest.param({"nproc_per_node": 4, "resources": {"gpus": 4}}, {"GPU": 4.0}, id="devices alone"),
        pytest.param(
            {"resources": {"cpu": "500m", "memory": "1536Mi"}}, {"CPU": 0.5, "memory": 1610612736.0}, id="memory in bytes"
        ),
        pytest.param({"resources": {"cpu": "1", "memory": "100M"}}, {"CPU": 1.0, "memory": 1e8}, id="decimal megabytes"),
        pytest.param({"worker_isolation": "TRAINERS"}, {"CPU": 1.0, "TRAINERS": 1.0}, id="isolation"),
        pytest.param(
            {"worker_isolation": "TRAINERS", "nproc_per_node": 3}, {"CPU": 3.0, "TRAINERS": 3.0}, id="isolation of each worker"
        ),
        pytest.param(
            {"resources": {"cpu": "1", "extended": {"example.com/rdma": "2"}}},
            {"CPU": 1.0, "example.com/rdma": 2.0},
            id="custom",
        ),
    ],
)
def test_the_resources_of_a_node(fields, bundle):
    """By Ray's names and units."""
    assert dict(placed(**fields).bundle) == bundle


def test_the_smallest_world_is_one_group_and_each_further_node_another():
    """All of the smallest world is placed at once, or nothing of it."""
    blueprint = draw(job(nodes="2:4", host_ignore_list=["a1"]), namespace="team", runtime_env={"pip": ["einops"]})

    groups = [item for item in blueprint.objects if item["kind"] == "PlacementGroup"]
    actors = [item for item in blueprint.objects if item["kind"] == "Actor"]
    assert [(group["name"], len(group["bundles"])) for group in groups] == [("UID-base", 2), ("UID-1-2-1", 1), ("UID-1-3-1", 1)]
    assert [actor["placement_group"] for actor in actors] == ["UID-base", "UID-base", "UID-1-2-1", "UID-1-3-1"]
    assert {(actor["lifetime"], actor["max_restarts"], str(actor["runtime_env"])) for actor in actors} == {
        ("detached", 0, "{'pip': ['einops']}")
    }
    assert placed(nodes="2:4", host_ignore_list=["a1"]).exclude == ("a1",)


def test_the_coordinators_reserve_their_isolation_on_the_head_node():
    """With the smallest world, all at once."""
    placement = placed(nodes=2, master={"isolation": "MASTER"})

    assert [dict(bundle.ask) for bundle in placement.group] == [
        {"CPU": 1.0},
        {"CPU": 1.0},
        {"MASTER": 1.0, "node:__internal_head__": 0.001},
    ]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tls": {"secret": "mine"}}, "tls: {secret: mine} is not allowed with backend ray; expected off or auto"),
    ],
)
def test_what_cannot_run_there_is_refused(fields, told):
    """At submission, with the field."""
    with pytest.raises(SubmitError) as raised:
        draw(job(**fields), namespace="team", runtime_env={})
    assert told in str(raised.value)


def test_what_is_ignored_is_said():
    """A field of pods has no meaning there."""
    blueprint = draw(job(image="train:1", master={"cpu": "2"}), namespace="team", runtime_env={})

    assert {"image: ignored by the ray backend", "master.cpu: ignored by the ray backend"} <= set(blueprint.notes)


@pytest.mark.parametrize(
    "address",
    [
        *("", "ray-head:8265", "ftp://head:1", "http://", "http://head:99999", "http://[head"),
        *("http://me:secret@head:8265", "http://:secret@head:8265", "http://@head", "me:secret@head:8265"),
        *("http://head?token=secret", "http://head/#secret", "http://head?"),
        *("http://me:1/secret@head:8265", "http://head:8265/a@secret", "http://head:secret", "token-secret"),
    ],
)
def test_a_wrong_address_is_an_error_that_shows_no_password(address):
    """With what is expected."""
    with pytest.raises(BackendError, match="expected the URL of the Ray dashboard") as raised:
        Access(address=address)
    with pytest.raises(ConnectionFieldError, match="expected the URL of the Ray dashboard") as read:
        read_settings("ray", own={}, extra={"platform": "ray", "address": address})
    with (
        pytest.raises(SiteError, match="expected the URL of the Ray dashboard")
        if address
        else contextlib.nullcontext() as placed
    ):
        Site(kind=RAY, address=address)
    assert "secret" not in f"{raised.value} {read.value} {placed and placed.value}"


@pytest.mark.parametrize("address", ["http://head:8265 ", " http://head:8265", "http://head:8265\n", "http://he\tad:8265"])
def test_white_space_around_an_address_is_an_error(address):
    """Parsers of URLs remove it, and what is stored would have it."""
    with pytest.raises(BackendError, match="fragment and white space"):
        Access(address=address)
    with pytest.raises(SiteError, match="fragment and white space"):
        Site(kind=RAY, address=address)
    with pytest.raises(ConnectionFieldError, match="expected a text without white space, also at its beginning and its end"):
        read_settings("ray", own={}, extra={"platform": "ray", "address": address})


@pytest.mark.parametrize(
    "storage",
    [
        *("s3://KEY:secret@bucket/x", "s3://secret@bucket", "s3://KEY:a/secret@bucket", "simplecache::s3://KEY:secret@bucket"),
        *("https://host/x?token=secret", "gs://bucket/x#secret", "KEY:secret@bucket", "abfs://me:secret@account.dfs/x"),
        *("abfs://data@account.dfs.core.windows.net/x?sig=secret", "s3:/KEY:secret@bucket", "/data\nsecret"),
    ],
)
def test_a_storage_with_credentials_is_an_error_that_does_not_show_them(storage):
    """It is stored with tasks and stands on command lines, as the address."""
    with pytest.raises(BackendError, match=r"storage: the value .* expected a folder of the head node") as raised:
        Access(address="http://head:8265", storage=storage)
    with pytest.raises(SiteError, match=r"storage: the value .* expected a folder of the head node") as placed:
        Site(kind=RAY, address="http://head:8265", storage=storage)
    with pytest.raises(ConnectionFieldError, match=r"storage: the value .* is not allowed") as read:
        read_settings("ray", own={}, extra={"platform": "ray", "address": "http://head:8265", "storage": storage})
    assert "secret" not in f"{raised.value} {placed.value} {read.value}"


@pytest.mark.parametrize(
    "storage",
    ["", "/data/ray", "~/ray", "/data/@home/a:b", "s3://bucket/ray", "abfs://data@account.dfs.core.windows.net/x", "memory://"],
)
def test_a_folder_and_an_url_are_storages(storage):
    """Before the host of an URL of Azure stands the name of a container."""
    assert Access(address="http://head:8265", storage=storage).storage == storage
    extra = {"platform": "ray", "address": "http://head:8265", "storage": storage}
    assert read_settings("ray", own={}, extra=extra).storage == storage


@pytest.mark.parametrize("text", ["[]", "{", "1", '"a"', '{"env_vars": {"PW": "secret"}'])
def test_a_wrong_runtime_environment_is_an_error_that_shows_no_value(text):
    """It is a JSON object, and may contain passwords."""
    with pytest.raises(BackendError, match="runtime_env: the value is not allowed; expected a JSON object"):
        Access(address="http://head:8265", runtime_env=text)
    with pytest.raises(
        ConnectionFieldError, match=r"runtime_env: the value \([^()]+\) is not allowed; expected a JSON object"
    ) as read:
        read_settings("ray", own={}, extra={"platform": "ray", "address": "http://head:8265", "runtime_env": text})
    assert "secret" not in str(read.value)


def test_the_token_is_not_shown():
    """Neither in logs nor in errors."""
    assert "hidden" not in repr(Access(address="http://head:8265", token="hidden"))


@pytest.mark.parametrize(
    "action",
    [CreateNode(attempt=1, node=2, incarnation=3, unseen=2), RemoveCoordinator(attempt=1, term=2, force=True), Purge()],
)
def test_an_action_travels(action):
    """It is the same after the call."""
    assert calls.action_from(calls.action_to(action)) == action


def test_a_strange_action_is_refused():
    """Its name is no class of anything else."""
    with pytest.raises(BackendError, match="expected one of CreateComponents"):
        calls.action_from({"kind": "Action", "fields": {}})


def test_errors_travel():
    """With what a supervisor reads of them."""
    told = calls.error_from(calls.error_to(ActionError("no room", waits=True)), name="digits")
    held = calls.error_from(calls.error_to(HeldError("digits", "ada")), name="digits")
    conflict = calls.error_from(calls.error_to(ConflictError("changed")), name="digits")

    assert isinstance(told, ActionError)
    assert isinstance(held, HeldError)
    assert (type(told), str(told), told.waits, told.fatal) == (ActionError, "no room", True, False)
    assert (type(held), held.holder) == (HeldError, "ada")
    assert (type(conflict), str(conflict)) == (ConflictError, "changed")


def test_an_error_of_a_ledger_is_cut_and_cleaned():
    """Any program on the cluster can announce a ledger; its text goes to logs and to the tab."""
    text = "x\x1b[2J" + "y" * (30 << 20)

    told = str(calls.error_from({"kind": "ActionError", "text": text}, name="digits"))
    held = str(calls.error_from({"kind": "HeldError", "holder": text}, name="digits"))

    assert max(map(len, (told, held))) < 2200
    assert "\x1b" not in told + held


async def test_a_line_of_a_ledger_moves_the_cursor_of_its_own_rank_alone():
    """Not that of ranks whose lines would never be shown then."""
    data = [[True, "out", "a", "3"], [0, "out", "b", "1;5=9"]]

    lines = await calls.read_lines("", data, rank=None, ranks=8)

    assert [(line.rank, str(line.cursor)) for line in lines] == [(0, "0=159")]


def test_a_job_has_one_holder_until_it_is_silent(tmp_path):
    """After that another takes it, and the first is told so."""
    now = [1000.0]
    holds = Holds(tmp_path, clock=lambda: now[0])
    holds.beat("one", {})
    holds.take("digits", "one", "ada")
    with pytest.raises(HeldError):
        holds.take("digits", "two", "bob")
    now[0] += SILENT + 1
    assert holds.expired() == ("digits",)
    holds.take("digits", "two", "bob")

    with pytest.raises(HeldError, match="bob"):
        holds.check("digits", "one")
    holds.release("digits", "one")
    holds.check("digits", "two")


def test_after_a_restart_a_new_supervisor_waits_for_the_old_one(tmp_path):
    """Who held a job before the ledger was lost claims it again with the next beat."""
    now = [1000.0]
    earlier = Holds(tmp_path)
    earlier.beat("one", {"digits": "ada"})
    earlier.write("one")
    holds = Holds(tmp_path, clock=lambda: now[0])
    with pytest.raises(HeldError):
        holds.take("digits", "two", "bob")
    holds.beat("one", {"digits": "ada"})
    now[0] += SILENT - 1
    holds.beat("one", {"digits": "ada"})
    now[0] += 2
    with pytest.raises(HeldError, match="ada"):
        holds.take("digits", "two", "bob")


def test_a_heartbeat_changes_with_each_beat(tmp_path):
    """Coordinators read its file; a supervisor that leaves takes it away."""
    holds = Holds(tmp_path)
    holds.beat("one", {})
    path = holds.write("one")
    first = path.read_text()
    holds.write("one")
    assert path.read_text() != first
    assert holds.pulse(Holder(id="one", name="ada")) is not None
    holds.beat("one", {}, leave=True)
    holds.write("one")
    assert holds.pulse(Holder(id="one", name="ada")) is None


def test_beats_of_one_supervisor_may_come_at_once(tmp_path):
    """Two of them wrote the same temporary file, and one was refused."""
    holds = Holds(tmp_path)
    holds.beat("one", {})
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(holds.write, ["one"] * 200))

    assert set(written) == {tmp_path / "supervisors/one.json"}
    assert json.loads(written[0].read_text())["counter"] == 200


async def test_a_supervisor_of_many_jobs_beats_once_until_it_leaves():
    """Each of the jobs that came at once had a heartbeat of its own, and all but the last beat for ever."""
    beats: list[bool] = []

    async def beat(me: str, jobs: dict[str, str], leave: bool) -> str:
        await asyncio.sleep(0.01)
        beats.append(leave)
        return f"{me}.json"

    before = asyncio.all_tasks()
    heart = Heart(beat)
    await asyncio.gather(*(heart.join("ada") for _ in range(10)))
    running = asyncio.all_tasks() - before
    await asyncio.gather(*(heart.leave() for _ in range(10)))

    assert [task.get_name() for task in running] == ["heartbeat"]
    assert asyncio.all_tasks() - before == set()
    assert beats == [False, True]


@pytest.mark.parametrize("name", ["../x", "a/b", "", "x" * 100])
def test_a_hostile_supervisor_id_names_no_other_file(tmp_path, name):
    """It is refused before any path is made of it."""
    holds = Holds(tmp_path)
    with pytest.raises(ValueError, match="is not allowed"):
        holds.beat(name, {})
    assert holds.pulse(Holder(id=name, name="x")) is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_packed_the_same_way_each_time(tmp_path):
    """Its name is that of its content; what is excluded is not in it."""
    for name in ("train.py", "data/big.bin", "__pycache__/x.pyc", ".git/config"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)

    name, content = package(str(tmp_path), ("data",))
    os.utime(tmp_path / "train.py", (1, 1))

    assert package(str(tmp_path), ("data",)) == (name, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == ["run.sh", "train.py"]
        assert archive.getinfo("run.sh").external_attr >> 16 & 0o111
    (tmp_path / "train.py").write_text("other")
    assert package(str(tmp_path), ("data",))[0] != name


def test_a_folder_that_is_not_there_is_an_error():
    """Before anything is sent."""
    with pytest.raises(SubmitError, match=r"runtime_env.working_dir: '/no/such' is not a folder"):
        package("/no/such")


# --- Others on the machine and in the cluster ------------------------------------------------------------------------------


def test_a_node_has_a_new_folder_that_nobody_could_create_before(tmp_path: Path) -> None:
    """Job, process and start time are known to each user of the machine, who could put a plan of their own into the folder."""
    me = os.getpid()
    spec = NodeSpec(name="digits", uid="0123", attempt=1, node=0, incarnation=1, host="127.0.0.1", machine="m", files={})
    guessed = tmp_path / f"rp-0123-0-1-1-{me}-{proc.start_ticks(me)}"
    guessed.mkdir(mode=0o777)

    one, other = (new_folder(tmp_path, spec, f"{me} {proc.start_ticks(me)}") for _ in range(2))

    assert len({guessed, one, other}) == 3
    assert [stat.S_IMODE(path.stat().st_mode) for path in (one, other)] == [0o700, 0o700]
    assert list(one.iterdir()) == []


def test_folders_of_actors_that_are_gone_are_removed(tmp_path: Path) -> None:
    """Those of processes that run stay."""
    me = os.getpid()
    spec = NodeSpec(name="digits", uid="0123", attempt=1, node=0, incarnation=1, host="127.0.0.1", machine="m", files={})
    mine = new_folder(tmp_path, spec, f"{me} {proc.start_ticks(me)}")
    gone = new_folder(tmp_path, spec, f"{me} 1")

    remove_stale(tmp_path)

    assert (mine.exists(), gone.exists()) == (True, False)


@pytest.mark.parametrize(
    "target", ["x" * 300, "kept", "missing", "rp-a-0-1-1-1-1-evil"], ids=["long", "folder", "nothing", "loop"]
)
def test_links_beside_the_folders_of_nodes_fail_no_start(tmp_path: Path, target: str) -> None:
    """Fails if the removal of old folders follows a link: every user of the machine can create one in the shared folder."""
    (tmp_path / "kept").mkdir()
    link = tmp_path / "rp-a-0-1-1-1-1-evil"
    link.symlink_to(target)
    spec = NodeSpec(name="digits", uid="0123", attempt=1, node=0, incarnation=1, host="127.0.0.1", machine="m", files={})
    gone = new_folder(tmp_path, spec, f"{os.getpid()} 1")

    remove_stale(tmp_path)

    assert (link.is_symlink(), (tmp_path / "kept").is_dir(), gone.exists()) == (True, True, False)


async def test_lines_of_ranks_that_were_not_requested_are_left_out() -> None:
    """Any program in the cluster can announce a ledger; lines of new ranks would make the cursor grow with each answer."""
    data = [[rank, "out", f"line of {rank}", "1.1.9.0"] for rank in (0, 1, 2, 10**30, -1)] + [["0", "out", "a text", "1.1.9.0"]]

    every = await calls.read_lines("", data, rank=None, ranks=2)
    one = await calls.read_lines("", data, rank=1, ranks=2)

    assert [(line.rank, str(line.cursor)) for line in every] == [(0, "0=1.1.9.0"), (1, "0=1.1.9.0;1=1.1.9.0")]
    assert [(line.rank, str(line.cursor)) for line in one] == [(1, "1=1.1.9.0")]


async def test_lines_and_the_end_of_a_log_as_the_ledger_sends_them() -> None:
    """Each line names the place of its own rank; the client forms the cursors from these."""
    cursors = Cursors({})
    lines = [LogLine(rank=n % 2, stream="out", text=str(n), cursor=cursors.move(n % 2, f"1.1.{n}.0")) for n in range(4)]
    tail = Tail(lines=(LogLine(rank=1, stream="err", text="x", cursor=""),), cursor="1=1.1.3.0")

    assert await calls.read_lines("", calls.lines_to(lines), rank=None, ranks=2) == lines
    assert await calls.read_tail(calls.tail_to(tail)) == tail


@pytest.mark.parametrize("history", [pytest.param(["x" * 7000] * 1300, id="bytes"), pytest.param([0] * 140_000, id="values")])
async def test_a_record_of_a_ledger_has_the_limits_of_other_records(history: list[object]) -> None:
    """A supervisor reads and writes it at each turn, on behalf of all jobs of the process."""
    record = JobRecord.new(name="digits", uid="u", digest="d", owner="ann", now=1.0)
    data = {"record": {**json.loads(record.to_json()), "history": history}, "plan": {}, "version": "1"}

    with pytest.raises(BackendError, match=r"the job record in the response of the ledger has more than "):
        await calls.read_stored(data, name="digits")
    assert await calls.write_record(record) == json.loads(record.to_json())
