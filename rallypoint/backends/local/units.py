"""The units of a job with roles on this machine: a host process for each group of instances, below a shim as every node is."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import hmac
import os
import signal
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.backends.contract import ActionError, Backend, Blueprint, LogLine, Tail, UnitBackend
from rallypoint.backends.local import durable, proc
from rallypoint.backends.local.command_lines import HOST as ADDRESS
from rallypoint.backends.local.command_lines import host_command, mark
from rallypoint.backends.local.devices import assigned, visible
from rallypoint.backends.local.files import UnreadableError, pinned, read_bytes, read_optional, telling
from rallypoint.backends.local.layout import FOREIGN, JobFolder, listed
from rallypoint.backends.local.logs import UnitLogReader
from rallypoint.backends.local.node import NodeFolder
from rallypoint.backends.uninterrupted import in_thread
from rallypoint.supervision.record import JobRecord
from rallypoint.supervision.role_records import UnitKey, UnitSeen, UnitState
from rallypoint.wire import codec, env
from rallypoint.wire.bounds import read_count
from rallypoint.wire.plan import Plan
from rallypoint.wire.role_plans import RolePlan, place_env, role_plan, role_plans, roles_env
from rallypoint.wire.unit_files import (
    BELL,
    EXIT,
    HOST,
    KILL,
    START,
    STOP,
    UNITS,
    HostReady,
    UnitExit,
    UnitStart,
    life_name,
    read_life,
    unit_name,
)

if TYPE_CHECKING:
    from rallypoint.job import ElasticJob
    from rallypoint.supervision.observation import NodeSeen

__all__ = ["LocalUnits", "node_devices", "not_own", "prepare_roles", "ring"]

#: Seconds that a host without instances has to end before it is ended by force.
_HOST_GRACE = 10.0

#: How often the output of a role is looked at that is followed, in seconds.
_FOLLOW = 0.2

#: Ports that are given to simple roles as MASTER_PORT; nothing listens there before the role does.
_FIRST_PORT, _PORTS = 20_000, 12_000


class LocalUnits(UnitBackend):
    """Those of one job.

    Args:
        jobs: where the jobs of elastic roles are.
        folder: of the job.
        agent: what runs hosts.
        start_host: starts a host below a shim; it checks whose job this is.
        own_folders: read no log outside of the job's folder.
    """

    def __init__(
        self,
        jobs: Backend,
        folder: JobFolder,
        agent: Sequence[str],
        start_host: Callable[[JobRecord, NodeFolder, Sequence[str], str], None],
        *,
        own_folders: bool = False,
    ) -> None:
        self.jobs, self._folder, self._agent, self._start_host = jobs, folder, tuple(agent), start_host
        self._own_folders = own_folders
        #: The user of the job, when it was first looked at.
        self._user: int | None = None
        #: Lives that ended are what they are for ever, and so are hosts.
        self._ended: dict[Path, UnitSeen] = {}
        self._hosts: dict[Path, NodeSeen] = {}
        self._asked: dict[Path, float] = {}

    async def observe(self, record: JobRecord, plan: Plan) -> tuple[UnitSeen, ...]:
        """Read the folders of all hosts; see `UnitBackend.observe`."""
        return await in_thread(self._observe, {role.name: role for role in role_plans(plan)})

    def _observe(self, roles: Mapping[str, RolePlan]) -> tuple[UnitSeen, ...]:
        found: dict[UnitKey, UnitSeen] = {}
        with telling(self._folder.path):
            if self._user is None:
                self._user = self._folder.owner()
            for _, host in self._folder.hosts():
                seen = self._look(host)
                for key, folder in _lives(host, roles):
                    unit = self._ended.get(folder) or _unit(key, folder, seen)
                    if not unit.present and unit.state is not UnitState.RUNNING:
                        self._ended[folder] = unit
                    if key not in found or unit.present:
                        found[key] = unit
        return tuple(found[key] for key in sorted(found))

    def _look(self, host: NodeFolder) -> NodeSeen | None:
        """Return what is true of a host; None for one that was never started."""
        seen = self._hosts.get(host.path) or host.look()
        if seen is not None and not seen.present:
            self._hosts[host.path] = seen
        return seen

    async def start(self, record: JobRecord, plan: Plan, key: UnitKey) -> None:
        """Write what is to run, have a host for it, and send the host a signal; see `UnitBackend.start`."""
        await in_thread(self._start, record, plan, key)

    def _start(self, record: JobRecord, plan: Plan, key: UnitKey) -> None:
        role = role_plan(plan, key.role)
        group = f"{role.place or role.name}-{key.index // role.per_group}"
        life = Path(UNITS, unit_name(key.role, key.index), life_name(key.attempt, key.reset, key.incarnation))
        with telling(self._folder.path, ActionError):
            self._require_own()
            hosts = [host for _, host in self._folder.hosts(group)]
            known = next((host for host in hosts if (host.path / life / START).exists()), None)
            host = known or self._live_host(hosts, group)
            if host is None:
                return  # what is left of the last one is being ended
            if known is None:
                self._prepare(record, plan)
                self._write(host.path / life / START, self._order(record, plan, role, key))
            if self._look(host) is None:
                command = host_command(self._agent, self._folder, uid=record.uid, folder=host.path)
                self._start_host(record, host, command, mark(record.uid, "host", group, host.incarnation))
            self._call(host)

    def _require_own(self) -> None:
        """Raise `ActionError` for another user's job: its processes are started as its user, and its files written as such."""
        user = self._folder.owner()
        if user != os.geteuid():
            raise ActionError(not_own(self._folder.path.name, user), fatal=True)

    def _live_host(self, hosts: Sequence[NodeFolder], group: str) -> NodeFolder | None:
        if not hosts:
            return self._folder.host(group, 1)
        last = hosts[-1]
        seen = self._look(last)
        if seen is None or not (seen.ended or seen.deleting):
            return last
        if seen.present:  # a host that was asked to end starts nothing more
            self._end(last, force=seen.ended or self._was_asked_long_ago(last))
            return None
        return self._folder.host(group, last.incarnation + 1)

    def _order(self, record: JobRecord, plan: Plan, role: RolePlan, key: UnitKey) -> UnitStart:
        devices = self._numbered(plan, role, key.index)
        variables = {
            **self.environment(record, plan),
            **roles_env(plan, role),
            **place_env(role, key.index, attempt=key.attempt, reset=key.reset, incarnation=key.incarnation),
            "MASTER_ADDR": self._master(plan, role),
            "MASTER_PORT": str(_FIRST_PORT + zlib.crc32(f"{record.uid}/{role.name}".encode()) % _PORTS),
            **(visible(devices, os.environ) if devices else {}),
        }
        fields = {name: getattr(key, name) for name in ("role", "attempt", "reset", "index", "incarnation")}
        return UnitStart(**fields, env=variables)

    def _master(self, plan: Plan, role: RolePlan) -> str:
        """Return the address of the first instance of a role."""
        return ADDRESS

    def _numbered(self, plan: Plan, role: RolePlan, index: int) -> Sequence[int]:
        """Return the devices of an instance, counted from the first of the machine."""
        return assigned(role_plans(plan)).get((role.name, index), ())

    def _call(self, host: NodeFolder) -> None:
        """Have a host look at its folder."""
        ring(host, self._folder.owner())

    def _end(self, host: NodeFolder, *, force: bool) -> None:
        """Request the end of a host, or end it at once."""
        host.end(force=force, user=self._user)

    def _prepare(self, record: JobRecord, plan: Plan) -> None:
        """Make what every process of the job needs, once. A script that has replaced a file of the job ends its job."""
        try:
            prepare_roles(self._folder, plan)
        except UnreadableError as error:
            raise ActionError(str(error), fatal=True) from error

    def _write(self, path: Path, order: UnitStart) -> None:
        """Write what is to run; its folders are made one by one, so that nothing comes back of a job that was deleted."""
        missing = [folder for folder in path.parents if self._folder.path in folder.parents]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
        durable.write_text(str(path), codec.dumps(order))

    async def stop(self, record: JobRecord, plan: Plan, key: UnitKey, *, force: bool) -> None:
        """Write the wish for an end, and send its host a signal; see `UnitBackend.stop`."""
        await in_thread(self._stop, key, {role.name: role for role in role_plans(plan)}, force=force)

    def _stop(self, key: UnitKey, roles: Mapping[str, RolePlan], *, force: bool) -> None:
        with telling(self._folder.path, ActionError):
            for _, host in self._folder.hosts():
                for found, folder in _lives(host, roles):
                    if found != key or (folder / EXIT).exists():
                        continue
                    seen = self._look(host)
                    if seen is not None and seen.ended:
                        if seen.present:
                            self._end(host, force=True)
                        continue
                    with pinned(folder, self._folder.path.parent) as inside:
                        os.close(durable.open_regular(str(inside / (KILL if force else STOP)), os.O_WRONLY | os.O_CREAT))
                    self._call(host)

    async def release(self, record: JobRecord, plan: Plan) -> bool:
        """End all hosts; see `UnitBackend.release`."""
        return await in_thread(self._release)

    def _release(self) -> bool:
        left = False
        with telling(self._folder.path, ActionError):
            for _, host in self._folder.hosts():
                seen = self._look(host)
                if seen is None or not seen.present:
                    continue
                left = True
                self._end(host, force=seen.ended or self._was_asked_long_ago(host))
        return not left

    def _was_asked_long_ago(self, host: NodeFolder) -> bool:
        """Return whether this process first wanted the end of a host longer than the grace period ago."""
        return time.monotonic() > self._asked.setdefault(host.path, time.monotonic()) + _HOST_GRACE

    async def blueprint(self, record: JobRecord, plan: Plan, role: RolePlan) -> Blueprint:
        """Draw the job of an elastic role; see `UnitBackend.blueprint`."""
        return await in_thread(self._blueprint, record, plan, role)

    def _blueprint(self, record: JobRecord, plan: Plan, role: RolePlan) -> Blueprint:
        from rallypoint.backends.local.blueprint import role_blueprint  # noqa: PLC0415  pydantic is slow to import

        with telling(self._folder.path, ActionError):
            self._require_own()
            if not self._folder.has_own_jobs():
                raise ActionError(f"{self._folder.jobs}: {FOREIGN}", fatal=True)
            self._prepare(record, plan)
            job = self._job()
        return role_blueprint(job, role, folder=self._folder, agent=self._agent)

    def _job(self) -> ElasticJob:
        """Read job.yaml, which a script could have replaced by a pipe or a link."""
        from rallypoint.job import ElasticJob, JobError  # noqa: PLC0415  as above

        try:
            return ElasticJob.from_yaml(read_bytes(self._folder.job).decode())
        except (UnreadableError, JobError, UnicodeDecodeError) as error:
            raise ActionError(f"cannot read {self._folder.job}: {error}", fatal=True) from error

    def environment(self, record: JobRecord, plan: Plan) -> Mapping[str, str]:
        """Return where the instances of the job find each other on this machine."""
        return role_environment(self._folder, plan)

    async def logs(
        self, record: JobRecord, role: RolePlan, *, rank: int | None = None, cursor: str = "", follow: bool = False
    ) -> AsyncIterator[LogLine]:
        """Read the files of all lives; see `UnitBackend.logs`."""
        plan, own = role.read(), self._own_folders
        reader = await in_thread(UnitLogReader, self._folder, plan, role.name, rank=rank, cursor=cursor, own_folder=own)
        over = False
        while True:
            lines = await in_thread(reader.read, final=over)
            for line in lines:
                yield line
            if lines:
                continue
            if over:
                return
            over = await in_thread(self._is_over)
            if not over and not follow:
                return
            await asyncio.sleep(0 if over else _FOLLOW)

    async def tail(self, record: JobRecord, role: RolePlan, *, lines: int, rank: int | None = None) -> Tail:
        """Read the ends of the files; see `UnitBackend.tail`."""
        reader = UnitLogReader(self._folder, role.read(), role.name, rank=rank, own_folder=self._own_folders)
        return await in_thread(reader.tail, lines, final=await in_thread(self._is_over))

    def _is_over(self) -> bool:
        record = read_optional(JobRecord, self._folder.record)
        return record is None or record.released


