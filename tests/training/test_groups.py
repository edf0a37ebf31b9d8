from __future__ import annotations

import pytest
import torch
from torch import distributed as dist

from rallypoint.training import World, process_group
from rallypoint.wire.codec import WireError
from tests.training.worlds import run_world


def test_alone_a_process_is_a_world():
    """Without an environment a process is rank 0 of 1, and its collectives work."""
    with process_group("gloo", timeout=600) as world:
        value = torch.ones(1)
        dist.all_reduce(value)

    assert world == World(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))
    assert not dist.is_initialized()


def test_the_blocks_own_exception_is_told():
    """An exception of the block comes out as it is, and the group is gone."""
    with pytest.raises(ZeroDivisionError), process_group("gloo"):
        _ = 1 / 0

    assert not dist.is_initialized()


def test_the_block_may_end_the_group_itself():
    """A script that destroys the group before the end of the block does no harm."""
    with process_group("gloo"):
        dist.destroy_process_group()

    assert not dist.is_initialized()


def test_a_wrong_environment_is_named(monkeypatch):
    """A variable that is no number is an error that names it."""
    monkeypatch.setenv("LOCAL_RANK", "one")
    with pytest.raises(WireError, match="environment variable LOCAL_RANK: 'one'"), process_group("gloo"):
        pass


# One world for all of this: starting processes is what takes the time.
WORLD = """
import random, sys
import torch
from torch import distributed as dist, nn
from torch.nn.parallel import DistributedDataParallel
from rallypoint.training import CheckpointError, Checkpoints, average_in_rank_order, process_group, weights_digest

folder = sys.argv[1]
with process_group("gloo", timeout=600) as world:
    torch.manual_seed(world.rank)  # DDP makes the weights equal; the random states stay apart
    model = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    average_in_rank_order(model)
    share = torch.tensor([0.1, 0.7, 1e8])[world.rank] * torch.ones(1, 3)
    model(share).sum().backward()
    gradient = model.module.weight.grad[0, 0].item()
    optimizer.step()

    checkpoints = Checkpoints(folder)
    state = {"model": model, "optimizer": optimizer, "epoch": 1}
    checkpoints.save(1, state)
    drawn, digest = torch.rand(1).item(), weights_digest(model)
    with torch.no_grad():
        model.module.weight.zero_()
    loaded = checkpoints.load(state)
    same = (weights_digest(model), torch.rand(1).item()) == (digest, drawn)

    refused = ""
    try:  # only rank 0 looks at the folder, but every rank is told
        Checkpoints("/dev/null").save(1, state)
    except CheckpointError as error:
        refused = str(error)
    print(world.rank, loaded, same, gradient, "/dev/null" in refused, digest)
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """What three ranks printed, and the folder that they saved to."""
    folder = tmp_path_factory.mktemp("world")
    return [output.split() for output in run_world(3, WORLD, folder)], folder


def test_ranks_save_and_load_together(world):
    """Every rank has its weights and its own random numbers again."""
    lines, _ = world

    assert [line[:3] for line in lines] == [["0", "1", "True"], ["1", "1", "True"], ["2", "1", "True"]]


def test_gradients_are_added_in_the_order_of_ranks(world):
    """The average is that of rank 0 plus rank 1 plus rank 2, bit for bit, on every rank."""
    lines, _ = world
    parts = torch.tensor([0.1, 0.7, 1e8])
    expected = ((parts[0] + parts[1] + parts[2]) / 3).item()

    assert [float(line[3]) for line in lines] == [expected] * 3


def test_an_error_of_rank_0_is_everyones(world):
    """Where rank 0 cannot write, every rank raises, so none waits for the others."""
    lines, _ = world

    assert [line[4] for line in lines] == ["True"] * 3


def test_a_world_of_another_size_takes_up_the_weights(world):
    """What three ranks under DDP wrote, one process without DDP reads; its random state stays its own."""
    from rallypoint.training import Checkpoints, weights_digest

    lines, folder = world
    model = torch.nn.Linear(3, 2)
    torch.manual_seed(5)
    expected = torch.rand(1).item()
    torch.manual_seed(5)

    assert Checkpoints(folder).load({"model": model}) == 1
    assert weights_digest(model) == lines[0][5]
    assert torch.rand(1).item() == expected
