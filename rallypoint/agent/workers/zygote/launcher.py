"""Starting a process in the fastest way: as a standby that receives its command, or else as a program.

Here is also which commands a fork can become, and which modules a script imports, read from its text: a node that joins can
import them before it has run the script once.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rallypoint.agent.workers.reaper import Ended, Reaper
from rallypoint.agent.workers.spawner import Command, Spawner
from rallypoint.agent.workers.worker_env import STARTUP
from rallypoint.agent.workers.zygote.preload import PLACE_VARIABLES
from rallypoint.agent.workers.zygote.program import What, parse
from rallypoint.agent.workers.zygote.standby import StandbyLostError
from rallypoint.agent.workers.zygote.standby_pool import StandbyPool, Wanted, declared
from rallypoint.wire import env
from rallypoint.wire.plan import Plan

__all__ = ["Launcher", "birth_variables", "imported_by", "imports_of", "place_of", "refusal", "standby_launcher", "zygote_env"]

log = logging.getLogger("rallypoint.zygote")

#: Standbys that are tried for one worker; after that the reason is not theirs.
_TRIES = 2

#: Variables that are read once, when libraries are loaded or imported. TORCHELASTIC_* is read later.
_BIRTH = re.compile(
    r"^(LD_|PYTHON|CUDA_|OMP_|MKL_|KMP_|GOMP_|OPENBLAS_|NUMEXPR_|NVIDIA_|TORCH(?!ELASTIC_)|PYTORCH_|TRITON_|HIP_|ROCR_|MALLOC_|GLIBC_"
    r"|ASCEND_|NPU_|HF_|TF_|XLA_|PATH$|HOME$|TMPDIR$|XDG_CACHE_HOME$|LANG$|LC_|TZ$)"
)

#: Bytes of a script that is read; names that are taken from one, and characters of each: together they fit into one packet.
_SIZE, _NAMES, _LENGTH = 1 << 20, 400, 120


class Launcher:
    """Starts the workers of a node. Without a `pool` of standbys every one is a program.

    `own` starts programs of ours, to which it does not matter with which variables their modules were imported.
    """

    def __init__(self, spawner: Spawner, pool: StandbyPool | None, *, startup: str = "", names: str = "") -> None:
        self._spawner, self._pool, self._startup, self._names = spawner, pool, startup, names
        self._said = False
        self._forks = True
        self.own = _Own(self)

    def when_ready(self, told: Callable[[], None]) -> None:
        """Call `told` whenever forks can be had."""
        if self._pool is not None:
            self._pool.when_ready(told)

    def when_prepared(self, told: Callable[[], None]) -> None:
        """Call `told` whenever `prepared` may have changed."""
        if self._pool is not None:
            self._pool.when_prepared(told)

    def close(self) -> None:
        """End what waits to become a worker."""
        if self._pool is not None:
            self._pool.close()

    @property
    def prepared(self) -> bool:
        """Whether nothing is left that could be prepared for workers: standbys are ready, or they are started as programs."""
        return not self._forks or self._pool is None or self._pool.prepared

    def prepare(self, command: Command) -> None:
        """Start the zygote before any worker, for workers that are started by `command`; a later call changes nothing."""
        pool = self._pool
        if pool is None or pool.given_up or pool.environment:
            return
        reason = refusal(command.argv, python=sys.executable)
        if reason:
            self._forks = False
            self._say(reason)
            return
        place = place_of(command.argv, command.cwd)
        pool.begin(zygote_env(self._with_names(command).env), place, imports=imported_by(command.argv, place))

    def _with_names(self, command: Command) -> Command:
        names = {env.MODULES_FILE: self._names} if self._names else {}
        return dataclasses.replace(command, env={**command.env, **names})

    async def spawn(self, command: Command, ended: Ended) -> int:
        """Start a worker and return the number of its process, which leads a session of its own.

        `ended` is called when it has ended. Raises `OSError` when it cannot be started. The first workers are programs: the
        zygote is started beside them, with the environment that they have.
        """
        pool = self._pool
        if pool is None or pool.given_up:
            return await self._spawner.spawn(command, ended)
        reason = refusal(command.argv, python=sys.executable)
        if reason:
            self._forks = False
            self._say(reason)
            return await self._spawner.spawn(command, ended)
        command = self._with_names(command)
        if birth_variables(command.env) != birth_variables(pool.environment):
            if pool.environment:
                log.info(
                    "the agent restarts the preload process (zygote), because environment variables that affect imports have "
                    "changed"
                )
            pool.begin(zygote_env(command.env), place_of(command.argv, command.cwd))
            return await self._spawner.spawn(command, ended)
        pid = await self.fork(command, ended, startup=self._startup)
        return await self._spawner.spawn(command, ended) if pid is None else pid

    async def fork(self, command: Command, ended: Ended, *, startup: str) -> int | None:
        """Start a process as a fork; None where none can be had. Raises `OSError` when the command cannot be started."""
        pool, slot = self._pool, int(command.env.get("LOCAL_RANK", "0"))
        for _ in range(_TRIES):
            standby = None if pool is None else await pool.take(slot)
            if pool is None or standby is None:
                break
            pool.refill_soon()
            try:
                return await standby.start(command, startup, ended)
            except StandbyLostError as error:
                log.warning("standby pid=%d failed: %s", standby.pid, error)
        return None

    def _say(self, reason: str) -> None:
        if not self._said:
            log.info("the agent keeps no standby workers (%s); each worker starts as a new process", reason)
        self._said = True

    async def program(self, command: Command, ended: Ended) -> int:
        """Start a process as a program."""
        return await self._spawner.spawn(command, ended)


class _Own:
    """Starts programs of ours as forks, where that can be."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    async def spawn(self, command: Command, ended: Ended) -> int:
        """See `Starter.spawn`."""
        pid = await self._launcher.fork(command, ended, startup="")
        return await self._launcher.program(command, ended) if pid is None else pid


