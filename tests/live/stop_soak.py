"""Stops of a `launch_agent` run, counted: `python -m tests.live.stop_soak --runs 100` reports how many lost their checkpoint.

Each run has ranks that poll their `Events` after each step, which meet at a random moment of it. After a random time the
caller receives SIGTERM. A run is lost when a rank saved nothing, or when two ranks saved different steps. `--collective`
says how a step ties the ranks together: `socket` is a barrier over sockets between all ranks, which needs no torch; `gloo`
an all-reduce of torch; `none` leaves them independent.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rallypoint.agent import Events, LaunchConfig, launch_agent
from rallypoint.compat.launch_agent.events import StopAllTasks
from tests.waiting import eventually

__all__ = ["COLLECTIVES", "main", "stopped"]

COLLECTIVES = ("socket", "gloo", "none")

#: Seconds of training before the signal, at most.
_WITHIN = 0.2


def stopped(folder: Path, *, ranks: int, step_seconds: float, collective: str, after: float, grace: float = 30.0) -> list[str]:
    """Train until a SIGTERM `after` seconds from the first step; return the step that each rank saved, "" for none."""
    events = Events()
    config = LaunchConfig(1, 1, ranks, "stopped", rdzv_backend="c10d", start_method="spawn", shutdown_timeout=grace)

    def terminate() -> None:
        eventually(lambda: len(list(folder.glob("trains-*"))) == ranks, every=0.005)
        time.sleep(after)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    try:
        launch_agent(config, train, [events, str(folder), step_seconds, collective], events)
    except Exception as error:
        if "the run was stopped by SIGTERM" not in str(error):
            raise
    finally:
        thread.join()
    files = [folder / f"saved-{rank}" for rank in range(ranks)]
    return [file.read_text() if file.is_file() else "" for file in files]


def train(events: Events, folder: str, step_seconds: float, collective: str) -> None:
    """Train in a worker until the run is stopped."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    chance, done = random.Random(rank), 0

    def save() -> None:
        Path(folder, f"saved-{rank}").write_text(str(done))

    with _barrier(collective, Path(folder), rank, ranks) as barrier, contextlib.suppress(StopAllTasks):
        for step in itertools.count(1):
            before = chance.uniform(0, step_seconds)
            time.sleep(before)
            barrier()
            time.sleep(step_seconds - before)
            done = step
            if step == 1:
                Path(folder, f"trains-{rank}").touch()
            events.poll(step, save=save)


@contextlib.contextmanager
def _barrier(collective: str, folder: Path, rank: int, ranks: int) -> Iterator[Callable[[], object]]:
    if collective == "none":
        yield lambda: None
    elif collective == "gloo":
        import torch
        from torch import distributed as dist

        dist.init_process_group("gloo")
        yield lambda: dist.all_reduce(torch.ones(1))
    else:
        with contextlib.closing(_Sockets(folder / "socket", rank, ranks)) as sockets:
            yield sockets.meet


class _Sockets:
    """A barrier: rank 0 receives a byte of each other rank, then answers all."""

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self._first = rank == 0
        if self._first:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(f"{path}.part")
                listener.listen(ranks)
                Path(f"{path}.part").replace(path)
                self._peers = [listener.accept()[0] for _ in range(ranks - 1)]
        else:
            eventually(path.exists, every=0.005)
            self._peers = [socket.socket(socket.AF_UNIX)]
            self._peers[0].connect(str(path))

    def meet(self) -> None:
        first, then = (self._receive, self._send) if self._first else (self._send, self._receive)
        first()
        then()

    def _send(self) -> None:
        for peer in self._peers:
            peer.sendall(b".")

    def _receive(self) -> None:
        if not all(peer.recv(1) for peer in self._peers):
            raise ConnectionError("a rank has left the barrier")

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Print each lost run and the count of them; return 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--collective", choices=COLLECTIVES, default="socket")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds from the signal to SIGTERM of the workers")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    chance, lost = random.Random(args.seed), 0
    for run in range(args.runs):
        with tempfile.TemporaryDirectory(prefix="rallypoint-stop-") as folder:
            after = chance.uniform(0, _WITHIN)
            saved = stopped(
                Path(folder),
                ranks=args.ranks,
                step_seconds=args.step_ms / 1000,
                collective=args.collective,
                after=after,
                grace=args.grace,
            )
        if not all(saved) or len(set(saved)) > 1:
            lost += 1
            print(f"run {run}: lost, after {after:.3f} s the ranks had saved the steps {saved}", flush=True)
    print(
        f"{lost} of {args.runs} lost: {args.ranks} ranks, {args.step_ms:g} ms steps, collective {args.collective}", flush=True
    )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
