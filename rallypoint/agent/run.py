"""`rallypoint-agent run`: torchrun's job done by hand, without a supervisor.

A node by itself hosts its coordinator in its own process. Several nodes are given one `--rdzv-endpoint`: the agent that can
open the port hosts the coordinator, the others join it there, and the host stays until every other was told how it ended.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.disk_space import require_disk_space
from rallypoint.agent.entrypoint import require_entrypoint
from rallypoint.agent.meeting import meet
from rallypoint.agent.meeting_place import ATTEMPT, Agreement, address_towards
from rallypoint.agent.node.agent import Ending, NodeAgent
from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.options import RunOptions, read_options
from rallypoint.agent.report import describe_verdict
from rallypoint.agent.transport.client import CoordinatorClient, FixedEndpoint
from rallypoint.agent.workers.affinity import worker_cpus
from rallypoint.wire import env
from rallypoint.wire.exits import Exit

__all__ = ["log_folder", "run", "take_part"]

log = logging.getLogger("rallypoint.run")


def run(args: argparse.Namespace) -> int:
    """Run one agent to its end, print how a failed job ended, and return the exit code."""
    options = read_options(args, os.environ)
    for note in options.notes:
        log.warning("%s", note)
    logs = log_folder(options)
    # Nobody will want to read them afterwards where no stream goes there.
    temporary = not options.log_dir and not _filed(options)
    shared = Path(tempfile.mkdtemp(prefix="rallypoint-"))
    evidence: tuple[str, ...] | None = None
    try:
        ending = asyncio.run(take_part(options, logs, shared))
        evidence = ending.evidence
    finally:
        shutil.rmtree(shared, ignore_errors=True)
        if evidence is None:  # it did not end in order: nobody knows which silence was a hang
            evidence = tuple(map(str, sorted(logs.glob("round-*/hang-*.txt"))))
        if evidence:
            hangs = len(evidence)
            where = evidence[0] if hangs == 1 else logs
            log.warning("the agent saved the stacks of all workers for each hang: hangs=%d file=%s", hangs, where)
        if temporary and not evidence:
            shutil.rmtree(logs, ignore_errors=True)
    if ending.node.verdict is not None and ending.code != Exit.OK:
        print(describe_verdict(ending.node.verdict), file=sys.stderr)  # noqa: T201 what a person at the terminal reads
    elif ending.code != Exit.OK:
        log.warning("%s", ending.node.reason)
    return ending.code


def log_folder(options: RunOptions) -> Path:
    """Return a new folder for this run's logs; raises `ConfigError`."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in options.plan.name)
    base = options.log_dir or None
    if base is not None:
        require_disk_space(Path(base))
    folder = Path(tempfile.mkdtemp(prefix=f"{name}_", dir=base))
    if _filed(options):
        log.info("worker logs: dir=%s", folder)
    return folder


def _filed(options: RunOptions) -> bool:
    return any(options.streams.filed(local_rank) for local_rank in range(options.plan.nproc_per_node))


async def take_part(options: RunOptions, logs: Path, shared: Path, *, agreement: Agreement | None = None) -> Ending:
    """Be one agent of a run, in the main thread of a process that is its alone; return how it ended.

    `logs` and `shared` are the folders of the workers' logs and of what they share with the agent. Raises `RallypointError`.
    """
    require_entrypoint(options.plan)
    clock = monotone_clock()
    cpus = worker_cpus(options.plan, os.environ)
    async with meet(options, clock, agreement) as met:
        config = NodeConfig(
            plan=options.plan,
            attempt=ATTEMPT,
            node=options.node,
            # Of two agents with one --node-rank the later one is right, also when nobody has seen the other end.
            incarnation=0 if options.node < 0 else int(time.time()),
            host=options.local_addr or address_towards(met.endpoint),
            machine=os.environ.get(env.MACHINE, ""),
            secret=met.secret,
            tls=met.tls,
            folder=shared,
            log_folder=logs,
            streams=options.streams,
            prefix=options.prefix,
            signals=options.signals,
            cpus=cpus,
            environment={} if options.master is None else options.master.environment,
        )
        client = CoordinatorClient(
            source=FixedEndpoint(met.endpoint.host, met.endpoint.port),
            exchange=met.exchange,
            fence_timeout=options.plan.rendezvous.fence_timeout,
            attempt=ATTEMPT,
        )
        ending = await NodeAgent(config, client=client, clock=clock).run()
        if met.hosted is not None and ending.node.verdict is not None:
            await met.hosted  # until every other node was told
    return ending
