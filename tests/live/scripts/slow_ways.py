"""Plain training without a hang: `slow_ways.py FOLDER NAME[,NAME ...] STEPS SECONDS` is slow in round R in the R-th way.

After STEPS steps of about 15 ms the ranks do something else for SECONDS and take a few more steps. Then rank 1 ends with exit
code 3, so that the next round begins; `FOLDER/done-ROUND` says that the round was not ended by anything else. In a round beyond
the last way the ranks end with 0 after STEPS steps.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import fcntl
import gc
import http.server
import itertools
import math
import multiprocessing
import os
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

folder, names, steps, seconds = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), float(sys.argv[4])
round_, rank = int(os.environ["RALLYPOINT_ROUND"]), int(os.environ["RANK"])
name = names[round_ - 1] if round_ <= len(names) else "none"
torch.set_num_threads(1)


def until() -> float:
    return time.monotonic() + seconds


class Slow(Dataset[torch.Tensor]):
    """Batches of which one takes long."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 9:
            time.sleep(seconds)
        return torch.ones(4)


class Trickle(http.server.BaseHTTPRequestHandler):
    """Answers and reads a little at a time."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "20")
        self.end_headers()
        for _ in range(20):
            time.sleep(seconds / 20)
            self.wfile.write(b"x")

    def do_PUT(self) -> None:
        left, size = int(self.headers["Content-Length"]), 1 << 16
        pause = seconds / (left / size)
        while left > 0:
            left -= len(self.rfile.read(min(size, left)))
            time.sleep(pause)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        pass


def serve() -> str:
    """Start a slow server in a process of its own; return its address."""
    server = socketserver.TCPServer(("127.0.0.1", 0), Trickle)
    context = multiprocessing.get_context("fork")
    context.Process(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}/"


# --- Ways to be slow -------------------------------------------------------------------------------------------------------


def wait_for_child() -> None:
    subprocess.run(["sleep", str(seconds)], check=True)


def sleep() -> None:
    time.sleep(seconds)


def evaluate(model: nn.Module) -> None:
    over = until()
    with torch.no_grad():
        while time.monotonic() < over:
            model(torch.ones(64, 4))


def alone(model: nn.Module) -> nn.Module:
    """Return the model itself: its forward pass needs no other rank."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def prepare() -> None:
    over, words = until(), 0
    while time.monotonic() < over:
        words += len(sorted(("a quick brown fox " * 500).split()))


def upload() -> None:
    request = urllib.request.Request(serve(), data=bytes(1 << 22), method="PUT")
    urllib.request.urlopen(request, timeout=600).close()


def download() -> None:
    with urllib.request.urlopen(serve(), timeout=600) as answer:
        answer.read()


def compile_slowly() -> None:
    def backend(module: torch.fx.GraphModule, _inputs: object) -> Callable[..., object]:
        time.sleep(seconds)
        return module.forward

    torch.compile(nn.Linear(4, 4), backend=backend)(torch.ones(2, 4))


def fill_cache() -> None:
    over, number = until(), 0
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        while time.monotonic() < over:
            (Path(cache) / str(number % 100)).write_bytes(bytes(100))
            number += 1
            time.sleep(0.05)


def find_rate() -> None:
    over = until()
    model = nn.Linear(4, 1)
    while time.monotonic() < over:
        loss = model(torch.ones(2, 4)).sum()
        for gradient in torch.autograd.grad(loss, list(model.parameters())):
            gradient.mul_(0.1)
        time.sleep(0.01)


def collect() -> None:
    over = until()
    while time.monotonic() < over:
        loops: list[list[object]] = [[] for _ in range(200_000)]
        for loop in loops:
            loop.append(loop)
        del loops
        gc.collect()


def starve() -> None:
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=prepare, daemon=True) for _ in range(4)]
    for other in others:
        other.start()
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    prepare()
    for other in others:
        other.join()


def allocate() -> None:
    over = until()
    while time.monotonic() < over:
        torch.ones(1 << 24).sum()


def loader_starts() -> None:
    loader = DataLoader(Slow(), num_workers=1, multiprocessing_context="fork", worker_init_fn=lambda _: time.sleep(seconds))
    next(iter(loader))


def loader_batch() -> None:
    for _batch in DataLoader(Slow(), batch_size=1, num_workers=1, multiprocessing_context="fork", prefetch_factor=1):
        pass


def slow_file() -> None:
    command = f"for i in $(seq 20); do printf x; sleep {seconds / 20}; done"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()


def answer_late() -> None:
    reader, writer = os.pipe()
    threading.Timer(seconds, os.write, (writer, b"yes\n")).start()
    os.dup2(reader, 0)
    sys.stdin = os.fdopen(0, closefd=False)
    input("Continue? ")


def c_loop() -> None:
    over = until()
    while time.monotonic() < over:
        sum(itertools.repeat(0, 20_000_000))


def plot() -> None:
    over = until()
    while time.monotonic() < over:
        "".join(f"<circle cx='{x}' cy='{math.sin(x):.3f}'/>" for x in range(20_000))


