"""`rallypoint-agent node`: what the supervisor starts in pods and slots."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rallypoint.agent.accelerators import accelerator
from rallypoint.agent.clock import monotone_clock
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.files import read_plan, read_secret, require_disk_space
from rallypoint.agent.node.agent import NodeAgent
from rallypoint.agent.node.node_config import NodeConfig
from rallypoint.agent.setup import SetupError, cache_variables, home_is_writable, run_setup
from rallypoint.agent.tls import job_tls
from rallypoint.agent.transport.announced import AnnouncedEndpoint, Listener
from rallypoint.agent.transport.choosing import Exchanges
from rallypoint.agent.transport.client import CoordinatorClient, EndpointSource, FileEndpoint
from rallypoint.agent.workers.affinity import worker_cpus
from rallypoint.agent.workers.logs import STDERR, STDOUT, Streams, claim_logs
from rallypoint.wire.env import MACHINE, UNSEEN
from rallypoint.wire.masked import secrets_of
from rallypoint.wire.plan import OrphanPolicy, Plan

__all__ = ["configured", "node"]

log = logging.getLogger("rallypoint.node")


def node(args: argparse.Namespace) -> int:
    """Run one node agent to its end and return the exit code."""
    plan = configured(read_plan(args.plan), os.environ)
    secret, tls = read_secret(args.secret_file), job_tls(args.tls, plan)
    pod = args.output == "pod"
    config = NodeConfig(
        plan=plan,
        attempt=args.attempt,
        node=args.node,
        incarnation=args.incarnation,
        unseen=_unseen(os.environ.get(UNSEEN, "")),
        host=args.host,
        machine=os.environ.get(MACHINE, ""),
        secret=secret,
        tls=tls,
        folder=args.shm or args.dir,
        log_folder=_log_folder(plan, args),
        streams=Streams(redirects=STDOUT | STDERR) if pod else Streams.from_plan(plan),
        pod=pod,
        bounded=pod and not plan.logs.log_dir,
        cpus=worker_cpus(plan, os.environ),
    )
    for folder in (args.dir, config.folder, config.log_folder):
        require_disk_space(folder)
    os.environ.update(cache_variables(os.environ, args.dir / "cache", writable=home_is_writable(os.environ)))
    try:
        return asyncio.run(_take_part(config, args, secret))
    except SetupError as error:
        log.error("%s", error)  # noqa: TRY400  where it was raised says nothing
        return error.code
    finally:
        sys.stdout.flush()


def _unseen(text: str) -> int:
    """Return the incarnation that a variable names; raises `ConfigError`."""
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"environment variable {UNSEEN}: {text!r} is not allowed; expected the incarnation of the node, a whole number"
        )
    return int(text or 0)


def _log_folder(plan: Plan, args: argparse.Namespace) -> Path:
    if not plan.logs.log_dir:
        return Path(args.dir) / "logs"
    folder = Path(plan.logs.log_dir) / plan.name / f"attempt-{args.attempt}" / f"node-{args.node}.{args.incarnation}"
    return claim_logs(plan.logs.log_dir, folder)


async def _take_part(config: NodeConfig, args: argparse.Namespace, secret: str) -> int:
    if args.listen is None:
        return await _work(config, args, FileEndpoint(args.endpoint_file), secret)
    source = AnnouncedEndpoint(attempt=config.attempt, where=f"port {args.listen}")
    listener = Listener(source, token=secret, tls=config.tls)
    await listener.start(config.host, args.listen)
    try:
        return await _work(config, args, source, secret)
    finally:
        await listener.close()


async def _work(config: NodeConfig, args: argparse.Namespace, source: EndpointSource, secret: str) -> int:
    plan = config.plan
    if plan.setup:
        around = await run_setup(plan, os.environ, node=config.node, host=config.host, folder=args.dir)
        os.environ.clear()
        os.environ.update(around.environment)
        # The plan's own variables are among them by now, as the commands may have changed them.
        plan = dataclasses.replace(plan, workdir=around.folder, hidden=secrets_of(plan), env={})
        config = dataclasses.replace(config, plan=plan)
    client = CoordinatorClient(
        source=source,
        exchange=Exchanges(secret, service_type=config.plan.rendezvous.service_type, tls=config.tls),
        fence_timeout=plan.rendezvous.fence_timeout,
        attempt=config.attempt,
        lease=plan.lease if plan.orphan_policy is OrphanPolicy.STOP else None,
    )
    ending = await NodeAgent(config, client=client, clock=monotone_clock()).run()
    return ending.code


def configured(plan: Plan, environ: Mapping[str, str]) -> Plan:
    """Return the plan as this node carries it out. With `auto_config`, a node that has devices runs as many workers as it has
    of them; they are counted here, where they are. Raises `ConfigError`.
    """
    if not plan.devices.auto_config:
        return plan
    devices = accelerator(plan.devices.accelerator).count(environ)
    return dataclasses.replace(plan, nproc_per_node=devices) if devices else plan
