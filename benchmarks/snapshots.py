"""What a snapshot costs the training: 1 GiB copied at once, and 50 MB at each step, beside other ways in turn.

Cases of the first table, milliseconds for which training stands still, 1 GiB of float32 in 64 tensors:
    memcpy          a parallel memcpy into shared memory that was faulted in before: what the machine can do
    ours            `Snapshots.save`; nothing of this state is an optimizer's, so that nothing is copied later
    ours-first      the first one of a new process's memory, after it was prepared in the background
    dlrover         `DdpCheckpointer.save_checkpoint(..., StorageType.MEMORY)` under dlrover-run, in the peers' environment
    dcp.async_save  `torch.distributed.checkpoint.async_save`, the part that blocks
    torch.save      to a file, without waiting for the disk

Cases of the second: steps of a one-worker job with 50 MB of state, AdamW's included: plain, with a snapshot at each step, and
with a commit of `training.State` at each step; blocks of steps take turns. `waiting` has 17 ms of sleep in each step,
`computing` none and a larger batch.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.report import Case, arguments, deliver, versions
from benchmarks.snapshots_dlrover import Dlrover
from rallypoint.checkpoint.memory import area_of
from rallypoint.training import Snapshots
from rallypoint.training.commits import Commits
from rallypoint.training.snapshots.buffers import Buffer
from rallypoint.training.snapshots.copy_threads import copy_thread_count
from rallypoint.training.snapshots.linux import move
from rallypoint.wire import env

__all__ = ["main"]

TENSORS = 64
WAIT = 0.017
_PLAIN, _SNAPSHOT, _COMMIT = "plain", "each step kept", "each step committed"
PEERS = Path(__file__).parents[1] / ".make" / "peers" / "bin"

Turn = Callable[[], float]


def big_state(size: int) -> dict[str, torch.Tensor]:
    """Return `size` bytes of float32 in 64 tensors."""
    return {f"tensor{number}": torch.rand(size // TENSORS // 4) for number in range(TENSORS)}


class Memcpy:
    """The bound: threads that do nothing but copy."""

    def __init__(self, state: dict[str, torch.Tensor], folder: Path, threads: int) -> None:
        self._sources, self._count = list(state.values()), threads
        folder.mkdir()
        self._buffer = Buffer(folder / "memcpy.bin")
        self._buffer.reserve(sum(t.numel() * 4 for t in self._sources))
        self._threads = ThreadPoolExecutor(threads)

    def __call__(self) -> float:
        """Copy once; returns milliseconds."""
        base, moves = self._buffer.data.data_ptr(), []
        size = self._sources[0].numel() * 4
        moves = [(base + size * number, source.data_ptr(), size) for number, source in enumerate(self._sources)]

        def copy(mine: Sequence[tuple[int, int, int]]) -> None:
            for to, of, length in mine:
                move(to, of, length)

        began = time.perf_counter()
        wait([self._threads.submit(copy, moves[n :: self._count]) for n in range(self._count)])
        return 1e3 * (time.perf_counter() - began)


class Ours:
    """`Snapshots` of one state; `fresh` begins with new memory, as a new job does."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self._state, self._step, self._snapshots = state, 0, Snapshots(state)

    def __call__(self) -> float:
        """Save once; returns the milliseconds for which training stands still."""
        self._step += 1
        began = time.perf_counter()
        self._snapshots.save(self._step)
        took = 1e3 * (time.perf_counter() - began)
        self._snapshots.wait()  # training would go on for longer than that before the next
        return took

    def first(self) -> float:
        """Save for the first time in new memory."""
        self._snapshots.close()
        shutil.rmtree(area_of(Path(os.environ[env.SNAPSHOT_DIR]), 0))
        self._snapshots = Snapshots(self._state)
        self._snapshots.prepared()
        return self()

    def burst(self, folder: Path) -> int:
        """Return how many of five saves are skipped right after one that is persisted, which is written behind them."""
        self._snapshots.close()
        self._snapshots = Snapshots(self._state, storage=folder / "persisted", persist_every=6)
        self._snapshots.prepared()
        kept = [self._snapshots.save(step) for step in range(6, 12)]
        self._snapshots.close()
        return kept[1:].count(False)


def torch_save(state: dict[str, torch.Tensor], folder: Path) -> Turn:
    """Return a turn of torch.save."""

    def turn() -> float:
        began = time.perf_counter()
        torch.save(state, folder / "state.pt")
        return 1e3 * (time.perf_counter() - began)

    return turn


def dcp_async_save(state: dict[str, torch.Tensor], folder: Path) -> Turn:
    """Return a turn of DCP's async_save; what it does in the background ends before the next turn."""
    from torch.distributed.checkpoint.state_dict_saver import async_save  # noqa: PLC0415  it imports the compiler

    def turn() -> float:
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            future: Any = async_save(state, checkpoint_id=folder / "dcp")
            took = 1e3 * (time.perf_counter() - began)
            future.result()
        return took

    return turn