def role_environment(folder: JobFolder, plan: Plan) -> dict[str, str]:
    """Return what every process of a job with roles knows of its place on this machine."""
    told = {
        env.ROLES_URL: folder.directory.absolute().as_uri(),
        env.ROLES_SECRET_FILE: str(folder.roles_secret),
        env.HOST: ADDRESS,
    }
    if plan.tls:
        told[env.ROLES_TLS] = str(folder.tls)
    if folder.config.exists():
        told[env.CONFIG_FILE] = str(folder.config)
    return told


def node_devices(folder: JobFolder, name: str, node: int) -> dict[str, str]:
    """Return the variable that shows a node of the job `name`, an elastic role, its devices. Reads the plan of the job."""
    plan = read_optional(Plan, folder.plan)
    if plan is None or node < 0:
        return {}
    roles = role_plans(plan)
    role = next((role for role in roles if f"{plan.name}-{role.name}" == name), None)
    if role is None:
        return {}
    found = assigned(roles)
    indices = range(node * role.per_group, (node + 1) * role.per_group)
    devices = [number for index in indices for number in found.get((role.name, index), ())]
    return visible(devices, os.environ) if devices else {}


def not_own(name: str, user: int) -> str:
    """Return the error of a process that would start something of another user's job."""
    told = f"job {name} belongs to user {user}; processes of a job run only as its user"
    return f"{told}, and this process runs as user {os.geteuid()}"


