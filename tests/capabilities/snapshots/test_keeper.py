from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from rallypoint.capabilities.snapshots.keeper import SnapshotKeeper
from rallypoint.checkpoint.errors import NoRoomError
from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.checkpoint.memory import Held, Part, area_of, everything, held
from rallypoint.checkpoint.owned import new_name, own_folder
from rallypoint.checkpoint.persist import Destination, Retention, persist, write_destination
from rallypoint.wire import codec, env
from rallypoint.wire.fence import Fence
from rallypoint.wire.plan import ElasticMode, Entry, Plan
from rallypoint.wire.sections import build
from tests.waiting import eventually_async

BLOCKS = pytest.mark.may_block("the test itself leaves files and looks at them")

FENCE = Fence(attempt=1, term=1, round=1)


def plan(**fields):
    known = {"name": "job", "role": "trainer", "min_nodes": 1, "max_nodes": 1, "entry": Entry.SCRIPT, "entrypoint": "x.py"}
    return build(Plan, **{**known, **fields})


def leave(folder: Path, step: int, *, rank: int = 0, world_size: int = 1, size: int = 8192) -> Held:
    """Leave a snapshot as a worker does, which needs no torch to be carried about."""
    area = area_of(folder, rank)
    area.mkdir(parents=True, exist_ok=True)
    path = area / f"{step}.bin"
    path.write_bytes(bytes([step]) * size)
    part = Part(
        job="ab12",
        granted=FENCE,
        step=step,
        rank=rank,
        world_size=world_size,
        whole=world_size == 1,
        torch="2.13.0",
        size=size,
        digest="not looked at here",
        values_at=0,
        values_size=0,
        tensors=(),
    )
    path.with_suffix(".json").write_text(codec.dumps(part))
    return held(area)[0]


def content(path: Path) -> bytes:
    return path.read_bytes()


@pytest.fixture
def keepers(tmp_path, monkeypatch):
    """Make keepers whose memory is a folder of the test."""
    monkeypatch.setattr("rallypoint.capabilities.snapshots.keeper.shared_memory", lambda _: tmp_path / "shm")

    async def begun(*, patience=60.0, **fields):
        keeper = SnapshotKeeper(plan(**fields), tmp_path, patience=patience)
        await keeper.begin()
        return keeper

    return begun


@BLOCKS
async def test_the_last_snapshot_is_persisted_where_the_job_says(keepers, tmp_path):
    """It has a name, a manifest and a place in the order like every checkpoint; the folder in memory goes with the agent."""
    keeper = await keepers(save_at_breakpoint=True, checkpoint_dir=str(tmp_path / "storage"))
    told = keeper.environment()
    memory = Path(told[env.SNAPSHOT_DIR])
    leave(memory, 6)
    leave(memory, 7)
    keeper.breakpoint()
    await keeper.close()

    (manifest,) = FolderStore(tmp_path / "storage").complete()
    assert (manifest.step, manifest.job, manifest.granted, manifest.world_size) == (7, "ab12", FENCE, 1)
    checkpoint = FolderStore(tmp_path / "storage").named()[0]
    data = checkpoint.path / "rank-00000.part"
    assert content(data) == b"\7" * 8192
    assert told[env.SAVE_AT_BREAKPOINT] == "1"
    assert not memory.exists()  # noqa: ASYNC240


@BLOCKS
async def test_what_the_script_says_wins(keepers, tmp_path):
    """A script may have its own storage."""
    keeper = await keepers(save_at_breakpoint=True, checkpoint_dir=str(tmp_path / "storage"))
    memory = Path(keeper.environment()[env.SNAPSHOT_DIR])
    leave(memory, 7)
    write_destination(memory, Destination(where=str(tmp_path / "own")))
    keeper.breakpoint()
    await keeper.close()

    assert (len(FolderStore(tmp_path / "own").complete()), (tmp_path / "storage").exists()) == (1, False)


@BLOCKS
async def test_a_snapshot_is_persisted_once(keepers, tmp_path, caplog):
    """Two workers that die together are two breakpoints, and one checkpoint."""
    caplog.set_level(logging.INFO)
    keeper = await keepers(save_at_breakpoint=True, checkpoint_dir=str(tmp_path / "storage"))
    leave(Path(keeper.environment()[env.SNAPSHOT_DIR]), 7)
    for _ in range(3):
        keeper.breakpoint()
    await eventually_async(lambda: not keeper._again and keeper._idle.is_set())
    await keeper.close()

    assert caplog.text.count("stored the last snapshot") == 1
    assert len(list((tmp_path / "storage").iterdir())) == 1


