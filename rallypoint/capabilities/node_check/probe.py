"""The probe: one process per rank of a small world that computes, talks to the others, and says how long that took.

`node.py` starts `python -m rallypoint.capabilities.node_check.probe` with torchrun's variables and RALLYPOINT_CHECK, a JSON
object: `whole` (all nodes at once), `limit` (seconds), `fd` (the listening socket of the group's store; rank 0 alone has one)
and `key` (names the task: what an earlier one left in the sockets is not ours).

What it says is lines of JSON on stdout: `{"stage": NAME}` when it comes to a stage, and in the end `{"compute": s,
"transfer": s, "moved": bytes, "latency": s}`. It ends with 0 then, and with any other code where something failed; the last
line of stderr says what. A failure before the stage `connect` is this node's own.

Each time is the best of several: noise only ever adds. Fast devices get more to do, so that a time is long enough to be told.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

#: Sides of the matrices that are multiplied, and products per measurement.
_SIDE_CPU, _SIDE_GPU = 256, 8192
_PRODUCTS = 4

#: Measurements at the least, and at the most. On the way from the one to the other it is enough when so many seconds are over.
_LEAST, _MOST, _ENOUGH = 8, 64, 0.5

#: Bytes that each rank contributes to the all-gather: in a pair, and in the run of all nodes.
_PAIR_CPU, _PAIR_GPU, _WHOLE_CPU, _WHOLE_GPU = 4 << 20, 64 << 20, 1 << 20, 32 << 20

#: All-reduces of one number for each latency.
_TURNS = 5


def main() -> int:
    """Run the probe; return the exit code."""
    task = json.loads(os.environ["RALLYPOINT_CHECK"])
    _say(stage="start")
    import torch  # noqa: PLC0415  takes a second, and its failure is a finding

    device, backend = _device(torch, int(os.environ["LOCAL_RANK"]), *task.get("device", ("cuda", "nccl", "")))
    torch.set_num_threads(1)
    _say(stage="compute")
    compute = _compute(torch, device)
    _say(stage="connect")
    found = _Group(torch, device, backend, task).measure()
    _say(compute=compute, **found)
    return 0


def _device(torch: Any, local_rank: int, kind: str, backend: str, module: str) -> tuple[Any, str]:
    """Return the device of this rank and torch's backend for it: the processor where none of its kind is there.

    Raises `ImportError` where torch needs a module for such devices that is not installed: that is a finding.
    """
    if module:
        importlib.import_module(module)
    runtime = getattr(torch, kind, None)
    if kind == "cpu" or runtime is None or not runtime.is_available():
        return torch.device("cpu"), "gloo"
    device = torch.device(kind, local_rank % runtime.device_count())
    runtime.set_device(device)
    return device, backend


def _say(**words: Any) -> None:
    # One write: the reader may look at any moment.
    os.write(1, (json.dumps(words) + "\n").encode())


def _best(work: Callable[[], object], wait: Callable[[], object], times: int) -> float:
    """Return the shortest of so many times."""
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - began)
    return best


def _times(work: Callable[[], object], wait: Callable[[], object]) -> int:
    """Return how often `work` should be measured, by how long it takes; what is done for the first time counts for nothing."""
    work()
    wait()
    return max(_LEAST, min(_MOST, int(_ENOUGH / max(_best(work, wait, 2), 1e-6))))


def _waiter(torch: Any, device: Any) -> Callable[[], object]:
    if device.type == "cpu":
        return lambda: None
    return lambda: getattr(torch, device.type).synchronize(device)


def _compute(torch: Any, device: Any) -> float:
    gpu = device.type != "cpu"
    kind = torch.bfloat16 if gpu and getattr(torch, device.type).is_bf16_supported() else torch.float32
    side = _SIDE_GPU if gpu else _SIDE_CPU
    left, right = (torch.ones((side, side), device=device, dtype=kind) for _ in range(2))
    out = torch.empty_like(left)

    def work() -> None:
        for _ in range(_PRODUCTS):
            torch.mm(left, right, out=out)

    wait = _waiter(torch, device)
    seconds = _best(work, wait, _times(work, wait))
    # Ones times ones is the side, exactly: a device that computes wrongly is broken, too.
    if not bool((out.float() == side).all()):
        raise ArithmeticError(f"node check: {device} computed a wrong matrix product: each element must be {side}")
    return seconds


class _Group:
    """The small world of the task."""

    def __init__(self, torch: Any, device: Any, backend: str, task: dict[str, Any]) -> None:
        self._torch, self._device, self._backend, self._task = torch, device, backend, task
        self._rank, self._size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def measure(self) -> dict[str, float]:
        """Return what the ranks can do together; raises what torch raises where they cannot."""
        dist = self._torch.distributed
        timeout = datetime.timedelta(seconds=self._task["limit"])
        store = dist.PrefixStore(self._task["key"], self._store(timeout))
        dist.init_process_group(self._backend, store=store, rank=self._rank, world_size=self._size, timeout=timeout)
        _say(stage="collective")
        found = self._figures()
        dist.barrier()
        dist.destroy_process_group()
        return found

    def _store(self, timeout: datetime.timedelta) -> Any:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store_class = self._torch.distributed.TCPStore
        fd = self._task.get("fd")
        if fd is None:
            return store_class(host, port, None, False, timeout=timeout)
        return store_class(host, port, None, True, timeout=timeout, wait_for_workers=False, master_listen_fd=fd)

    def _agreed(self, work: Callable[[], object], wait: Callable[[], object]) -> int:
        """Return how often something that all ranks do is measured: the same number on all of them."""
        times = self._torch.tensor([_times(work, wait)], device=self._device)
        self._torch.distributed.all_reduce(times, op=self._torch.distributed.ReduceOp.MAX)
        return int(times.item())

    def _figures(self) -> dict[str, float]:
        dist, torch, wait = self._torch.distributed, self._torch, _waiter(self._torch, self._device)
        gpu, whole = self._device.type != "cpu", self._task["whole"]
        one = torch.ones(1, device=self._device)

        def turns() -> None:
            for _ in range(_TURNS):
                dist.all_reduce(one)

        # Whoever has computed for longer is waited for here, and not in what is timed.
        dist.barrier()
        latency = _best(turns, wait, self._agreed(turns, wait)) / _TURNS
        size = (_WHOLE_GPU if gpu else _WHOLE_CPU) if whole else (_PAIR_GPU if gpu else _PAIR_CPU)
        mine = torch.full((size,), self._rank % 251, dtype=torch.uint8, device=self._device)
        all_of_them = [torch.empty_like(mine) for _ in range(self._size)]
        dist.barrier()

        def gather() -> None:
            dist.all_gather(all_of_them, mine)

        transfer = _best(gather, wait, self._agreed(gather, wait))
        for rank, theirs in enumerate(all_of_them):
            if int(theirs[0]) != rank % 251 or int(theirs[-1]) != rank % 251:
                raise ArithmeticError(f"node check: the data that rank {rank} sent arrived corrupted")
        return {"transfer": transfer, "moved": size * self._size, "latency": latency}


if __name__ == "__main__":
    sys.exit(main())
