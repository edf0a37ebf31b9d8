"""What is prepared once per node before its first round: the setup commands of the plan, and folders for caches of libraries.

The commands are the lines of one shell script, as they are in the pods of a training operator: what one exports or where one
goes holds for the next, and in the end for the workers. So the shell's last deed is to write down the folder and the variables
that it has then. The first line that fails ends the script, and with it the node.

Where there is no home that libraries could write their caches into, variables name other folders.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.linux import die_with_parent
from rallypoint.agent.signals import SIGNALS, signal_group
from rallypoint.wire import env
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.exits import Exit, describe_exit
from rallypoint.wire.plan import Plan

__all__ = [
    "CACHES",
    "SetupError",
    "Surroundings",
    "cache_variables",
    "home_is_writable",
    "run_setup",
    "setup_env",
    "setup_script",
]

log = logging.getLogger("rallypoint.setup")

#: The port that scripts take for their own rendezvous where nobody names one.
_MASTER_PORT = "29500"

#: Characters of a command that its error shows.
_SHOWN = 200

_WRITE_DOWN = "import json, os, sys; json.dump([os.getcwd(), dict(os.environ)], open(sys.argv[1], 'w'))"

#: Variables of the shell itself.
_OF_THE_SHELL = ("_", "SHLVL", "PWD", "OLDPWD")

#: Codes that mean something else when an agent ends with them.
_TAKEN = frozenset({Exit.OK, Exit.STALE, Exit.LOST_CONTACT, Exit.ELSEWHERE, Exit.ORPHANED, Exit.CONFIG})

#: The variable of each cache, and its folder beside the others.
CACHES: Mapping[str, str] = {
    "XDG_CACHE_HOME": ".",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
}


class SetupError(RallypointError):
    """A setup command failed, or was ended: the agent ends with `code`."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the workers start from: a folder and the whole environment."""

    folder: str
    environment: Mapping[str, str]


def setup_env(base: Mapping[str, str], plan: Plan, *, node: int, host: str) -> dict[str, str]:
    """Return the environment of the setup commands: `base`, the place of the node as a training operator tells it, the plan's.

    Where node 0 is, only node 0 knows by itself; the others are told MASTER_ADDR where `base` or the plan has it: the pods of a
    cluster have a name for it.
    """
    place = {"WORLD_SIZE": str(plan.max_nodes), "RANK": str(node)}
    master = {"MASTER_PORT": _MASTER_PORT, **({"MASTER_ADDR": host} if node == 0 else {})}
    result = {**master, **base, **place, **plan.env}
    result.pop(env.SECRET, None)
    return result


def setup_script(plan: Plan, *, step: Path, left: Path) -> str:
    """Return the script: before each command its number is written to `step`, and at the end what the shell has to `left`."""
    lines = [f"echo {number} > {shlex.quote(str(step))}\n{command}" for number, command in enumerate(plan.setup, start=1)]
    last = shlex.join((sys.executable, "-I", "-S", "-c", _WRITE_DOWN, str(left)))
    return "\n".join((*lines, last))


async def run_setup(plan: Plan, base: Mapping[str, str], *, node: int, host: str, folder: Path) -> Surroundings:
    """Run the setup commands and return what the workers start from; their output goes where the agent's goes.

    Raises `SetupError` when one fails or the agent is told to end meanwhile, `ConfigError` when there is no shell, or no room
    in `folder`. What a command leaves running in the background is left alone here.
    """
    try:
        scratch = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="setup-", dir=folder))
        try:
            step, left = scratch / "step", scratch / "left"
            log.info("running %d setup commands", len(plan.setup))
            variables = setup_env(base, plan, node=node, host=host)
            code, signalled = await _run(plan, setup_script(plan, step=step, left=left), variables)
            return await asyncio.to_thread(_result, plan, code, signalled, step=step, left=left)
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"cannot run the setup commands: {error}") from error


async def _run(plan: Plan, script: str, variables: Mapping[str, str]) -> tuple[int, int]:
    """Return how the shell ended, and the signal that the agent got meanwhile, 0 for none."""
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    with _signals(told):
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-e", "-c", script),
            env=variables,
            cwd=plan.workdir or None,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        ended = asyncio.ensure_future(process.wait())
        await asyncio.wait({ended, told}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            signal_group(process.pid, signal.SIGTERM)
            await asyncio.wait({ended}, timeout=plan.workers.stop_grace)
            signal_group(process.pid, signal.SIGKILL)
        code = await ended
    if code != 0:
        signal_group(process.pid, signal.SIGKILL)
    return code, told.result() if told.done() else 0


@contextlib.contextmanager
def _signals(told: asyncio.Future[int]) -> Iterator[None]:
    loop = asyncio.get_running_loop()

    def note(number: int) -> None:
        if not told.done():
            told.set_result(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, note, number)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _result(plan: Plan, code: int, signalled: int, *, step: Path, left: Path) -> Surroundings:
    if signalled:
        raise SetupError(
            f"the agent received the signal {signal.Signals(signalled).name} while running the setup commands", 128 + signalled
        )
    if code == 0 and left.exists():
        folder, variables = json.loads(left.read_text(encoding="utf-8"))
        return Surroundings(folder=folder, environment={k: v for k, v in variables.items() if k not in _OF_THE_SHELL})
    number = int(step.read_text(encoding="ascii")) if step.exists() else 1
    command = plan.setup[number - 1]
    shown = command if len(command) <= _SHOWN else command[: _SHOWN - 1] + "…"
    how = f"was {describe_exit(code)}" if code < 0 else describe_exit(code)
    if code == 0:
        how = "ended the shell before the last command"
    reason = f"setup command {number} of {len(plan.setup)} {how}: {shown}"
    told = 128 - code if code < 0 else code
    raise SetupError(reason, int(Exit.JOB_FAILED) if told in _TAKEN else told)


def home_is_writable(base: Mapping[str, str]) -> bool:
    """Return whether HOME names a folder in which files can be made."""
    home = base.get("HOME", "")
    return bool(home) and Path(home).is_dir() and os.access(home, os.W_OK | os.X_OK)


def cache_variables(base: Mapping[str, str], folder: Path, *, writable: bool) -> dict[str, str]:
    """Return what must be added to `base` so that each cache can be written: nothing where the home is `writable`.

    Torch even fails to name its own default in a container whose user has no name.
    """
    if writable:
        return {}
    return {name: str(folder / place) for name, place in CACHES.items() if not base.get(name)}