def measure_big(size: int, rounds: int, folder: Path, dlrover: Path | None) -> list[Case]:
    """Let all ways take turns."""
    state = big_state(size)
    threads = max(1, min(4, len(os.sched_getaffinity(0))))
    ours = Ours(state)
    ours._snapshots.prepared()  # noqa: SLF001
    memcpy = Memcpy(state, Path(os.environ[env.SNAPSHOT_DIR]) / "bound", threads)
    turns: dict[str, Turn] = {"memcpy": memcpy, "ours": ours, "ours-first": ours.first}
    turns |= {"dcp.async_save": dcp_async_save(state, folder), "torch.save": torch_save(state, folder)}
    peer = None if dlrover is None else Dlrover(dlrover, folder, size, TENSORS)
    if peer is not None:
        turns["dlrover"] = peer.turn
    samples: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            gc.collect()
            samples[name].append(turn())
            print(f"  {name}: {samples[name][-1]:.0f} ms", file=sys.stderr)
    cases = [Case(name=name, command=name, samples=tuple(found), unit="ms") for name, found in samples.items()]
    cases[1].counts["skipped of 5"] = ours.burst(folder)
    if peer is not None:
        first, *rest = samples["dlrover"]
        counts = {"skipped of 5": peer.burst()}
        cases[-1] = Case(name="dlrover", command="dlrover", samples=tuple(rest), unit="ms", counts=counts)
        cases.append(Case(name="dlrover-first", command="dlrover", samples=(first,), unit="ms"))
        peer.close()
    return [*cases, *_ratios(samples)]


def _ratios(samples: dict[str, list[float]]) -> list[Case]:
    """Compare each turn with the memcpy of the same round: a machine that is busy is so for both."""
    bound = samples.pop("memcpy")
    found = {name: tuple(took / least for took, least in zip(turns, bound, strict=True)) for name, turns in samples.items()}
    return [Case(name=f"{name} / memcpy", command=name, samples=ratios, unit="x") for name, ratios in found.items()]


class Job:
    """A one-worker job whose state is 50 MB with AdamW's."""

    def __init__(self, batch: int, pause: float) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self._data, self._pause, self._step = torch.rand(batch, 1024), pause, 0
        self._run()
        self.snapshots = Snapshots({"model": self.model, "optimizer": self.optimizer})
        self.snapshots.prepared()
        folder = Path(os.environ[env.SNAPSHOT_DIR]) / "commits"
        self._commits = Commits(folder, str(id(self)), 1, threads=copy_thread_count(1))
        self._parts = {"model": self.model, "optimizer": self.optimizer, "step": 0}
        self._commits.prepare(self._parts)

    def _run(self) -> None:
        self.optimizer.zero_grad()
        time.sleep(self._pause)
        self.model(self._data).square().mean().backward()
        self.optimizer.step()
        self._step += 1

    def block(self, steps: int, kept: str) -> float:
        """Return the mean of the step times of a block, in milliseconds; `kept` names how each step is."""
        began = time.perf_counter()
        for _ in range(steps):
            self._run()
            if kept == _SNAPSHOT:
                self.snapshots.save(self._step)
            elif kept == _COMMIT:
                self._commits.take(self._parts, self._step, 0, 1)
        took = 1e3 * (time.perf_counter() - began) / steps
        self.snapshots.wait()
        self._commits.settle()
        return took

    def close(self) -> None:
        """End the threads."""
        self.snapshots.close()
        self._commits.close()


def measure_steps(name: str, *, batch: int, pause: float, blocks: int, steps: int) -> list[Case]:
    """Let blocks with and without snapshots take turns, and the first of each round too."""
    job, ways = Job(batch, pause), (_PLAIN, _SNAPSHOT, _COMMIT)
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(blocks):
        first = number % len(ways)
        for way in (*ways[first:], *ways[:first]):
            samples[way].append(job.block(steps, way))
    job.close()
    cases = [Case(name=f"{name}, {way}", command=name, samples=tuple(took), unit="ms") for way, took in samples.items()]
    for way in (_SNAPSHOT, _COMMIT):
        slower = tuple(100 * (after / before - 1) for before, after in zip(samples[_PLAIN], samples[way], strict=True))
        told = f"{statistics.median(slower):+.2f} % (median of {blocks} rounds of {steps} steps)"
        print(f"  {name}, {way}: {told}", file=sys.stderr)
        cases.append(Case(name=f"{name}, {way}, slower by", command=name, samples=slower, unit="%"))
    return cases


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the figures."""
    parser = arguments(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=1 << 30, metavar="BYTES", help="of the large state (default 1 GiB)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="turns of each way (default 7)")
    parser.add_argument("--blocks", type=int, default=15, metavar="N", help="rounds of blocks of steps (default 15)")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="steps of a block (default 50)")
    parser.add_argument("--dlrover", type=Path, default=PEERS / "dlrover-run", metavar="FILE", help="dlrover-run")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    memory = Path(tempfile.mkdtemp(prefix="rallypoint-bench-", dir="/dev/shm"))
    folder = Path(tempfile.mkdtemp(prefix="rallypoint-bench-"))
    for name in ("steps", "big"):
        (memory / name).mkdir()
    os.environ[env.SNAPSHOT_DIR] = str(memory / "steps")
    try:
        cases = measure_steps("waiting", batch=8, pause=WAIT, blocks=options.blocks, steps=options.steps)
        cases += measure_steps("computing", batch=256, pause=0.0, blocks=options.blocks, steps=max(1, options.steps // 5))
        os.environ[env.SNAPSHOT_DIR] = str(memory / "big")
        peer = options.dlrover if options.dlrover.exists() else None
        cases = [*measure_big(options.size, options.rounds, folder, peer), *cases]
        deliver("snapshots", cases, versions("torch"), options.json)
    finally:
        shutil.rmtree(memory, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
