"""Plain training that knows nothing of us: `hang_ways.py FOLDER NAME[,NAME ...] STEPS` hangs in round R in the R-th way.

After STEPS steps (about 15 ms each; every 25 of them an evaluation and a checkpoint) it hangs, at the place that the way has.
Who begins to hang says so in `FOLDER/mark-ROUND-RANK.json`: when, and the 99th percentile of its steps so far. In a round
beyond the last way it ends after STEPS steps.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import ctypes
import fcntl
import itertools
import json
import multiprocessing
import os
import pdb  # noqa: T100  to be left in, as one way to hang
import platform
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

folder, names, steps = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3])
round_, rank = int(os.environ["RALLYPOINT_ROUND"]), int(os.environ["RANK"])
name = names[round_ - 1] if round_ <= len(names) else "none"
times: list[float] = []


def mark() -> None:
    """Say that this rank hangs from now on."""
    ordered = sorted(times)
    told = {"at": time.time(), "p99": ordered[int(0.99 * (len(ordered) - 1))] if ordered else None}
    path = folder / f"mark-{round_}-{rank}.json"
    path.with_suffix(".tmp").write_text(json.dumps(told))
    path.with_suffix(".tmp").rename(path)


def hangs(where: str) -> None:
    """Hang if this is the place, and this rank one of those that do."""
    way, place, who = WAYS.get(name, (None, "", ()))
    if way is not None and place == where and rank in who:
        mark()
        way()


if name == "import" and rank == 1:
    mark()
    time.sleep(3600)

import torch  # noqa: E402
from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

torch.set_num_threads(1)


class Batches(Dataset[torch.Tensor]):
    """Batches without an end; a worker of a loader may hang at one."""

    def __init__(self, stuck_at: int = -1, how: Callable[[], None] | None = None) -> None:
        self._stuck_at, self._how = stuck_at, how

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self._stuck_at and self._how is not None:
            self._how()
        return torch.ones(4)


class Finalized:
    """Takes a lock when it goes."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __del__(self) -> None:
        self._lock.acquire()


# --- Ways to hang ----------------------------------------------------------------------------------------------------------


def sleep() -> None:
    time.sleep(3600)


def busy() -> None:
    while True:
        pass


def spin() -> None:
    while True:
        time.sleep(0)


def gil() -> None:
    sum(itertools.repeat(0))


def regex() -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def lock_in_c(library: type[ctypes.CDLL]) -> None:
    libc, mutex = library(None), (ctypes.c_byte * 64)()
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def lock_c() -> None:
    lock_in_c(ctypes.CDLL)


def lock_c_gil() -> None:
    lock_in_c(ctypes.PyDLL)


def disk() -> None:
    """Wait for a child that shares this process's memory and never gives it back: the kernel calls that a wait for a disk."""
    number, flags = {"x86_64": (56, 0x4111), "aarch64": (220, 0x4111)}[platform.machine()]
    if ctypes.CDLL(None).syscall(number, flags, 0, 0, 0, 0) == 0:
        signal.pause()


def lock() -> None:
    twice = threading.Lock()
    twice.acquire()
    twice.acquire()


def finalizer() -> None:
    held = threading.Lock()
    dying = Finalized(held)
    with held:
        del dying


def queue_get() -> None:
    queue.Queue[int]().get()


def socket_recv() -> None:
    one, _other = socket.socketpair()
    one.recv(1)


def pipe_read() -> None:
    reader, _writer = os.pipe()
    os.read(reader, 1)


def fifo_open() -> None:
    path = fifo()
    with path.open("rb") as file:
        file.read()


def fifo() -> Path:
    path = Path(tempfile.mkdtemp(dir=folder)) / "never"
    os.mkfifo(path)
    return path


def file_lock() -> None:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        fcntl.flock(os.open(file.name, os.O_RDWR), fcntl.LOCK_EX)


def child() -> None:
    subprocess.run(["sleep", "3600"], check=False)


def join() -> None:
    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    thread.join()


def future() -> None:
    concurrent.futures.Future[int]().result()


def event_loop() -> None:
    asyncio.run(asyncio.Event().wait())


def sigwait() -> None:
    signal.sigwait({signal.SIGUSR2})


def dead_producer() -> None:
    made: multiprocessing.Queue[int] = multiprocessing.get_context("fork").Queue()
    producer = multiprocessing.get_context("fork").Process(target=os._exit, args=(0,))
    producer.start()
    producer.join()
    made.get()


def debugger() -> None:
    reader, _writer = os.pipe()
    pdb.Pdb(stdin=os.fdopen(reader), stdout=sys.stdout).set_trace()
    times.append(0.0)


def stdin() -> None:
    reader, _writer = os.pipe()
    os.dup2(reader, 0)
    sys.stdin = os.fdopen(0)
    input("Continue? ")


def loader(how: Callable[[], None]) -> None:
    worker = DataLoader(Batches(3, how), batch_size=1, num_workers=1, multiprocessing_context="fork", prefetch_factor=1)
    for _batch in worker:
        pass


def loader_stuck() -> None:
    loader(sleep)


def loader_stopped() -> None:
    loader(stop)


def store_wait() -> None:
    dist.distributed_c10d._get_default_store().wait(["never"], timedelta(hours=1))


