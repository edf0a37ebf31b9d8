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
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rallypoint.agent.clock import Clock
from rallypoint.agent.descriptors import as_started
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.precheck.course import Answer, Operator, is_last, may_ask_until
from rallypoint.agent.rendezvous import prechecks
from rallypoint.agent.rendezvous.peers import State
from rallypoint.wire import env
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.pre_check import PreCheckOp, PreCheckState

__all__ = ["Change", "ask_operators", "host_command"]

log = logging.getLogger("rallypoint.precheck")

#: Changes the coordinator's state by a function of it and of now, and returns the state as it is then.
Change = Callable[[Callable[[State, float], State]], State]

#: Seconds that operators have to be loaded: they may import torch.
_READY_WITHIN = 120.0


def host_command(plan: Plan, ops: Sequence[PreCheckOp], *, line: int | None = None) -> list[str]:
    """Return the command that loads operators, and only tries them where it is given no line."""
    command = [sys.executable, "-m", "rallypoint.agent.precheck.host"]
    command += ["--beside", plan.entrypoint] if plan.entry is Entry.SCRIPT else []
    command += [] if line is None else ["--line", str(line)]
    return [*command, json.dumps([[op.module, op.name] for op in ops])]


async def ask_operators(change: Change, plan: Plan, clock: Clock, environ: Mapping[str, str]) -> None:
    """Ask the operators of a job, and note what they say; returns when all are content or the attempt is over."""
    if not prechecks.waiting(change(_as_it_is)):
        return
    enabled = [op for op in plan.pre_check_ops if op.enabled]
    host: _Host | None = None
    try:
        host = await _Host.start(plan, enabled, environ)
        operators = await host.ready()
        await _ask_all(change, plan, clock, host, operators)
    except ConfigError as error:
        message = str(error)
        change(lambda state, now: prechecks.refused(state, message, now))
    except (EOFError, OSError, asyncio.TimeoutError) as error:
        told = f"health.pre_check_ops: the operator process exited or did not answer ({type(error).__name__})"
        change(lambda state, now: prechecks.refused(state, told, now))
    finally:
        if host is not None:
            await host.close()


def _as_it_is(state: State, _now: float) -> State:
    return state


async def _ask_all(change: Change, plan: Plan, clock: Clock, host: _Host, operators: Sequence[Operator]) -> None:
    until = may_ask_until(clock(), plan.pending_timeout)
    known: dict[int, str] = {}
    places = [index for index, one in enumerate(change(_as_it_is).prechecks.told) if one.state is not PreCheckState.BYPASSED]
    for number, (index, operator) in enumerate(zip(places, operators, strict=True)):
        while True:
            state = change(_as_it_is)
            if state.verdict is not None:
                return
            facts = prechecks.facts(state, known, clock())
            known.update({node["id"]: node["host"] for node in facts["nodes"]})
            last = is_last(operator, state.prechecks.told[index].tries, clock(), until)
            facts |= {"nproc_per_node": plan.nproc_per_node}
            answer = await asyncio.wait_for(host.ask(number, facts, last=last), max(1.0, until - clock()))
            if answer.trouble:
                log.warning("%s", answer.message)
            state = change(_noted(index, answer, last=last))
            if answer.fine or state.verdict is not None:
                break
            await asyncio.sleep(operator.interval)


def _noted(index: int, answer: Answer, *, last: bool) -> Callable[[State, float], State]:
    return lambda state, now: prechecks.answered(state, index, answer, now, last=last)


class _Host:
    """The process that has loaded the classes."""

    def __init__(self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process, self._reader, self._writer = process, reader, writer

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
        return cls(process, reader, writer)

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
        message: dict[str, Any] = json.loads(said)
        return message

    async def close(self) -> None:
        """End it now, with all that it started."""
        self._writer.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)