def prepare_roles(folder: JobFolder, plan: Plan) -> None:
    """Create the directory of instances and their secret if they are missing, and update the file with the job's `config`.

    Raises `OSError`, and `UnreadableError` for a secret that is no regular file of text.
    """
    folder.directory.mkdir(mode=0o700, exist_ok=True)
    if not folder.roles_secret.exists():
        secret = read_bytes(folder.secret).strip()
        token = hmac.new(secret, b"roles", hashlib.sha256).hexdigest()
        durable.write_text(str(folder.roles_secret), f"{token}\n")
    config = next((text for role in role_plans(plan) if (text := role.read().env.get(env.CONFIG))), "")
    # A job that has ended may be submitted again with another one, or without.
    if not config:
        folder.config.unlink(missing_ok=True)
    elif not folder.config.exists() or read_bytes(folder.config) != config.encode():
        durable.write_text(str(folder.config), config)


def _lives(host: NodeFolder, roles: Mapping[str, RolePlan]) -> Iterator[tuple[UnitKey, Path]]:
    """Yield each life of an instance of a host, with its folder."""
    for path in listed(host.path, f"{UNITS}/*/*/{START}"):
        folder = path.parent
        life, (role, _, text) = read_life(folder.name), folder.parent.name.rpartition("-")
        index = read_count(text)
        linked = any(one.is_symlink() for one in (folder, *folder.parents[:2]))  # a script could link to another folder
        if life is None or role not in roles or index is None or linked:
            continue
        attempt, reset, incarnation = life
        yield UnitKey(role=role, attempt=attempt, reset=reset, index=index, incarnation=incarnation), folder


