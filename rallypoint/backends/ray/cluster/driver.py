"""The driver of a RayJob or RayCluster on Kubernetes: it supervises one attempt of a job in the Ray cluster that it runs in.

It is the entry point of the RayJob, or a container beside the head. It prints the output of the workers, and ends with the exit
code of the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import sys
import time
from typing import Any

import ray

from rallypoint.backends.contract import Backend, Blueprint
from rallypoint.backends.ray.access import NAMESPACE, Access
from rallypoint.backends.ray.backend import RayBackend
from rallypoint.backends.ray.cluster.bootstrap import open_ledger
from rallypoint.backends.ray.dashboard import Cluster
from rallypoint.backends.requests import delete, submit_or_adopt
from rallypoint.backends.role_logs import role_output
from rallypoint.backends.supervise import supervise
from rallypoint.job import ElasticJob, JobError
from rallypoint.supervision.record import JobRecord, Phase
from rallypoint.supervision.role_records import Level
from rallypoint.wire import env
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.exits import Exit
from rallypoint.wire.role_plans import role_plans
from rallypoint.wire.sections import replaced

__all__ = ["exit_code", "main"]

#: Name of this supervisor in records, and the owner of its job.
_ME = "driver"

#: Seconds that the head may take to start, between two tries, and for the deletion of the job at its end.
_HEAD, _TRY, _DELETION = 300.0, 1.0, 60.0

#: Lines of the verdict's log that are printed last, where Kubernetes shows them.
_LAST = 20


class _Inside(Cluster):
    """A cluster whose ledger is found by Ray itself, not by its Jobs API."""

    async def call(self, method: str, *, job: str = "", timeout: float = 30.0, reading: bool = False, **given: Any) -> Any:
        del reading  # it has no list of submissions
        return await super().call(method, job=job, timeout=timeout, **given)

    async def find(self, uid: str) -> None:
        del uid  # it needs no Ray job of its own
        await self._find(None)

    async def bootstrap(self, submission: str) -> tuple[str, str]:
        del submission
        found = await asyncio.to_thread(open_ledger, self.access.namespace, self.access.storage)
        return found["url"], found["key"]

    async def _latest(self) -> list[str]:
        return []


def main() -> int:
    """Run the job of RALLYPOINT_RAY_JOB and return its exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    text = os.environ.pop(env.RAY_JOB, "")
    try:
        job = ElasticJob.model_validate(json.loads(text))
    except (ValueError, JobError) as error:
        sys.stderr.write(f"{env.RAY_JOB}: {error}\n")
        return int(Exit.CONFIG)
    address = _connect()
    try:
        return asyncio.run(_run(job, Access(address=f"http://{address}", storage=os.environ.get(env.RAY_HOME, ""))))
    except RallypointError as error:
        sys.stderr.write(f"{error}\n")
        return int(Exit.JOB_FAILED)


def _connect() -> str:
    """Connect to the cluster of this machine, which may still be starting; return the address of its dashboard."""
    until = time.monotonic() + _HEAD
    while True:
        try:
            context = ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False, logging_level="warning")
        except (ConnectionError, RuntimeError, TimeoutError):
            if time.monotonic() >= until:
                raise
            time.sleep(_TRY)
        else:
            return str(context.dashboard_url or "127.0.0.1:8265")


async def _run(job: ElasticJob, access: Access) -> int:
    backend = RayBackend(access, cluster=_Inside(access))
    supervising = asyncio.ensure_future(_supervised(backend, job))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, supervising.cancel)
    try:
        record = await supervising
        with contextlib.suppress(RallypointError):
            await delete(backend, job.name, holder=_ME, timeout=_DELETION)
        _print_end(record)  # after the last line of this supervisor's own log
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    finally:
        await backend.close()
    return exit_code(record)


async def _supervised(backend: RayBackend, job: ElasticJob) -> JobRecord | None:
    await submit_or_adopt(backend, _one_attempt(backend.plan(job)), owner=_ME)
    printing = asyncio.create_task(_print_output(backend, job.name))
    try:
        record = await supervise(backend, job.name, holder=_ME)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(printing), _TRY)
        return record
    finally:
        printing.cancel()
        await asyncio.wait([printing])


def _one_attempt(blueprint: Blueprint) -> Blueprint:
    """Return the job without attempts after the first: each attempt has a Ray cluster, and thus a driver, of its own."""
    return dataclasses.replace(blueprint, plan=replaced(blueprint.plan, retry_limit=0))


async def _print_output(backend: Backend, name: str) -> None:
    """Print the lines of all workers and instances until the job is over."""
    with contextlib.suppress(RallypointError):
        stored = await backend.load(name)
        roles = () if stored is None else role_plans(stored.plan)
        if stored is None or not roles:
            async for line in backend.logs(name, follow=True):
                _print(f"[{line.rank}] {line.text}")
            return
        lines = role_output(backend, stored, roles, follow=True)
        async with contextlib.aclosing(lines) as following:  # type: ignore[type-var]
            async for role, line in following:
                _print(f"[{role.name} {line.rank}] {line.text}")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _print_end(record: JobRecord | None) -> None:
    """Print last what people look for first."""
    verdict = None if record is None else record.verdict
    if verdict is None:
        return
    tail = () if verdict.culprit is None else verdict.culprit.log_tail[-_LAST:]
    sys.stdout.write("".join(f"{line}\n" for line in (*tail, verdict.message)))
    sys.stdout.flush()


def exit_code(record: JobRecord | None) -> int:
    """Return 0 for a job that has succeeded, and otherwise the exit code of what broke first, 1 where that is not known."""
    if record is None:
        return int(Exit.JOB_FAILED)
    if record.phase is Phase.SUCCEEDED:
        return 0
    culprit = None if record.verdict is None else record.verdict.culprit
    if record.conductor is not None:
        code = next((step.exit_code for step in record.conductor.history[-1:] if step.level is Level.NONE), None)
    else:
        code = None if culprit is None else -culprit.signal if culprit.signal else culprit.exit_code
    return 128 - code if code is not None and code < 0 else code or int(Exit.JOB_FAILED)
