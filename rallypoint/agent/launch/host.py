"""The process in which the agent of a `launch_agent` lives: it reads what to do from a folder and leaves there how it ended.

It is a process of its own because an agent owns its process: it reaps every child, is the parent of orphans, kills what workers
leave behind, and handles signals. In the caller's program all of that would hit the caller's own children and threads.

The caller holds the other end of our stdin. When that closes, the caller is gone, and the run ends as by SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from rallypoint.agent.descriptors import raise_limit
from rallypoint.agent.errors import ConfigError, UsageError
from rallypoint.agent.launch.etcd import EtcdAgreement
from rallypoint.agent.launch.settle import EtcdPlace
from rallypoint.agent.node.agent import Ending
from rallypoint.agent.options import RunOptions
from rallypoint.agent.repeated_lines import limit_repeated_lines
from rallypoint.agent.run import take_part
from rallypoint.agent.stderr import unstalled
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.exits import Exit

__all__ = ["ENDING", "ORDERS", "Left", "Orders", "main"]

#: The files of the folder.
ORDERS, ENDING = "orders.pickle", "ending.pickle"


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What is to be done; `level` is of the log."""

    options: RunOptions
    etcd: EtcdPlace | None
    logs: Path
    level: int


@dataclass(frozen=True, kw_only=True)
class Left:
    """How it ended: an `ending`, or the `error` that it could not work for."""

    ending: Ending | None = None
    error: str = ""


def main(folder: Path) -> int:
    """Run the agent that the folder describes, and return the exit code."""
    # What lies there is by the process that started us, in a folder that nobody else may enter.
    orders: Orders = pickle.loads((folder / ORDERS).read_bytes())  # noqa: S301
    raise_limit()
    unstalled()
    logging.basicConfig(
        stream=sys.stderr,
        level=orders.level,
        format="%(asctime)s.%(msecs)03d %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    limit_repeated_lines()
    try:
        ending = asyncio.run(_run(orders, folder))
        left, code = Left(ending=ending), ending.code
    except RallypointError as error:
        left, code = Left(error=str(error)), _code(error)
    part = folder / f"{ENDING}.part"
    part.write_bytes(pickle.dumps(left))
    part.replace(folder / ENDING)
    return code


def _code(error: RallypointError) -> int:
    if isinstance(error, UsageError):
        return Exit.USAGE
    return Exit.CONFIG if isinstance(error, ConfigError) else Exit.JOB_FAILED


async def _run(orders: Orders, folder: Path) -> Ending:
    loop = asyncio.get_running_loop()
    line = sys.stdin.fileno()
    os.set_blocking(line, False)

    def read() -> None:
        if os.read(line, 1):
            return  # nobody writes; whatever it was, the caller lives
        loop.remove_reader(line)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(line, read)
    # Until the agent handles signals by itself: what comes so early ends us at once, and there is nothing to stop yet.
    try:
        return await take_part(orders.options, orders.logs, folder, agreement=_agreement(orders))
    finally:
        loop.remove_reader(line)


def _agreement(orders: Orders) -> EtcdAgreement | None:
    if orders.etcd is None:
        return None
    return EtcdAgreement(orders.etcd, within=orders.options.plan.join_timeout)
