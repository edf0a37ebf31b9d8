"""The copy of the ledger's jobs at a URL, without a cluster."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rallypoint.backends.contract import BackendError
from rallypoint.backends.local.store import Store
from rallypoint.backends.ray.cluster.mirror import Mirror, is_url
from rallypoint.backends.ray.placement import FILE, draw
from rallypoint.backends.ray.roles import draw_roles
from rallypoint.job import load_job


@pytest.fixture
def url(tmp_path: Path) -> str:
    pytest.importorskip("fsspec")
    return f"file://{tmp_path}/bucket/ray"


def submitted(store: Store, name: str = "digits") -> Store:
    job = load_job({"name": name, "entrypoint": "train.py", "nodes": "1:2"}, based=False)
    store.create(draw(job, namespace="team", runtime_env={}), owner="ada", now=1.0)
    return store


def saved(store: Store, *, attempt: int, name: str = "digits") -> None:
    stored = store.load(name)
    assert stored is not None
    store.save(dataclasses.replace(stored.record, attempt=attempt), version=stored.version, blueprint=None)


def test_another_machine_takes_over_all_jobs(tmp_path: Path, url: str) -> None:
    """With record, plan, placement and secret, and with where each node was placed."""
    first = submitted(Store(home=tmp_path / "first"))
    mirror = Mirror(url)
    mirror.open(first)
    placed = first.job("digits").path / "nodes" / "0" / "attempt-1.1" / "placed.json"
    placed.parent.mkdir(parents=True)
    placed.write_text("{}")
    (placed.parent / "agent.log").write_text("much")
    saved(first, attempt=3)
    mirror.keep(first.job("digits"))

    second = Store(home=tmp_path / "second")
    Mirror(url).open(second)

    there, here = second.load("digits"), first.load("digits")
    assert there == here
    assert there is not None
    assert there.record.attempt == 3
    for name in ("secret", FILE, "nodes/0/attempt-1.1/placed.json"):
        assert (second.job("digits").path / name).read_text() == (first.job("digits").path / name).read_text()
    assert not (second.job("digits").path / "nodes/0/attempt-1.1/agent.log").exists()
    assert (second.job("digits").path).stat().st_mode & 0o77 == 0


def test_another_machine_takes_over_a_job_with_roles(tmp_path: Path, url: str) -> None:
    """With the jobs of its elastic roles, and with where each host is and how its instances ended."""
    first = Store(home=tmp_path / "first")
    roles = {"trainer": {"entrypoint": "t.py"}, "judge": {"launch": "simple", "entrypoint": "j.py"}}
    job = load_job({"name": "rl", "roles": roles}, based=False)
    first.create(draw_roles(job, namespace="team", runtime_env={}), owner="ada", now=1.0)
    folder = first.job("rl")
    child = Store(home=folder.path)
    child.create(
        draw(load_job({"name": "rl-trainer", "entrypoint": "t.py"}, based=False), namespace="team", runtime_env={}),
        owner="rl/1.0.1",
        now=1.0,
    )
    life = folder.host("judge-0", 1).path / "units" / "judge-0" / "1.0.1"
    life.mkdir(parents=True)
    for path in (life / "start.json", life / "exit.json", life.parents[2] / "placed.json"):
        path.write_text("{}")
    (life / "rank-0.out").write_text("much")
    mirror = Mirror(url)
    mirror.open(first)
    mirror.keep(folder)

    second = Store(home=tmp_path / "second")
    Mirror(url).open(second)

    there = second.job("rl")
    assert second.load("rl") == first.load("rl")
    assert Store(home=there.path).load("rl-trainer") == child.load("rl-trainer")
    found = sorted(str(path.relative_to(there.path)) for path in there.path.glob("hosts/**/*") if path.is_file())
    host = "hosts/judge-0/host-1"
    assert found == [f"{host}/placed.json", f"{host}/units/judge-0/1.0.1/exit.json", f"{host}/units/judge-0/1.0.1/start.json"]


def test_what_is_at_the_url_counts(tmp_path: Path, url: str) -> None:
    """A machine that comes back has older records, and jobs that were deleted meanwhile."""
    old = submitted(submitted(Store(home=tmp_path / "old")), "gone")
    Mirror(url).open(old)
    new = Store(home=tmp_path / "new")
    mirror = Mirror(url)
    mirror.open(new)
    saved(new, attempt=7)
    mirror.keep(new.job("digits"))
    gone = new.load("gone")
    assert gone is not None
    new.purge(gone.record)
    mirror.keep(new.job("gone"))

    Mirror(url).open(old)

    assert old.names() == ("digits",)
    stored = old.load("digits")
    assert stored is not None
    assert stored.record.attempt == 7


def test_a_ledger_that_had_jobs_before_brings_them(tmp_path: Path, url: str) -> None:
    """The first opening of a URL deletes nothing."""
    store = submitted(Store(home=tmp_path / "home"))
    Mirror(url).open(store)
    Mirror(url).open(store)

    assert store.names() == ("digits",)


def test_files_of_others_at_the_url_are_left_out(tmp_path: Path, url: str) -> None:
    """No name leads out of the folder of its job, and a folder without a record is no job."""
    Mirror(url).open(submitted(Store(home=tmp_path / "first")))
    jobs = Path(url.removeprefix("file://")) / "jobs"
    (jobs / "digits" / ".hidden").write_text("x")
    (jobs / "half").mkdir()
    (jobs / "half" / "plan.json").write_text("{}")

    second = Store(home=tmp_path / "second")
    Mirror(url).open(second)

    assert second.names() == ("digits",)
    assert not (second.job("digits").path / ".hidden").exists()
    assert not second.job("half").path.exists()


def test_a_url_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A change that is not there is not answered as done."""
    pytest.importorskip("fsspec")
    (tmp_path / "file").write_text("no folder")
    store = submitted(Store(home=tmp_path / "home"))

    with pytest.raises(BackendError, match="storage file://"):
        Mirror(f"file://{tmp_path}/file/ray").open(store)
    with pytest.raises(BackendError, match="storage nowhere://x"):
        Mirror("nowhere://x")


@pytest.mark.parametrize(("storage", "expected"), [("s3://b/x", True), ("file:///x", True), ("/x", False), ("", False)])
def test_a_url_is_no_folder(storage: str, expected: bool) -> None:
    """By its scheme."""
    assert is_url(storage) is expected