def slow_pipe() -> None:
    reader = f"import os, time\nfor _ in range(20): time.sleep({seconds / 20}); os.read(0, 65536)"
    with subprocess.Popen([sys.executable, "-c", reader], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(bytes(15 * 65536))


def lock() -> None:
    held = threading.Lock()
    held.acquire()
    threading.Timer(seconds, held.release).start()
    with held:
        pass


def future() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, seconds).result()


def event_loop() -> None:
    asyncio.run(asyncio.sleep(seconds))


def pool() -> None:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        workers.map(time.sleep, [seconds / 4] * 8)


def file_lock() -> None:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        code = "import fcntl, sys, time; fcntl.flock(0, fcntl.LOCK_EX); print(flush=True); time.sleep(float(sys.argv[1]))"
        with open(file.name) as held:  # noqa: PTH123  as a child's standard input
            child = subprocess.Popen([sys.executable, "-c", code, str(seconds)], stdin=held, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        with open(file.name) as mine:  # noqa: PTH123
            fcntl.flock(mine, fcntl.LOCK_EX)
        child.communicate()


def store_late() -> None:
    """The other rank sets the key."""
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        sleep()
        store.set(f"late-{round_}", "1")
    else:
        store.wait([f"late-{round_}"], timedelta(minutes=10))


def pause_child() -> None:
    with subprocess.Popen(["sleep", "1"]) as child:
        child.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        child.send_signal(signal.SIGCONT)


def save_slowly() -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        time.sleep(seconds)
        while os.read(reader, 1 << 20):
            pass
        os._exit(0)
    os.close(reader)
    with os.fdopen(writer, "wb") as file:
        torch.save({"w": torch.ones(1 << 18)}, file)
    os.waitpid(pid, 0)


# --- What needs both ranks -------------------------------------------------------------------------------------------------


def rank_0(work: Callable[[], None]) -> Callable[[], None]:
    def way() -> None:
        if rank == 0:
            work()
        dist.barrier()

    return way


def rank_1(work: Callable[[], None]) -> Callable[[], None]:
    """The other rank waits in the collective of the next step."""

    def way() -> None:
        if rank == 1:
            work()

    return way


def gather() -> None:
    if rank == 1:
        sleep()
    dist.all_gather_object([None, None], rank)


def receive() -> None:
    if rank == 0:
        sleep()
        dist.send(torch.ones(1), dst=1)
    else:
        dist.recv(torch.ones(1), src=0)


def two_groups() -> None:
    """Rank 0 has a call of the first group pending and waits in the second one."""
    pending = dist.all_reduce(torch.ones(1), async_op=True) if rank == 0 else None
    if rank == 1:
        sleep()
    dist.all_reduce(torch.ones(1), group=other)
    if pending is not None:
        pending.wait()
    else:
        dist.all_reduce(torch.ones(1))


def asynchronous() -> None:
    work = dist.all_reduce(torch.ones(1 << 20), async_op=True)
    if rank == 1:
        prepare()
    work.wait()


def leave() -> None:
    dist.destroy_process_group()
    if rank == 1:
        sleep()


def last() -> None:
    """Rank 0 ends at once."""
    if rank == 1:
        sleep()


def ways(model: nn.Module) -> dict[str, Callable[[], None]]:
    """Return what is done between two steps, by all ranks."""
    return {
        "subprocess": rank_1(wait_for_child),
        "sleep": rank_1(sleep),
        "evaluation": lambda: evaluate(alone(model)),
        "evaluation-rank-0": rank_0(lambda: evaluate(alone(model))),
        "no-grad": rank_1(lambda: evaluate(alone(model))),
        "preparation": rank_1(prepare),
        "upload": rank_0(upload),
        "download": rank_1(download),
        "compile": rank_1(compile_slowly),
        "cache": rank_0(fill_cache),
        "lr-finder": rank_0(find_rate),
        "garbage": rank_1(collect),
        "starvation": rank_1(starve),
        "allocation": rank_1(allocate),
        "barrier": rank_0(sleep),
        "gather": gather,
        "receive": receive,
        "two-groups": two_groups,
        "async": asynchronous,
        "loader-start": rank_1(loader_starts),
        "loader-batch": rank_1(loader_batch),
        "slow-file": rank_1(slow_file),
        "input": rank_1(answer_late),
        "c-loop": rank_1(c_loop),
        "plot": rank_1(plot),
        "slow-pipe": rank_1(slow_pipe),
        "lock": rank_1(lock),
        "future": rank_1(future),
        "event-loop": rank_1(event_loop),
        "pool": rank_1(pool),
        "flock": rank_1(file_lock),
        "store": store_late,
        "paused-child": rank_1(pause_child),
        "first-save": rank_0(save_slowly),
    }


def train(model: nn.Module, count: int) -> None:
    """Take so many steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.01)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(hours=1))
    other = dist.new_group(timeout=timedelta(hours=1))
    net = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    train(net, steps)
    if name in ("left", "last"):
        {"left": leave, "last": last}[name]()
    elif name != "none":
        ways(net)[name]()
        train(net, 10)
        dist.barrier()
    if name != "none" and rank == 1:
        (folder / f"done-{round_}").touch()
        os._exit(3)
    if dist.is_initialized():
        dist.destroy_process_group()
