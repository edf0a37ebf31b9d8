"""The actor of one node: it starts our agent as a process of its machine and reports the agent's output and its end.

It decides nothing. The agent runs in a process group of its own, below the same parent process (shim) that nodes of the local
backend have, and ends when this actor's process ends. Imports nothing of Ray, so that a test can call it without a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import stat
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rallypoint.backends.contract import ActionError
from rallypoint.backends.local import durable, proc
from rallypoint.backends.local.command_lines import host_command, mark, node_command
from rallypoint.backends.local.devices import DEVICES, visible
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.node import NodeFolder
from rallypoint.backends.local.units import ring
from rallypoint.wire import codec
from rallypoint.wire.bounds import PID, WHOLE, read_count
from rallypoint.wire.env import CONFIG_FILE, FUNCTION_FILE, HOST, LIFELINE, MACHINE, ROLES_SECRET_FILE, ROLES_TLS, UNSEEN
from rallypoint.wire.plan import Entry, Plan
from rallypoint.wire.private import private_folder
from rallypoint.wire.python import run_module
from rallypoint.wire.tls import CERTIFICATE
from rallypoint.wire.unit_files import EXIT, START, UNITS, UnitStart

__all__ = ["TLS", "TLS_OF_ROLES", "Host", "NodeSpec", "at_once"]

T = TypeVar("T")

#: Folders of certificates below that of a job: its own, and those of the job whose elastic role it is.
TLS, TLS_OF_ROLES = "tls", "roles-tls"

#: Seconds between two looks at the output files; the time doubles while the agent of a node writes nothing.
_LOOK, _LONGEST_LOOK = 0.25, 1.0

#: The most that one report holds of the output, in bytes.
_MOST = 1 << 20

#: Folders of nodes begin so; the number is the process of their actor.
_PREFIX = "rp-"


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One incarnation of a node, as the ledger gives it to its actor. `files` are files of the job by name; some are secret.

    `group` is the name of a group of instances of simple roles, where the node is their host.
    """

    name: str
    uid: str
    attempt: int
    node: int
    incarnation: int
    unseen: int = 0
    host: str = ""
    machine: str = ""
    tls: bool = False
    group: str = ""
    files: dict[str, str] = field(default_factory=dict, repr=False)


