"""A host of instances: starts what its folder asks for, ends what it asks to end, and writes down how each one ended.

It decides nothing: the conductor (supervision/conductor.py) decides which life of which instance runs. The host reads the
stored record before it starts one, so a supervisor that was stopped for a while starts nothing that is not wanted any more.
A zygote for each role has imported torch (docs/guides/warm-starts.md), so the next life of an instance is a fork.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.files import read_json, read_plan
from rallypoint.agent.linux import become_subreaper, children
from rallypoint.agent.setup import SetupError, cache_variables, home_is_writable, run_setup
from rallypoint.agent.signals import signal_group
from rallypoint.agent.workers.logs import STDERR, STDOUT, OpenLogs, RankLogs, Streams, claim_logs, open_logs
from rallypoint.agent.workers.reaper import Reaper
from rallypoint.agent.workers.spawner import Command, Spawner
from rallypoint.agent.workers.tee import DEFAULT_PREFIX, Tail, Tee, prefix_of
from rallypoint.agent.workers.worker_env import STARTUP, worker_argv
from rallypoint.agent.workers.zygote.launcher import Launcher, standby_launcher
from rallypoint.supervision.conductor import wants
from rallypoint.supervision.record import JobRecord
from rallypoint.supervision.role_records import UnitKey
from rallypoint.wire import codec, env
from rallypoint.wire.exits import describe_exit
from rallypoint.wire.plan import Plan
from rallypoint.wire.private import replace_file
from rallypoint.wire.result import read_result
from rallypoint.wire.role_plans import RolePlan, role_plan
from rallypoint.wire.tail import Bounds, last_lines
from rallypoint.wire.unit_files import (
    BELL,
    EXIT,
    HOST,
    KILL,
    RESULT,
    START,
    STARTED,
    STOP,
    UNITS,
    HostReady,
    UnitExit,
    UnitStart,
    UnitStarted,
    life_name,
    unit_logs,
    unit_name,
)

__all__ = ["Host", "host"]

log = logging.getLogger("rallypoint.host")

#: Seconds between two looks at the folder where no signal came.
_LOOK = 1.0

#: Seconds between two looks at a process group that is being ended.
_RECHECK = 0.01

#: Of the last line of an instance.
_LAST = Bounds(lines=5, size=8192, width=500)


@dataclass(kw_only=True)
class _Unit:
    """One life of an instance."""

    start: UnitStart
    folder: Path
    task: asyncio.Task[None] | None = None
    pid: int = 0
    logs: RankLogs | None = None
    tee: Tee = field(default_factory=Tee)
    ended: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    stopped: bool = False
    killed: bool = False
    removed: bool = False  #: it still ran when its host was asked to end


@dataclass(kw_only=True)
class _Role:
    """What is prepared once for all instances of a role."""

    role: RolePlan
    plan: Plan
    launcher: Launcher
    base: dict[str, str]
    ready: asyncio.Task[None] | None = None


class Host:
    """Runs the instances of one folder. `run` once, in the main thread."""

    def __init__(self, *, plan: Path, record: Path, folder: Path, uid: str) -> None:
        self._plan_file, self._plan = plan, read_plan(plan)
        self._record, self._folder, self._uid = record, folder, uid
        become_subreaper()
        self._reaper = Reaper()
        self._spawner = Spawner(self._reaper)
        self._units: dict[Path, _Unit] = {}
        self._roles: dict[str, _Role] = {}
        self._bell, self._leaving = asyncio.Event(), False

    async def run(self) -> int:
        """Serve until it is told to end, and all instances have ended; return the exit code."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.Signals[BELL], self._bell.set)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leave)
        replace_file(self._folder / HOST, codec.dumps(HostReady(**_process(os.getpid()))))
        try:
            while not (self._leaving and not self._running()):
                self._bell.clear()
                self._look()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._bell.wait(), _LOOK)
        finally:
            await self._close()
        return 0

    def _leave(self) -> None:
        """Ask all instances to end, and at the second time end them by force."""
        for unit in self._running():
            unit.removed = unit.removed or not (unit.stopped or unit.killed or unit.ended.done())
            unit.stopped, again = True, self._leaving
            signal_group(unit.pid, signal.SIGKILL if again else signal.SIGTERM)
        self._leaving = True
        self._bell.set()

    def _running(self) -> list[_Unit]:
        return [unit for unit in self._units.values() if unit.task is not None and not unit.task.done()]

    def _look(self) -> None:
        """Start what is asked for, and pass on the wishes for an end."""
        for path in sorted(self._folder.glob(f"{UNITS}/*/*/{START}")):
            folder = path.parent
            if folder not in self._units and not self._leaving and not (folder / EXIT).exists():
                self._begin(folder)
        for unit in self._running():
            if not unit.stopped and (unit.folder / STOP).exists():
                unit.stopped = True
                signal_group(unit.pid, signal.SIGTERM)
            if not unit.killed and (unit.folder / KILL).exists():
                unit.stopped = unit.killed = True
                signal_group(unit.pid, signal.SIGKILL)

    def _begin(self, folder: Path) -> None:
        try:
            start = read_json(UnitStart, folder / START)
        except ConfigError as error:
            log.warning("%s", error)
            return
        if start is None:
            return
        unit = self._units[folder] = _Unit(start=start, folder=folder)
        unit.task = asyncio.create_task(self._live(unit), name=f"{start.role} {start.index}")
        unit.task.add_done_callback(lambda task: self._over(unit, task))

    def _over(self, unit: _Unit, task: asyncio.Task[None]) -> None:
        self._bell.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("%s %d: %s", unit.start.role, unit.start.index, task.exception())
            _ended(unit, UnitExit(exit_code=None, reason=f"its host failed: {task.exception()}", ended_at=time.time()))

    # --- One life of an instance -------------------------------------------------------------------------------------------

    async def _live(self, unit: _Unit) -> None:
        start, name = unit.start, f"{unit.start.role} {unit.start.index}"
        if not self._wanted(start):
            _ended(unit, UnitExit(exit_code=None, reason=f"{name} was not started: no longer wanted", ended_at=time.time()))
            return
        role = self._role(start.role)
        try:
            await self._prepared(role)
            await self._started(unit, role)
        except (ConfigError, SetupError, OSError) as error:
            code = error.code if isinstance(error, SetupError) else 127
            log.warning("cannot start instance %s of a simple role: %s", name, error)
            _ended(unit, UnitExit(exit_code=code, reason=f"{name} cannot be started: {error}", ended_at=time.time()))
            return
        code = await unit.ended
        ended_at = time.time()
        await self._emptied(unit)
        await unit.tee.finish()
        said = "" if code == 0 else _last_words(unit)
        how = describe_exit(code) if code >= 0 else f"was {describe_exit(code)}"
        reason = f"{name} {how}{f': {said}' if said else ''}"
        log.info("%s", reason)
        if unit.removed:
            # It is lost with its host, whatever its exit code: this was no end of its own, and no place for its next life.
            log.info("instance %s ended, because the supervisor stops this process, which has started the instance", name)
            return
        told = UnitExit(exit_code=code, reason=reason, ended_at=ended_at, error=said, result=_result(unit))
        _ended(unit, told)

    def _wanted(self, start: UnitStart) -> bool:
        """Read the stored record: whoever wrote `start.json` may have slept since."""
        try:
            record = read_json(JobRecord, self._record)
        except ConfigError as error:
            log.warning("%s", error)
            return False
        if record is None or record.uid != self._uid or record.conductor is None:
            return False
        fields = {name: getattr(start, name) for name in ("role", "attempt", "reset", "index", "incarnation")}
        return wants(record.conductor, UnitKey(**fields))

    def _role(self, name: str) -> _Role:
        if name not in self._roles:
            role = role_plan(self._plan, name)
            plan = role.read()
            again = self._plan.budgets.node_replacements > 0 or role.on_failure == "role"
            launcher = _warm_launcher(plan, self._folder / f"modules-{name}.txt", self._spawner, self._reaper, again=again)
            self._roles[name] = _Role(role=role, plan=plan, launcher=launcher, base=_base(os.environ))
        return self._roles[name]

    async def _prepared(self, role: _Role) -> None:
        """Run the setup commands of a role once; raises `SetupError`."""
        if not role.plan.setup:
            return
        if role.ready is None or (role.ready.done() and role.ready.exception() is not None):
            role.ready = asyncio.create_task(self._set_up(role))
        await asyncio.shield(role.ready)

    async def _set_up(self, role: _Role) -> None:
        around = await run_setup(role.plan, role.base, node=0, host="127.0.0.1", folder=self._folder)
        role.base = dict(around.environment)
        role.plan = dataclasses.replace(role.plan, workdir=around.folder, env={})

    async def _started(self, unit: _Unit, role: _Role) -> None:
        local_rank = int(unit.start.env.get("LOCAL_RANK", "0"))
        logs = open_logs(self._logs_of(unit, role), unit.start.index, Streams.from_plan(role.plan).filed(local_rank))
        unit.logs = logs.paths
        for tail in _console(unit, role, local_rank):
            unit.tee.add(tail)
        try:
            if _was_stopped(unit):
                raise ConfigError("the supervisor stopped this instance before its process started")
            command = _command(unit, role, logs)
            unit.pid = await role.launcher.spawn(command, unit.ended.set_result)
        finally:
            logs.close()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended already
            replace_file(unit.folder / STARTED, codec.dumps(UnitStarted(**_process(unit.pid))))
        if _was_stopped(unit):  # while it was born
            signal_group(unit.pid, signal.SIGKILL if unit.killed else signal.SIGTERM)
        role.launcher.prepare(command)

    def _logs_of(self, unit: _Unit, role: _Role) -> Path:
        """Return the folder of the output of one life: its own, or below the `log_dir` of the job."""
        start = unit.start
        if not role.plan.logs.log_dir:
            return unit.folder
        life = life_name(start.attempt, start.reset, start.incarnation)
        folder = unit_logs(role.plan.logs.log_dir, self._plan.name) / unit_name(start.role, start.index) / life
        return claim_logs(role.plan.logs.log_dir, folder)

    async def _emptied(self, unit: _Unit) -> None:
        """End what an instance has left in its process group; return when it is empty."""
        while signal_group(unit.pid, signal.SIGKILL):  # noqa: ASYNC110  no event signals the end of a process group
            await asyncio.sleep(_RECHECK)

    async def _close(self) -> None:
        for unit in self._running():
            signal_group(unit.pid, signal.SIGKILL)
            if unit.task is not None:
                unit.task.cancel()
        for role in self._roles.values():
            role.launcher.close()
        for pid in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reaper.close()
        self._spawner.close()