def skip() -> None:
    """Leave a collective of one group out: the next one is another group's, where the others do not come."""
    dist.all_reduce(torch.ones(1), group=other)


def order() -> None:
    """The same two collectives as the others, the other way round."""
    dist.broadcast(torch.ones(8), 0)
    dist.all_reduce(torch.ones(2))


def barrier() -> None:
    """One barrier that the others do not know of."""
    dist.barrier(group=other)


def receive() -> None:
    dist.recv(torch.ones(1), src=0, tag=7)


def deadlock() -> None:
    """Each rank begins with another group."""
    for group in (other, dist.group.WORLD) if rank else (dist.group.WORLD, other):
        dist.all_reduce(torch.ones(1), group=group)


def leave() -> None:
    """End with 0 while the others wait: a helper of this process keeps its sockets open, so nobody is told."""
    if os.fork() == 0:
        sleep()
    os._exit(0)


def hook() -> None:
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _grad: sleep())
    (weight * 2).backward()


def save() -> None:
    torch.save({"w": torch.ones(4)}, fifo())


def at_exit() -> None:
    atexit.register(sleep)


def slow() -> None:
    """No hang: this rank takes a while for each of its next steps."""
    for _ in range(5):
        time.sleep(0.8)
        dist.all_reduce(torch.ones(1))


Way = tuple[Callable[[], None], str, tuple[int, ...]]

#: What is done, where in the script, and by which ranks.
WAYS: dict[str, Way] = {
    "sleep": (sleep, "step", (1,)),
    "stop": (stop, "step", (1,)),
    "busy": (busy, "step", (1,)),
    "spin": (spin, "step", (1,)),
    "gil": (gil, "step", (1,)),
    "regex": (regex, "step", (1,)),
    "lock-c": (lock_c, "step", (1,)),
    "lock-c-gil": (lock_c_gil, "step", (1,)),
    "lock": (lock, "step", (1,)),
    "finalizer": (finalizer, "step", (1,)),
    "queue": (queue_get, "step", (1,)),
    "socket": (socket_recv, "step", (1,)),
    "pipe": (pipe_read, "step", (1,)),
    "fifo": (fifo_open, "step", (1,)),
    "flock": (file_lock, "step", (1,)),
    "disk": (disk, "step", (1,)),
    "child": (child, "step", (1,)),
    "join": (join, "step", (1,)),
    "future": (future, "step", (1,)),
    "event-loop": (event_loop, "step", (1,)),
    "signal": (sigwait, "step", (1,)),
    "producer": (dead_producer, "step", (1,)),
    "debugger": (debugger, "step", (1,)),
    "stdin": (stdin, "step", (1,)),
    "loader-stuck": (loader_stuck, "step", (1,)),
    "loader-stopped": (loader_stopped, "step", (1,)),
    "store": (store_wait, "step", (1,)),
    "hook": (hook, "step", (1,)),
    "exited": (leave, "step", (1,)),
    "checkpoint": (save, "checkpoint", (0,)),
    "evaluation": (sleep, "evaluation", (1,)),
    "first-step": (sleep, "first", (1,)),
    "at-exit": (at_exit, "end", (1,)),
    "destroy": (sleep, "end", (1,)),
    "deadlock": (deadlock, "step", (0, 1)),
    "skip": (skip, "step", (1,)),
    "order": (order, "order", (1,)),
    "barrier": (barrier, "step", (1,)),
    "receive": (receive, "step", (1,)),
    "two": (sleep, "step", (1, 2)),
    "slow": (slow, "step", (0, 1)),
}


# --- Training --------------------------------------------------------------------------------------------------------------


def last(where: str) -> bool:
    """Return whether this round's way is at this place of the last step."""
    return name in WAYS and WAYS[name][1] == where


def train() -> None:
    """Train as many steps as are asked for, hang in the midst of it."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches: Iterator[torch.Tensor] = iter(DataLoader(Batches(), batch_size=2))
    hangs("first")
    for step in range(steps + 25):
        began = time.monotonic()
        if step == steps:
            hangs("step")
            in_the_end()
        optimizer.zero_grad()
        model(next(batches)).sum().backward()
        optimizer.step()
        time.sleep(0.01)
        if step % 25 == 20:
            evaluate(model, batches, final=step > steps)
            checkpoint(model, final=step > steps)
        times.append(time.monotonic() - began)


def in_the_end() -> None:
    """What all ranks do where one of them does something else."""
    if last("order"):
        hangs("order")
        dist.all_reduce(torch.ones(2))
        dist.broadcast(torch.ones(8), 0)


def evaluate(model: nn.Module, batches: Iterator[torch.Tensor], *, final: bool) -> None:
    """Look at a few batches without training."""
    model.eval()
    if final:
        hangs("evaluation")
    with torch.no_grad():
        loss = torch.zeros(1)
        for _ in range(5):
            loss += model(next(batches)).sum()
            time.sleep(0.01)
        dist.all_reduce(loss)
    model.train()


def checkpoint(model: nn.Module, *, final: bool) -> None:
    """Rank 0 saves, the others wait for it."""
    if rank == 0:
        if final:
            hangs("checkpoint")
        torch.save(model.state_dict(), folder / "checkpoint.pt")
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    other = dist.new_group(timeout=timedelta(hours=1))
    train()
    hangs("end")
    dist.destroy_process_group()