def _unit(key: UnitKey, folder: Path, host: NodeSeen | None) -> UnitSeen:
    """Return what is true of a life; the host was looked at before, so an instance without an end of its own has none."""
    ended = read_optional(UnitExit, folder / EXIT)
    if ended is not None:
        state = UnitState.LOST if ended.exit_code is None else UnitState.FAILED if ended.exit_code else UnitState.SUCCEEDED
        seen = UnitSeen(key=key, state=state, present=False, reason=ended.reason, exit_code=ended.exit_code)
        return dataclasses.replace(seen, result=ended.result, ended_at=ended.ended_at)
    if host is not None and host.ended:
        reason = f"{key.role} {key.index} was lost with its host{f' ({host.reason})' if host.reason else ''}"
        return UnitSeen(key=key, state=UnitState.LOST, present=host.present, reason=reason)
    return UnitSeen(key=key, state=UnitState.RUNNING, present=True)


def ring(host: NodeFolder, user: int) -> None:
    """Have a host, a process of `user`, look at its folder; one that is not ready yet looks when it is."""
    ready = read_optional(HostReady, host.path / HOST)
    if ready is None:
        return
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(ready.pid)
        try:
            if proc.lives(ready.pid, ready.start_ticks, ready.boot_id) and proc.owner(ready.pid) == user:
                signal.pidfd_send_signal(descriptor, signal.Signals[BELL])
        finally:
            os.close(descriptor)
