"""Which files of a worker are copied whither: to the console as torchrun does, or into the log of its pod."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.workers.group import Worker
from rallypoint.agent.workers.logs import STDERR, STDOUT, RankLogs
from rallypoint.agent.workers.tee import Tail, prefix_of
from rallypoint.wire import env, podlog
from rallypoint.wire.bounds import read_count

__all__ = ["KEPT_BYTES", "KEPT_ROUNDS", "console_tails", "forget_old_rounds", "pod_tails", "shown_errors"]

#: Bytes of each worker's log that stay on the disk of a pod: more than is searched for what ended it.
KEPT_BYTES = 1 << 20

#: Rounds whose logs stay on the disk of a pod.
KEPT_ROUNDS = 3


def console_tails(config: NodeConfig, worker: Worker) -> Iterator[Tail]:
    """Yield what a person at the console wants to see of a worker."""
    place, logs = worker.place, worker.logs
    prefix = prefix_of(config.prefix, role=config.plan.role, rank=place.rank, local_rank=place.local_rank)
    teed, streams = config.streams.teed(place.local_rank), config.streams
    if teed & STDOUT and logs.out is not None:
        yield Tail(path=logs.out, prefix=prefix, to=sys.stdout.buffer)
        yield from _duplicate(logs.out, prefix, streams.duplicate_out, "filtered_stdout.log")
    if teed & STDERR and logs.err is not None:
        yield Tail(path=logs.err, prefix=prefix, to=sys.stderr.buffer)
        yield from _duplicate(logs.err, prefix, streams.duplicate_err, "filtered_stderr.log")


def _duplicate(path: Path, prefix: bytes, texts: tuple[str, ...], name: str) -> Iterator[Tail]:
    """Yield the copy of lines with one of `texts` into the file of all ranks of the round."""
    if texts:
        to = path.with_name(name).open("ab")
        yield Tail(path=path, prefix=prefix, to=to, only=tuple(map(str.encode, texts)), own=True)


def pod_tails(config: NodeConfig, worker: Worker) -> Iterator[Tail]:
    """Yield all that a worker says, as lines of its pod's log."""
    place = worker.place
    keep = KEPT_BYTES if config.bounded else None
    for path, stream in ((worker.logs.out, "out"), (worker.logs.err, "err")):
        if path is not None:
            front = podlog.front(place.assignment.fence.round, place.rank, stream).encode()
            yield Tail(path=path, prefix=front, to=sys.stdout.buffer, cut=podlog.pieces, keep=keep)


def shown_errors(config: NodeConfig, logs: RankLogs, local_rank: int) -> dict[str, str]:
    """Return the variable that has a traceback printed once in all rounds, where a worker's stderr is printed at all.

    In the files of a round the traceback stands whole in each round.
    """
    printed = logs.err is None or config.pod or config.streams.teed(local_rank) & STDERR
    return {env.SHOWN_ERRORS: str(config.folder / "shown-errors")} if printed else {}


def forget_old_rounds(folder: Path) -> None:
    """Remove the logs of all rounds in `folder` but the last `KEPT_ROUNDS`; what cannot be removed stays."""
    numbered = ((read_count(path.name.removeprefix("round-")), path) for path in folder.glob("round-*"))
    rounds = {number: path for number, path in numbered if number is not None}
    for number in sorted(rounds)[:-KEPT_ROUNDS]:
        shutil.rmtree(rounds[number], ignore_errors=True)