def _base(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of this process without the key of another job, in whose worker this host may run."""
    return {name: value for name, value in environ.items() if name != env.EXCHANGE_KEY}


def _was_stopped(unit: _Unit) -> bool:
    return unit.stopped or unit.killed


def _command(unit: _Unit, role: _Role, logs: OpenLogs) -> Any:
    told = {**unit.start.env, "TORCHELASTIC_ERROR_FILE": str(logs.paths.error_file)}
    return _instance_command(role.plan, role.base, told, result=unit.folder / RESULT, streams=(logs.out, logs.err))


def _console(unit: _Unit, role: _Role, local_rank: int) -> Iterator[Tail]:
    """Yield what is copied to the log of the host (`logs.tee`)."""
    teed, logs = Streams.from_plan(role.plan).teed(local_rank), unit.logs
    if logs is None:
        return
    prefix = prefix_of(DEFAULT_PREFIX, role=role.role.name, rank=unit.start.index, local_rank=unit.start.index)
    for bit, path, to in ((STDOUT, logs.out, sys.stdout), (STDERR, logs.err, sys.stderr)):
        if teed & bit and path is not None:
            yield Tail(path=path, prefix=prefix, to=to.buffer)


def _process(pid: int) -> dict[str, Any]:
    """Return what names one process for ever."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return {"pid": pid, "start_ticks": int(fields[19]), "boot_id": boot}


def _last_words(unit: _Unit) -> str:
    """Return the last line that an instance wrote to stderr."""
    path = None if unit.logs is None else unit.logs.err
    if path is None:
        return ""
    with contextlib.suppress(OSError):
        with path.open("rb") as file:
            lines = [str(line) for line in last_lines(file, _LAST)]
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""


def _result(unit: _Unit) -> Any:
    with contextlib.suppress(OSError, codec.WireError):
        return read_result((unit.folder / RESULT).read_bytes())
    return None


def _ended(unit: _Unit, told: UnitExit) -> None:
    replace_file(unit.folder / EXIT, codec.dumps(told))


def _instance_command(
    plan: Plan, base: Mapping[str, str], told: Mapping[str, str], *, result: Path, streams: tuple[int | None, int | None]
) -> Command:
    """Return the command of an instance: `base` is the environment of its host, `told` the variables from the supervisor."""
    variables = {**base, **plan.env}
    variables.pop(env.SECRET, None)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (STARTUP, variables.get("PYTHONPATH"))))
    variables.update(told)
    variables[env.RESULT_FILE] = str(result)
    if plan.checkpoint_dir:
        variables[env.CHECKPOINT_DIR] = plan.checkpoint_dir
    argv = worker_argv(plan, int(told.get("LOCAL_RANK", "0")), variables)
    out, err = streams
    return Command(argv=argv, env=variables, cwd=plan.workdir, stdout=out, stderr=err)


def _warm_launcher(plan: Plan, learned: Path, spawner: Spawner, reaper: Reaper, *, again: bool) -> Launcher:
    """Return what starts the instances of a role; without a zygote where none is started `again`."""
    if not again or plan.workers.start_method in ("spawn", "forkserver"):
        return Launcher(spawner, None)
    return standby_launcher(plan, spawner, reaper, standbys=1, learned=learned)


def host(args: argparse.Namespace) -> int:
    """Run the host of a group of instances to its end and return the exit code."""
    os.environ.update(cache_variables(os.environ, args.dir / "cache", writable=home_is_writable(os.environ)))

    async def serve() -> int:
        return await Host(plan=args.plan, record=args.record_file, folder=args.dir, uid=args.uid).run()

    return asyncio.run(serve())