class Host:
    """One node on this machine. `call` calls what blocks."""

    def __init__(self, *, call: Callable[..., Awaitable[Any]] = asyncio.to_thread) -> None:
        self._call = call
        self._folder: JobFolder | None = None
        self._node: NodeFolder | None = None
        self._ended = asyncio.Event()
        self._look, self._longest_look = _LOOK, _LOOK

    async def start(self, spec: NodeSpec) -> dict[str, Any]:
        """Start the agent unless it was started before; return `{}`, or what failed as `reason` and `fatal`."""
        if self._node is not None:
            return {}
        try:
            node = await self._call(self._start, spec)
        except ActionError as error:
            return {"reason": str(error), "fatal": error.fatal}
        except OSError as error:
            return {"reason": f"{error.filename or 'node'}: {error.strerror}", "fatal": False}
        self._node = node
        if not spec.group:  # the ends of the instances of a group are found by these looks, and must be found soon
            self._longest_look = _LONGEST_LOOK
        self._follow(node)
        return {}

    def _start(self, spec: NodeSpec) -> NodeFolder:
        me = os.getpid()
        lifeline = f"{me} {proc.start_ticks(me)}"
        root = Path(tempfile.gettempdir())
        remove_stale(root)
        path = new_folder(root, spec, lifeline)
        folder = JobFolder(path=path)
        _write(path, {name: _plan(text) if name == folder.plan.name else text for name, text in spec.files.items()})
        if not spec.group:
            record = {"uid": spec.uid, "attempt": spec.attempt, "phase": "Running", "deletion": False}
            durable.write_text(str(folder.record), codec.dumps(record))
        node = _node(folder, spec)
        environment = {
            **os.environ,
            LIFELINE: lifeline,
            MACHINE: spec.machine,
            FUNCTION_FILE: str(folder.function),
            **({UNSEEN: str(spec.unseen)} if spec.unseen else {}),
            **_roles(folder, spec),
        }
        who = ("host", spec.group, spec.incarnation) if spec.group else (spec.attempt, spec.node, spec.incarnation)
        node.start(
            _command(folder, node, spec),
            record=folder.record,
            attempt=spec.attempt,
            mark=mark(spec.uid, *who),
            environment=environment,
        )
        self._folder = folder
        return node

    def _follow(self, node: NodeFolder) -> None:
        """Have the end of the agent's parent process known at once."""
        shim = node.shim()
        handle = None if shim is None else shim.open()
        if handle is None:
            self._ended.set()
            return
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            self._ended.set()

        loop.add_reader(handle, ended)

    async def news(self, offsets: dict[str, int], timeout: float) -> dict[str, Any]:
        """Return the node as it is (`seen`) and what its files have beyond `offsets`, at the latest after `timeout` seconds.

        `over` says that the node has ended and that no more output follows.
        """
        node = self._node
        if node is None:
            return {"seen": None, "chunks": [], "over": False}
        until = asyncio.get_running_loop().time() + timeout
        while True:
            ended = self._ended.is_set()
            chunks = await self._call(_chunks, node.path, offsets)
            if chunks:
                self._look = _LOOK
            left = until - asyncio.get_running_loop().time()
            if chunks or ended or left <= 0:
                break
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ended.wait(), min(self._look, left))
            self._look = min(2 * self._look, self._longest_look)
        seen = await self._call(node.look)
        return {"seen": seen, "chunks": chunks, "over": ended and not chunks and (seen is None or not seen.present)}

    async def endpoint(self, text: str) -> None:
        """Store the coordinator's address where the agent reads it."""
        if self._folder is not None:
            await self._call(durable.write_text, str(self._folder.endpoint), text)

    async def renew(self, files: dict[str, str]) -> None:
        """Replace certificates, by their names below the folder of the job; the agent reads them within seconds."""
        if self._folder is not None:
            await self._call(_write, self._folder.path, files)

    async def order(self, record: str, files: dict[str, str]) -> bool:
        """Store what is to run and to end, by the record of now, and have the host look; False before the host was started."""
        if self._folder is None or self._node is None:
            return False
        await self._call(_store, self._folder, self._node, record, files)
        return True

    async def end(self, *, force: bool) -> None:
        """Request the end of the agent, or end it at once."""
        if self._node is not None:
            await self._call(self._node.end, force=force)

    async def close(self) -> None:
        """Delete the node's folder. The agent has ended."""
        if self._folder is not None:
            await self._call(shutil.rmtree, self._folder.path, ignore_errors=True)