@BLOCKS
async def test_without_the_wish_nothing_is_persisted(keepers, tmp_path):
    """And workers are told so; their snapshots are in memory all the same."""
    keeper = await keepers(checkpoint_dir=str(tmp_path / "storage"))
    assert list(keeper.environment()) == [env.SNAPSHOT_DIR]
    leave(Path(keeper.environment()[env.SNAPSHOT_DIR]), 7)
    keeper.breakpoint()
    await keeper.close()

    assert not (tmp_path / "storage").exists()


@BLOCKS
async def test_nowhere_to_go_is_said(keepers, caplog):
    """It is no silent loss."""
    keeper = await keepers(save_at_breakpoint=True)
    leave(Path(keeper.environment()[env.SNAPSHOT_DIR]), 7)
    keeper.breakpoint()
    await keeper.close()

    assert "neither the script nor the job sets a checkpoint folder" in caplog.text


@BLOCKS
async def test_a_storage_that_cannot_be_written_is_said(keepers, tmp_path, caplog):
    """And the agent goes on."""
    (tmp_path / "file").touch()
    keeper = await keepers(save_at_breakpoint=True, checkpoint_dir=str(tmp_path / "file"))
    leave(Path(keeper.environment()[env.SNAPSHOT_DIR]), 7)
    keeper.breakpoint()
    await keeper.close()

    assert "cannot write the last in-memory snapshot to storage" in caplog.text


@BLOCKS
async def test_with_ucp_the_next_round_waits_for_all_parts(keepers, tmp_path):
    """Those of another node, too."""
    storage = tmp_path / "storage"
    keeper = await keepers(elastic_mode=ElasticMode.UCP, checkpoint_dir=str(storage))
    memory, other = Path(keeper.environment()[env.SNAPSHOT_DIR]), tmp_path / "other"
    leave(memory, 7, rank=0, world_size=2)
    keeper.breakpoint()
    waiting = asyncio.create_task(keeper.settled())
    await eventually_async(keeper._idle.is_set)
    assert not waiting.done()

    done = persist([leave(other, 7, rank=1, world_size=2)], FolderStore(storage), Retention())
    await waiting
    assert done is not None
    assert done.complete
    await keeper.close()


@BLOCKS
async def test_with_ucp_patience_ends(keepers, tmp_path, caplog):
    """A node that will never write its part must not keep the others for ever."""
    keeper = await keepers(patience=0.2, elastic_mode=ElasticMode.UCP, checkpoint_dir=str(tmp_path / "storage"))
    leave(Path(keeper.environment()[env.SNAPSHOT_DIR]), 7, world_size=2)
    keeper.breakpoint()
    await keeper.settled()
    await keeper.close()

    assert "the next round starts before the snapshot is stored" in caplog.text


def test_a_full_disk_is_told_in_bytes(tmp_path, monkeypatch):
    """Room is looked at before anything is written, and nothing is left behind."""
    one = leave(tmp_path / "memory", 7)
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("rallypoint.checkpoint.folder_store.shutil.disk_usage", lambda _: usage)
    with pytest.raises(NoRoomError, match="8,192 bytes: 1,000 free, 7,192 missing"):
        persist([one], FolderStore(tmp_path / "storage"), Retention())

    assert FolderStore(tmp_path / "storage").complete() == []


def test_a_torn_draft_is_nobodys(tmp_path):
    """What a persisting left that was killed is no checkpoint, and goes with the next one that is complete."""
    storage = tmp_path / "storage"
    store = FolderStore(storage)
    name = f"step-{6:012d}-{FENCE}"
    store.begin(f"{name}+0", 10)
    (storage / f"{name}+0.saving" / "rank-00000.part").write_bytes(b"half")
    assert (store.complete(), store.named()) == ([], [])

    persist([leave(tmp_path / "memory", 7)], store, Retention())
    assert [path.name for path in storage.iterdir()] == [f"step-{7:012d}-{FENCE}"]


def test_an_overwritten_snapshot_is_passed_over_for_the_one_before(tmp_path):
    """Between the look and the lock a writer may have taken the buffer."""
    memory = tmp_path / "memory"
    leave(memory, 6)
    leave(memory, 7)
    found = everything(memory)
    found[0].path.with_suffix(".json").unlink()
    done = persist(found, FolderStore(tmp_path / "storage"), Retention())

    assert done is not None
    assert done.step == 6


def test_what_a_killed_owner_left_goes_with_the_next(tmp_path):
    """The kernel has let go of its lock; a folder whose owner lives is left alone."""
    living, dead = own_folder(tmp_path / new_name()), own_folder(tmp_path / new_name())
    os.close(dead.lock)
    (dead.path / "rank-0").mkdir()
    another = own_folder(tmp_path / new_name())

    assert (living.path.exists(), dead.path.exists(), another.path.exists()) == (True, False, True)
    for folder in (living, another):
        folder.remove()
    assert list(tmp_path.iterdir()) == []