def standby_launcher(
    plan: Plan,
    spawner: Spawner,
    reaper: Reaper,
    *,
    standbys: int,
    learned: Path,
    device: bool = False,
    base: Mapping[str, str] = os.environ,
) -> Launcher:
    """Return a launcher that keeps `standbys` forks ready (default: that of the plan); `base` is the agent's environment.

    `learned` and `device` are those of `Wanted`.
    """
    startup = os.path.join(STARTUP, "sitecustomize.py")  # noqa: PTH118
    wanted = Wanted(
        standbys=standbys if plan.workers.standbys is None else plan.workers.standbys,
        preload=declared((*plan.workers.preload, base.get(env.PRELOAD, ""))),
        learned=learned,
        device=device,
        startup=startup,
    )
    return Launcher(spawner, StandbyPool(spawner, reaper, wanted), startup=startup, names=str(learned))


def refusal(argv: Sequence[str], *, python: str) -> str:
    """Return why a command must be started as a program of its own; "" when a fork can become it.

    `python` is the interpreter of the zygote.
    """
    if argv[0] != python:
        return f"{argv[0]} is not this Python ({python})"
    if parse(argv) is None:
        return f"{' '.join(argv[:3])}: has options for the Python interpreter"
    return ""


def zygote_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a zygote whose forks start in `env`: without a place in the world."""
    return {name: value for name, value in env.items() if name not in PLACE_VARIABLES}


def birth_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter when modules are imported: a fork has those of its zygote, whatever it is told later."""
    return {name: value for name, value in env.items() if _BIRTH.match(name) and name not in PLACE_VARIABLES}


def place_of(argv: Sequence[str], cwd: str) -> str:
    """Return the folder that a program finds its own modules in (`sys.path[0]`); "" is where the agent is."""
    program = parse(argv)
    if program is not None and program.what is What.SCRIPT:
        return os.path.dirname(os.path.join(cwd, program.name))  # noqa: PTH118, PTH120  as text: it may be relative
    return cwd


def imported_by(argv: Sequence[str], place: str) -> tuple[str, ...]:
    """Return the modules that a Python command line imports at its top level; empty where that cannot be read.

    `place` is the folder of the script's own modules.
    """
    program = parse(argv)
    if program is None or program.what is What.CODE:
        return imports_of(program.name) if program is not None else ()
    if program.what is What.SCRIPT:
        path: Path | None = Path(place, Path(program.name).name)
    else:
        path = _module_file(program.name, None if program.ours else place)
    if path is None:
        return ()
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return imports_of(file.read(_SIZE))
    except OSError:  # the start of the worker reports the error
        return ()


def imports_of(text: str) -> tuple[str, ...]:
    """Return the modules that the text of a program imports at its top level, each once, in order."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    names = (name for statement in _statements(tree.body) for name in _names(statement) if len(name) <= _LENGTH)
    return tuple(dict.fromkeys(names))[:_NAMES]


def _module_file(name: str, place: str | None) -> Path | None:
    beside = Path(place or "", *name.split("."))
    for path in (beside.with_suffix(".py"), beside / "__main__.py") if place is not None else ():
        if path.is_file():
            return path
    with contextlib.suppress(ImportError, ValueError):
        top = importlib.util.find_spec(name.partition(".")[0])  # imports nothing
        for folder in (top.submodule_search_locations or ()) if top is not None else ():
            inside = Path(folder, *name.split(".")[1:])
            found = next((path for path in (inside.with_suffix(".py"), inside / "__main__.py") if path.is_file()), None)
            if found is not None:
                return found
    return None


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield what is run whenever the program is, without conditions; an import that is tried may fail."""
    for statement in body:
        if isinstance(statement, ast.Try):
            yield from _statements(statement.body)
        else:
            yield statement


def _names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        yield statement.module
