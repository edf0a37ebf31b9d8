"""`rallypoint-agent run`: torchrun's job done by hand, without a supervisor.

A node by itself hosts its coordinator in its own process. Several nodes are given one `--rdzv-endpoint`: the agent that can
open the port hosts the coordinator, the others join it there, and the host stays until every other was told how it ended.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import os
import shutil
import sys
import tempfile
import time
from importlib.machinery import PathFinder
from pathlib import Path

from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.files import require_disk_space
from rallypoint.agent.meeting import meet
from rallypoint.agent.meeting_place import ATTEMPT, Agreement, address_towards
from rallypoint.agent.node.agent import Ending, NodeAgent
from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.options import RunOptions, read_options
from rallypoint.agent.transport.client import CoordinatorClient, FixedEndpoint
from rallypoint.agent.workers.affinity import worker_cpus
from rallypoint.wire import env
from rallypoint.wire.exits import Exit, signal_name
from rallypoint.wire.incident import Culprit
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.status import Verdict

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
        print(_describe_verdict(ending.node.verdict), file=sys.stderr)  # noqa: T201 what a person at the terminal reads
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
    _require_entrypoint(options.plan)
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


def _require_entrypoint(plan: Plan) -> None:
    """Raise `ConfigError` for an entrypoint that no worker could be started with; one with a macro in it is not checked.

    An agent of a supervised job does not make this check: there a volume may be mounted late, and a first worker that cannot
    start is judged by the table of verdicts.
    """
    name = plan.entrypoint
    if "${" in name:
        return
    if not name:
        raise ConfigError("the name of the script is empty; expected a script, -m with a module or --no-python with a program")
    if plan.entry is Entry.SCRIPT and not Path(name).exists():
        raise ConfigError(f"script {name}: file not found (current folder: {Path.cwd()})")
    if plan.entry is Entry.SCRIPT and not os.access(name, os.R_OK):
        raise ConfigError(f"script {name}: no permission to read the file")
    if plan.entry is Entry.SCRIPT and Path(name).is_dir() and not Path(name, "__main__.py").exists():
        raise ConfigError(f"script {name}: is a folder without __main__.py; expected a file")
    other_python = os.environ.get("PYTHON_EXEC", sys.executable) != sys.executable
    if plan.entry is Entry.MODULE and not other_python:
        _require_module(name)
    if plan.entry is Entry.COMMAND and shutil.which(name) is None:
        there = "is not an executable file" if Path(name).exists() else "was not found, neither here nor on PATH"
        raise ConfigError(f"program {name}: {there}")


def _require_module(name: str) -> None:
    """Raise `ConfigError` for a module that is not there; what lies in a package is found only by importing that."""
    top, _, below = name.partition(".")
    try:
        spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, [str(Path.cwd())])
    except (ImportError, ValueError):
        return  # it is there and unusual: the worker will report it
    if spec is None:
        raise ConfigError(f"module {name}: not found in {Path.cwd()}, on PYTHONPATH or in the installed packages")
    if below and spec.submodule_search_locations is None and top not in sys.modules:
        hint = f"expected -m {top}, or the script {name} without -m" if below == "py" else f"expected -m {top}"
        raise ConfigError(f"module {name}: {top} is a module, not a package; {hint}")


def _describe_verdict(verdict: Verdict) -> str:
    """Return a few lines: what happened, which rank on which node ended how, its first error, the last lines of its log."""
    lines = ["", f"The job has {verdict.outcome.value} ({verdict.reason}): {verdict.message}"]
    if verdict.culprit is not None:
        lines += _culprit(verdict.culprit)
    return "\n".join(lines)


def _culprit(culprit: Culprit) -> list[str]:
    how = f"killed by {signal_name(culprit.signal)}" if culprit.signal is not None else f"exit code {culprit.exit_code}"
    who = f"rank {culprit.rank} (local rank {culprit.local_rank}, pid {culprit.pid})" if culprit.rank >= 0 else "the whole node"
    lines = [f"  culprit: {who} on node {culprit.node} ({culprit.host})", f"  exit:    {how}"]
    if culprit.error:
        lines.append(f"  error:   {culprit.error}")
    if culprit.log_tail:
        lines.append(f"  last lines of {culprit.log_path}:")
        lines += [f"    {line}" for line in culprit.log_tail]
    return lines