async def at_once(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call what blocks in the thread of the event loop."""
    return function(*arguments, **named)


def _node(folder: JobFolder, spec: NodeSpec) -> NodeFolder:
    return folder.host(spec.group, spec.incarnation) if spec.group else folder.node(spec.node, spec.attempt, spec.incarnation)


def _command(folder: JobFolder, node: NodeFolder, spec: NodeSpec) -> tuple[str, ...]:
    agent = run_module("rallypoint.agent")
    if spec.group:
        return host_command(agent, folder, uid=spec.uid, folder=node.path)
    command = node_command(agent, folder, attempt=spec.attempt, node=spec.node, incarnation=spec.incarnation, tls=spec.tls)
    return (*command[:-1], spec.host)  # the last two words are `--host` and the address


def _roles(folder: JobFolder, spec: NodeSpec) -> dict[str, str]:
    """Return what instances of roles know of this machine."""
    if folder.roles_secret.name not in spec.files:
        return {}
    config = {CONFIG_FILE: str(folder.config)} if folder.config.exists() else {}
    tls = TLS if spec.group else TLS_OF_ROLES
    secured = {ROLES_TLS: str(folder.path / tls)} if f"{tls}/{CERTIFICATE}" in spec.files else {}
    return {ROLES_SECRET_FILE: str(folder.roles_secret), HOST: spec.host, **config, **secured}


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write files below a folder in this order: until a certificate follows its key, processes keep what they have read."""
    for name, text in files.items():
        if "/" in name:
            private_folder((folder / name).parent)
        durable.write_text(str(folder / name), text)


def _store(folder: JobFolder, host: NodeFolder, record: str, files: dict[str, str]) -> None:
    """Write the files of orders below a host. The devices of an instance become those that this actor has."""
    if record:
        durable.write_text(str(folder.record), record)
    for name, text in files.items():
        path = host.path / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable.write_text(str(path), _own_devices(text) if path.name == START else text)
    ring(host, os.geteuid())


def _own_devices(text: str) -> str:
    order = codec.loads(UnitStart, text)
    numbers = [int(number) for number in order.env.get(DEVICES, "").split(",") if number.isdigit()]
    if not numbers:
        return text
    return codec.dumps(dataclasses.replace(order, env={**order.env, **visible(numbers, os.environ)}))


def _plan(text: str) -> str:
    """Return the plan with absolute paths of scripts and their folders: a relative one starts at this actor's own folder."""
    plan = codec.loads(Plan, text)
    roles = tuple({**item, "plan": codec.to_json(_placed(codec.from_json(Plan, item["plan"])))} for item in plan.roles)
    return codec.dumps(dataclasses.replace(_placed(plan), roles=roles))


def _placed(plan: Plan) -> Plan:
    # With setup commands, which may change the folder, the path of a script starts where these commands end.
    script = plan.entry is Entry.SCRIPT and not plan.setup
    return dataclasses.replace(
        plan, workdir=_absolute(plan.workdir), entrypoint=_absolute(plan.entrypoint) if script else plan.entrypoint
    )


def _absolute(workdir: str) -> str:
    return str(Path.cwd() / workdir)


def _chunks(folder: Path, offsets: dict[str, int]) -> list[tuple[str, int, bytes]]:
    """Return new parts of the node's output files: name below its folder, offset, bytes."""
    found, left = [], _MOST
    # The ends of instances were looked for before their output is read: with an end comes all output before it.
    ends = sorted(folder.glob(f"{UNITS}/*/*/{EXIT}"))
    output = (*folder.glob("logs/round-*/rank-*"), *folder.glob(f"{UNITS}/*/*/rank-*"))
    for path in (folder / "agent.log", *sorted(output), *ends):
        name = str(path.relative_to(folder))
        offset = offsets.get(name, 0)
        try:
            if path.stat().st_size <= offset or left <= 0:
                continue
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(left)
        except OSError:
            continue
        found.append((name, offset, data))
        left -= len(data)
    return found


def new_folder(root: Path, spec: NodeSpec, lifeline: str) -> Path:
    """Create the folder of a node, with mode 0700 and a name that another user of the machine cannot create before.

    Args:
        lifeline: process id and start time of the actor, as two numbers.
    """
    parts = (spec.uid, spec.node, spec.attempt, spec.incarnation, *lifeline.split())
    return Path(tempfile.mkdtemp(prefix=_PREFIX + "".join(f"{part}-" for part in parts), dir=root))


def remove_stale(root: Path) -> None:
    """Delete folders of nodes on this machine whose actor was killed. An entry that another user made never fails a start."""
    for path in root.glob(f"{_PREFIX}*-*-*-*-*-*-*"):
        *_, pid, ticks, _ = path.name.split("-")
        number, started = read_count(pid, PID[1]), read_count(ticks, WHOLE[1])
        if number is not None and started is not None and proc.start_ticks(number) != started and _is_own_folder(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_own_folder(path: Path) -> bool:
    try:
        found = path.lstat()
    except OSError:  # removed at this moment
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
