"""The coordinator's side of pre-check operators: a process that loads and asks them, and that cannot keep it from its work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from rallypoint.agent.descriptors import as_started
from rallypoint.agent.errors import ConfigError
from rallypoint.capabilities.base import ServiceContext
from rallypoint.capabilities.user_hooks.coordinator import Answered, Failed, facts
from rallypoint.capabilities.user_hooks.pre_checks import Answer, Operator, is_last, may_ask_until
from rallypoint.capabilities.user_hooks.wire import PlanSection
from rallypoint.wire import env
from rallypoint.wire.masked import Masking, mask_of_plan, masked_json
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.pre_check import PreCheckOp, PreCheckState
from rallypoint.wire.python import run_module

__all__ = ["ask_operators", "host_command", "running"]

log = logging.getLogger("rallypoint.precheck")

#: Seconds that operators have to be loaded: they may import torch.
_READY_WITHIN = 120.0


def host_command(plan: Plan, ops: Sequence[PreCheckOp], *, line: int | None = None) -> tuple[str, ...]:
    """Return the command that loads operators, and only tries them where it is given no line."""
    beside = ("--beside", plan.entrypoint) if plan.entry is Entry.SCRIPT else ()
    answering = () if line is None else ("--line", str(line))
    names = json.dumps([[op.module, op.name] for op in ops])
    return run_module("rallypoint.capabilities.user_hooks.host", *beside, *answering, names)


@contextlib.asynccontextmanager
async def running(context: ServiceContext) -> AsyncIterator[None]:
    """Run the operators of a job meanwhile, until all have passed or the attempt is over."""
    state, _ = context.state_of("user_hooks")
    if not state.waiting:
        yield
        return
    asking = asyncio.create_task(ask_operators(context, os.environ))
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.wait({asking})
    if not asking.cancelled():
        asking.result()


async def ask_operators(context: ServiceContext, environ: Mapping[str, str]) -> None:
    """Run the operators of a job, and send their results; returns when all have passed or the attempt is over."""
    enabled = [op for op in PlanSection.of(context.plan).pre_check_ops if op.enabled]
    host: _Host | None = None
    try:
        host = await _Host.start(context.plan, enabled, environ)
        operators = await host.ready()
        await _ask_all(context, host, operators)
    except ConfigError as error:
        context.send("user_hooks", Failed(message=str(error)))
    except (EOFError, OSError, asyncio.TimeoutError) as error:
        why = f"the operator process exited or did not answer ({type(error).__name__})"
        context.send("user_hooks", Failed(message=f"health.pre_check_ops: {why}"))
    finally:
        if host is not None:
            await host.close()


async def _ask_all(context: ServiceContext, host: _Host, operators: Sequence[Operator]) -> None:
    plan, clock = context.plan, context.clock
    until = may_ask_until(clock(), plan.grace.pending_timeout)
    known: dict[int, str] = {}
    state, _ = context.state_of("user_hooks")
    places = [index for index, one in enumerate(state.told) if one.state is not PreCheckState.BYPASSED]
    for number, (index, operator) in enumerate(zip(places, operators, strict=True)):
        while True:
            state, view = context.state_of("user_hooks")
            if view.verdict is not None:
                return
            job = facts(plan, view, known, clock())
            known.update({node["id"]: node["host"] for node in job["nodes"]})
            last = is_last(operator, state.told[index].tries, clock(), until)
            job |= {"nproc_per_node": plan.nproc_per_node}
            answer = await asyncio.wait_for(host.ask(number, job, last=last), max(1.0, until - clock()))
            if answer.trouble:
                log.warning("%s", answer.message)
            context.send("user_hooks", Answered(index=index, answer=answer, last=last))
            if answer.fine or context.state_of("user_hooks")[1].verdict is not None:
                break
            await asyncio.sleep(operator.interval)


class _Host:
    """The process that has loaded the classes."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mask: Masking
    ) -> None:
        self._process, self._reader, self._writer, self._mask = process, reader, writer, mask

    @classmethod
    async def start(cls, plan: Plan, ops: Sequence[PreCheckOp], environ: Mapping[str, str]) -> _Host:
        """Start it; raises `OSError`."""
        ours, theirs = socket.socketpair()
        variables = {**environ, **plan.env}
        variables.pop(env.SECRET, None)  # as for a worker: it is the user's code
        variables.setdefault("OMP_NUM_THREADS", "1")
        try:
            with theirs:
                process = await asyncio.to_thread(
                    subprocess.Popen,
                    host_command(plan, ops, line=theirs.fileno()),
                    env=variables,
                    cwd=plan.workdir or None,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    preexec_fn=as_started(),
                )
            reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        except BaseException:
            ours.close()
            raise
        return cls(process, reader, writer, mask_of_plan(plan))

    async def ready(self) -> list[Operator]:
        """Return what it has loaded; raises `ConfigError` where it cannot."""
        said = await asyncio.wait_for(self._hear(), _READY_WITHIN)
        if "error" in said:
            raise ConfigError(str(said["error"]))
        return [Operator(interval=float(one["interval"]), limit=one["limit"]) for one in said["ready"]]

    async def ask(self, index: int, job: Mapping[str, Any], *, last: bool) -> Answer:
        """Return what an operator says; raises `EOFError` or `OSError` when the process has ended."""
        self._writer.write(json.dumps({"index": index, "last": last, "job": job}).encode() + b"\n")
        await self._writer.drain()
        return Answer.of(await self._hear())

    async def _hear(self) -> dict[str, Any]:
        said = await self._reader.readline()
        if not said:
            raise EOFError
        # The classes are the user's: their errors may quote a secret of the job's environment.
        message: dict[str, Any] = masked_json(json.loads(said), self._mask)
        return message

    async def close(self) -> None:
        """End it now, with all that it started."""
        self._writer.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)
