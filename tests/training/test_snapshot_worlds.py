"""Snapshots of worlds of several ranks: sharded ones, worlds of another size, ranks whose memory is gone.

A start costs more than all that is tested: one world of three ranks writes, and one of two goes through everything else.
"""

from __future__ import annotations

import pytest

from rallypoint.checkpoint.folder_store import FolderStore
from rallypoint.checkpoint.memory import everything
from rallypoint.checkpoint.persist import Retention, persist
from tests.training.worlds import run_world

COMMON = """
import os, sys
from pathlib import Path
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from rallypoint.checkpoint.memory import everything
from rallypoint.training import Snapshots, process_group

base, rank = Path(sys.argv[1]), int(os.environ["RANK"])
expected = torch.arange(24.0).view(6, 4)

def at(folder):
    Path(folder).mkdir(parents=True, exist_ok=True)
    os.environ["RALLYPOINT_SNAPSHOT_DIR"] = str(folder)

def fresh(sharded, value):
    weight = value.clone()
    if sharded:
        weight = distribute_tensor(weight, init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])
    return {"weight": weight, "count": torch.tensor(0)}

def save(sharded, steps, **options):
    state = fresh(sharded, expected)
    snapshots = Snapshots(state, **options)
    assert snapshots.load() is None
    for step in range(1, steps + 1):
        state["count"].fill_(step)
        snapshots.save(step)
        snapshots.wait()
        dist.barrier()
    snapshots.close()

def load(sharded, **options):
    state = fresh(sharded, torch.zeros(6, 4))
    snapshots = Snapshots(state, **options)
    step = snapshots.load()
    snapshots.close()
    weight = state["weight"].full_tensor() if sharded else state["weight"]
    assert step == state["count"].item() and torch.equal(weight, expected), (step, state)
    return step

def on_rank_0(change, *args):
    dist.barrier()
    if rank == 0:
        change(*args)
    dist.barrier()

def lose(folder, step, of):
    for one in everything(folder):
        if (one.part.step, one.part.rank) == (step, of):
            one.path.with_suffix(".json").unlink()

def spoil(folder, step):
    for one in everything(folder):
        if one.part.step == step:
            with one.path.open("r+b") as file:
                file.write(b"?")
"""

WRITES = """
with process_group(backend="gloo"):
    at(base / "three")
    save(True, 3)
    at(base / "parts")
    save(True, 1)
"""

READS = """
import shutil
said = []
with process_group(backend="gloo"):
    at(base / "three")
    said.append(load(True))                                             # three ranks wrote it, and two read it

    at(base / "nodes" / str(rank))                                      # two nodes with a rank each
    save(False, 3)
    on_rank_0(shutil.rmtree, base / "nodes" / "0" / "rank-0")
    said.append(load(False))                                            # a replaced node is given the state
    on_rank_0(spoil, base / "nodes" / "1", 3)
    said.append(load(False))                                            # the only copy is damaged: the one before

    at(base / "swapped" / str(rank))
    save(True, 3)
    on_rank_0(lambda: None)
    at(base / "swapped" / str(1 - rank))
    said.append(load(True))                                             # each node holds the other's shard

    storage = base / "storage"
    at(base / "two")
    save(True, 3, storage=storage, persist_every=2)
    on_rank_0(lose, base / "two", 3, 1)
    said.append(load(True))                                             # a shard is missing: the one before
    on_rank_0(shutil.rmtree, base / "two" / "rank-0")
    said.append(load(True, storage=storage))                            # not even that: the last that was persisted
print(said)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What a world of three ranks left."""
    folder = tmp_path_factory.mktemp("worlds")
    run_world(3, COMMON + WRITES, folder)
    return folder


@pytest.mark.extended
def test_a_world_of_two_takes_up_what_there_is(written):
    """Resharded, fetched from another node, passed over where a part is missing or damaged, from storage at last."""
    outputs = run_world(2, COMMON + READS, written)

    assert [output.splitlines()[-1] for output in outputs] == ["[3, 3, 2, 3, 2, 2]"] * 2, outputs


def test_nodes_persist_their_parts_and_the_last_completes(written, tmp_path):
    """Without anybody who leads: some parts alone are no checkpoint."""
    store, found = FolderStore(tmp_path), everything(written / "parts")
    first = persist([one for one in found if one.part.rank], store, Retention())
    assert first is not None
    assert (first.complete, store.complete()) == (False, [])

    second = persist([one for one in found if not one.part.rank], store, Retention())
    assert second is not None
    assert (second.complete, [m.step for m in store.complete()]) == (True, [1])
    assert [path.name for path in tmp_path.iterdir()] == [second.checkpoint]
