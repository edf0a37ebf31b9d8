from __future__ import annotations

import sys

import pytest
import torch

from rallypoint.checkpoint.errors import CheckpointError
from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.checkpoint.memory import everything
from rallypoint.checkpoint.persist import is_snapshot
from rallypoint.training import Checkpoints, Snapshots, weights_digest
from rallypoint.wire import env
from tests.training.states import make, spoil, step


def test_what_is_persisted_is_loaded_when_the_memory_is_gone(snapshots, node, tmp_path):
    """In the background, each second step, with the newest two kept and every fourth."""
    state = make()
    storage = tmp_path / "storage"
    before = snapshots(state, storage=storage, persist_every=2, keep=2, keep_every=4)
    before.load()
    digests = {}
    for number in range(1, 11):
        step(state)
        before.save(number)
        before.wait()
        digests[number] = weights_digest(state["model"])
    for one in everything(node):
        one.path.with_suffix(".json").unlink()

    assert [path.name[5:17] for path in sorted(storage.iterdir())] == [f"{n:012d}" for n in (4, 8, 10)]
    fresh = make(seed=9)
    assert snapshots(fresh, storage=storage).load() == 10
    assert weights_digest(fresh["model"]) == digests[10]


def test_a_damaged_one_in_storage_is_passed_over(snapshots, node, tmp_path):
    """A bit that flips in a large file is found, too."""
    state = {"x": torch.rand(1 << 20)}
    before = snapshots(state, storage=tmp_path / "storage", persist_every=1)
    for number in (1, 2):
        before.save(number)
        before.wait()
    for one in everything(node):
        one.path.with_suffix(".json").unlink()
    newest = max((tmp_path / "storage").iterdir())
    spoil(newest / "rank-00000.part", 1 << 21)

    assert snapshots(state, storage=tmp_path / "storage").load() == 1


def test_the_helpers_checkpoints_and_persisted_snapshots_are_one_series(snapshots, node, tmp_path, monkeypatch):
    """They lie in one folder in one order, and either reads the other's."""
    state = make()
    step(state)
    checkpoints = Checkpoints(tmp_path / "storage")
    checkpoints.save(1, state)
    step(state)
    before = snapshots(state, storage=tmp_path / "storage", persist_every=2)
    before.save(2)
    before.wait()
    digest = weights_digest(state["model"])
    monkeypatch.delenv(env.SNAPSHOT_DIR)

    fresh = make(seed=9)
    assert Checkpoints(tmp_path / "storage").load(fresh) == 2
    assert weights_digest(fresh["model"]) == digest
    monkeypatch.setenv(env.SNAPSHOT_DIR, str(node))
    monkeypatch.setenv(env.ROUND, "2")
    step(state)
    checkpoints.save(3, state)
    assert snapshots(fresh, storage=tmp_path / "storage").load() == 3


def test_any_url_of_fsspec_will_do(snapshots, node):
    """An object store has no renaming: the manifest is what makes a checkpoint complete."""
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("memory")
    state = make()
    before = snapshots(state, storage="memory://bucket/run", persist_every=1, keep=2)
    before.load()
    for number in (1, 2, 3):
        step(state)
        before.save(number)
        before.wait()
    digest = weights_digest(state["model"])
    for one in everything(node):
        one.path.with_suffix(".json").unlink()
    newest = max(fs.ls("/bucket/run", detail=False))
    assert len(fs.ls("/bucket/run", detail=False)) == 2

    fresh = make(seed=9)
    assert snapshots(fresh, storage="memory://bucket/run").load() == 3
    assert weights_digest(fresh["model"]) == digest
    fs.rm_file(f"{newest}/manifest.json")
    assert snapshots(fresh, storage="memory://bucket/run").load() == 2
    fs.rm("/bucket", recursive=True)


def test_without_fsspec_a_url_is_refused(node, monkeypatch):
    """In one sentence that names what is missing."""
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(CheckpointError, match=r"storage s3://b/k: requires the package fsspec"):
        Snapshots({}, storage="s3://b/k")


def test_steps_that_are_reported_are_kept_without_a_line(node, tmp_path, monkeypatch):
    """With save_at_breakpoint the checkpoint helper takes a snapshot at each reported step, and takes it up again."""
    from rallypoint.training import report_progress
    from rallypoint.training.reporting import follow_steps

    monkeypatch.setenv(env.SAVE_AT_BREAKPOINT, "1")
    state = make()
    checkpoints = Checkpoints(tmp_path / "storage")
    assert checkpoints.load(state) is None
    for number in range(1, 8):
        step(state)
        report_progress(number)
        if number == 5:
            checkpoints.save(number, state)
    assert checkpoints._steps._snapshots is not None
    checkpoints._steps._snapshots.wait()
    digest = weights_digest(state["model"])
    monkeypatch.setenv(env.ROUND, "2")
    follow_steps(None)

    fresh = make(seed=9)
    successor = Checkpoints(tmp_path / "storage")
    assert successor.load(fresh) == 7
    assert weights_digest(fresh["model"]) == digest
    for one in (checkpoints, successor):
        assert one._steps._snapshots is not None
        one._steps._snapshots.close()
    follow_steps(None)


def test_a_state_of_plain_values_is_not_followed(node, tmp_path, monkeypatch, caplog):
    """What the script would replace by the next save cannot be read in between."""
    monkeypatch.setenv(env.SAVE_AT_BREAKPOINT, "1")
    checkpoints = Checkpoints(tmp_path / "storage")
    checkpoints.load({**make(), "epoch": 3})

    assert checkpoints._steps._snapshots is None
    assert "epoch" in caplog.text


def test_a_checkpoint_that_is_newer_than_the_memory_wins(snapshots, node, tmp_path, monkeypatch):
    """Memory is believed where it is at least as new, and by the helper where the job wants that."""
    state = make()
    memory = snapshots(state, storage=tmp_path)
    memory.load()
    memory.save(4)
    memory.wait()
    Checkpoints(tmp_path).save(6, state)

    assert snapshots(make(), storage=tmp_path).load() == 6
    memory.save(6)
    memory.wait()
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints._steps.load(make(), lambda: None) is None
    monkeypatch.setenv(env.SAVE_AT_BREAKPOINT, "1")
    assert checkpoints._steps.load(make(), lambda: None) == 6
    assert all(not is_snapshot(m) for m in FolderStore(tmp_path).complete())
