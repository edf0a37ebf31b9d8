"""The outer group and what is inside of it: a rehearsal for who is not in its world yet, and connections that can be ended."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, but torch lists it by dir()

from rallypoint.training.reconfigurable import ReconfigurableGroup, form
from rallypoint.training.sockets import Opened
from tests.training.worlds import run_world

REHEARSAL = """
import torch
from torch import distributed as dist, nn
from rallypoint.training.reconfigurable import register
from rallypoint.training.reconfigurable import Rehearsal

register(lambda store, rank, size: Rehearsal(rank, size, [torch.device("cpu")]))
dist.init_process_group("rallypoint", store=dist.HashStore(), rank=2, world_size=3)
assert (dist.get_rank(), dist.get_world_size()) == (2, 3)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
before = [p.clone() for p in model.parameters()]
model(torch.ones(1, 4)).sum().backward()
told = [torch.empty(2) for _ in range(3)]
dist.all_gather(told, torch.tensor([5.0, 6.0]))
assert [t.tolist() for t in told] == [[5.0, 6.0]] * 3
dist.barrier()
assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
try:
    dist.scatter(torch.empty(1), src=0)
except RuntimeError as error:
    assert "move the call into the function given to training.elastic" in str(error), error
else:
    raise AssertionError("nobody is there to scatter")
print("rehearsed")
"""

SWAPPED = """
import copy
import os
from datetime import timedelta
import torch
from torch import distributed as dist, nn
from torch.distributed.distributed_c10d import PrefixStore
from rallypoint.training.reconfigurable import form, register
from rallypoint.training.sockets import Opened
from rallypoint.training.wrappers import refit

opened = Opened()
limit = timedelta(minutes=10)
register(lambda store, rank, size: form("gloo", store, rank, size, limit, opened))
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group("rallypoint", store=store, rank=rank, world_size=size)
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))


def gradients():
    model.zero_grad()
    model(torch.full((1, 4), 1.0 + rank)).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


told = [gradients() for _ in range(3)][-1]
group = dist.group.WORLD
if rank == 1:  # one that has just started, beside one that has laid out its buckets
    model = nn.parallel.DistributedDataParallel(model.module)
else:
    nn.parallel.DistributedDataParallel(copy.deepcopy(model.module))  # the other half of its constructor
opened.shut_down()  # there may be none left: the other rank has done so, too
try:
    dist.barrier()
except RuntimeError as error:
    print("freed")
group.replace(rank, size, form("gloo", PrefixStore("again", store), rank, size, limit, opened))
refit(model.modules())
for _ in range(3):
    assert all(torch.equal(a, b) for a, b in zip(told, gradients(), strict=True))
dist.destroy_process_group()
print("swapped")
"""


def test_who_is_not_in_its_world_yet_can_wrap_its_model() -> None:
    """Alone: every collective ends at once with what it would give if all had the same; what cannot be so says why."""
    [output] = run_world(1, REHEARSAL)
    assert output == "rehearsed\n"


@pytest.mark.extended
def test_a_wrapper_lives_on_in_another_group() -> None:
    """Its connections are ended under it; in the next it adds up the same gradients, also beside a reducer that is new."""
    for output in run_world(2, SWAPPED):
        assert output == "freed\nswapped\n"


class _Work(dist.Work):
    """Work that has ended when it is said so."""

    ended = False

    def is_completed(self) -> bool:
        return self.ended


class _Inner:
    """A group that hands out the work that it is given."""

    def __init__(self, work: dist.Work, *devices: str) -> None:
        self._work, self._device_types = work, [torch.device(name) for name in devices]

    def allreduce(self, *_: object) -> dist.Work:
        return self._work

    barrier = recv = allreduce


def test_a_collective_of_gloo_is_known_until_it_has_ended() -> None:
    """What waits for one peer is not, and what NCCL does may not be asked for; the next collective forgets what has ended."""
    work, cpu, gpu = _Work(), torch.ones(1), torch.ones(1, device="meta")
    group = ReconfigurableGroup(0, 2, _Inner(work, "cpu", "cuda"))
    assert not group.stuck()
    for call in (lambda: group.recv([cpu], 1, 0), lambda: group.allreduce([gpu], None), lambda: group.barrier(None)):
        call()
        assert not group.stuck()
    group.allreduce([cpu], None)
    assert group.stuck()
    group.drop()
    assert group.stuck(), "it has left its world, and what it left there goes on"
    work.ended = True
    assert not group.stuck()

    group.replace(0, 2, _Inner(_Work(), "cpu"))
    group.barrier(None)
    assert group.stuck(), "a barrier of gloo alone"


def test_only_what_was_opened_meanwhile_is_ended() -> None:
    """And of that no socket that listens, and none that is no TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        before = socket.create_connection(address)
        opened = Opened()
        with opened.watching():
            ours = socket.create_connection(address)
            late = socket.create_server(("127.0.0.1", 0))
            pair = socket.socketpair()
        after = socket.create_connection(address)
        served = [listener.accept()[0] for _ in range(3)]

        assert opened.shut_down() == 1

        assert ours.recv(1) == b""
        for alive, other in ((before, served[0]), (after, served[2]), pair):
            other.sendall(b"x")
            assert alive.recv(1) == b"x"
        socket.create_connection(late.getsockname()).close()
        for one in (before, ours, late, after, *pair, *served):
            one.close()


def test_whoever_waits_while_a_group_forms_is_freed() -> None:
    """What was opened since the watch began counts, before it has ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        opened, waits, counted, heard = Opened(), threading.Event(), threading.Event(), []

        def wait() -> None:
            with opened.watching(), socket.create_connection(listener.getsockname()) as ours:
                waits.set()
                heard.append(ours.recv(1))
                assert counted.wait(60)

        thread = threading.Thread(target=wait)
        thread.start()
        peer = listener.accept()[0]
        assert waits.wait(60)
        # The peer's own end is of this process, too, and was opened meanwhile.
        assert opened.shut_down() == 2
        counted.set()
        thread.join(60)
        assert heard == [b""]
        peer.close()


@pytest.mark.parametrize("backend", ["mpi", "cpu:gloo,cuda:ucc"])
def test_a_backend_that_cannot_be_replaced_is_refused(backend: str) -> None:
    """By name."""
    with pytest.raises(ValueError, match="not allowed with recovery in place"):
        form(backend, HashStore(), 0, 1, timedelta(seconds=5))
