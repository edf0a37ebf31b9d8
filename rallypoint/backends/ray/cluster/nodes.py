"""The nodes of the ledger's jobs: what was placed, what its actor reports, and how it ended.

A node has a folder in the ledger's copy of the job, as a local node has. `placed.json` is there from the moment in which it is
created, `seen.json` once it has ended for good. The agent's log and the workers' output are copied there while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError, RuntimeEnvSetupError

from rallypoint.backends.contract import ActionError
from rallypoint.backends.local import durable
from rallypoint.backends.local.files import read_optional
from rallypoint.backends.local.layout import JobFolder
from rallypoint.backends.local.node import NodeFolder
from rallypoint.backends.ray.cluster import groups, output
from rallypoint.backends.ray.cluster.actors import InstanceHost
from rallypoint.backends.ray.cluster.host import TLS, TLS_OF_ROLES, NodeSpec
from rallypoint.backends.ray.placement import FILE, Placement, actor_name, group_name
from rallypoint.supervision.actions import CreateNode
from rallypoint.supervision.observation import NodeSeen, NodeState
from rallypoint.supervision.record import JobRecord
from rallypoint.wire import codec
from rallypoint.wire.tls import AUTHORITY, CERTIFICATE, KEY
from rallypoint.wire.unit_files import EXIT, KILL, START, STOP, UNITS

__all__ = ["Nodes", "Placed", "placement_of"]

log = logging.getLogger(__name__)

_PLACED, _SEEN, _ENDING, _WAITING = "placed.json", "seen.json", "ending", "waiting.json"

#: Seconds that the creation of a group is waited for before the supervisor is told that it waits.
_PATIENCE = 2.0

#: Longest silence of a report, and the pause after a call that failed, in seconds.
_REPORT, _PAUSE = 5.0, 0.5


#: Files of a peer; a certificate follows its key.
_CERTIFICATES = (AUTHORITY, KEY, CERTIFICATE)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where a node was placed: its actor, the placement group and the bundle; `own` is a group of this node alone.

    `host` is the name of the group of instances that it runs; "" is a node of an elastic role.
    """

    attempt: int
    actor: str
    group: str
    bundle: int
    own: bool
    unseen: int = 0
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Since when a base group waits for resources, in seconds since the epoch on the ledger's machine."""

    since: float


@dataclass
class _Sent:
    """What an actor was sent: the coordinator's address, certificates by their `_stamp`; and when the files are read again."""

    endpoint: str = ""
    stamp: tuple[int, ...] = ()
    again: float = 0.0


class Nodes:
    """All nodes of the ledger's jobs, hosts of instances among them. `changed` is called with a job's folder after a change."""

    def __init__(self, changed: Callable[[Path], None]) -> None:
        self._changed = changed
        self._bells: dict[Path, asyncio.Event] = {}
        self._live: dict[Path, NodeSeen] = {}
        self._final: dict[Path, NodeSeen] = {}
        self._tending: dict[Path, asyncio.Task[None]] = {}
        self._announcing: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    # --- what is true ---------------------------------------------------------------------------------------------------

    def seen(self, folder: JobFolder) -> tuple[NodeSeen, ...]:
        """Return every node of a job that was placed."""
        return tuple(seen for _, node in folder.nodes() if (seen := self.look(node)) is not None)

    def look(self, node: NodeFolder) -> NodeSeen | None:
        """Return what is true of a node or host; None for one that was never placed."""
        seen = self._final.get(node.path) or self._live.get(node.path) or self._read(node)
        if seen is None:
            return None
        deleting = seen.present and (node.path / _ENDING).exists()
        state = NodeState.ENDING if deleting and not seen.ended else seen.state
        return dataclasses.replace(seen, deleting=deleting, state=state)

    def _read(self, node: NodeFolder) -> NodeSeen | None:
        final = read_optional(NodeSeen, node.path / _SEEN)
        if final is not None:
            self._final[node.path] = final
            return final
        placed = read_optional(Placed, node.path / _PLACED)
        return None if placed is None else _fresh(node, placed)

    def present(self, folder: JobFolder) -> bool:
        """Return whether a node or host of the job, or of the jobs of its elastic roles, may hold resources."""
        every = [node for each in (folder, *folder.children()) for _, node in (*each.nodes(), *each.hosts())]
        return any(seen.present for node in every if (seen := self.look(node)) is not None)

    # --- creation and removal -------------------------------------------------------------------------------------------

    def create(self, record: JobRecord, folder: JobFolder, action: CreateNode) -> None:
        """Place a node unless it was placed before. Blocks; raises `ActionError`, with `waits` while resources are missing."""
        node = folder.node(action.node, action.attempt, action.incarnation)
        if read_optional(Placed, node.path / _PLACED) is None:
            _note(node, self._place(record, folder, placement_of(folder), action))
        self.follow(record.uid, folder, node)

    def create_host(self, record: JobRecord, folder: JobFolder, host: NodeFolder, *, place: str, group: int) -> None:
        """Place a host of instances unless it was placed before; as `create`."""
        if read_optional(Placed, host.path / _PLACED) is None:
            placement = placement_of(folder)
            spot = placement.hosts[place]
            name = actor_name(record.uid, place, attempt=0, node=group, incarnation=host.incarnation)
            base = self.reserve(record.uid, folder, placement, new=host.incarnation == 1)
            bundle = spot.first + group
            if not base.ready:
                raise _waits(base, placement)
            kind, runtime_env = InstanceHost, placement.runtime_env
            groups.start_actor(name, base, bundle=bundle, ask=spot.ask, runtime_env=runtime_env, kind=kind)
            its = f"{place}-{group}"
            _note(host, Placed(attempt=record.attempt, actor=name, group=base.name, bundle=bundle, own=False, host=its))
        self.follow(record.uid, folder, host)

    def reserve(self, uid: str, folder: JobFolder, placement: Placement, *, new: bool) -> groups.Group:
        """Return the base group of the job with this uid and folder; raises `ActionError` where it is `new` and not ready.

        The error is fatal once the group has waited for longer than the job allows.
        """
        patience = 0.1 if (folder.path / _WAITING).exists() else _PATIENCE
        group = groups.ensure_group(group_name(uid), placement.group, patience=patience)
        if new and not group.ready:
            raise self._too_late(folder, placement, group) or _waits(group, placement)
        _keep_waiting(folder, None)
        return group

    def _place(self, record: JobRecord, folder: JobFolder, placement: Placement, action: CreateNode) -> Placed:
        name = actor_name(record.uid, placement.role, attempt=action.attempt, node=action.node, incarnation=action.incarnation)
        owner = JobFolder(path=folder.path.parents[1]) if placement.base else folder
        group = self.reserve(placement.base or record.uid, owner, placement, new=action.incarnation == 1)
        bundle = placement.first + action.node
        in_base = action.node < placement.nodes and group.nodes.get(bundle) not in placement.exclude
        if in_base and not group.ready:
            raise _waits(group, placement)
        if not in_base:
            own = group_name(record.uid, node=action.node, attempt=action.attempt, incarnation=action.incarnation)
            group, bundle = groups.ensure_group(own, (placement.single,), patience=_PATIENCE), 0
            if not group.ready:
                reason = groups.missing_resource((placement.single,))
                raise ActionError(f"node {action.node} waits for its placement group: {reason}", waits=True)
        groups.start_actor(name, group, bundle=bundle, ask=placement.bundle, runtime_env=placement.runtime_env)
        return Placed(
            attempt=action.attempt, actor=name, group=group.name, bundle=bundle, own=not in_base, unseen=action.unseen
        )

    @staticmethod
    def _too_late(folder: JobFolder, placement: Placement, group: groups.Group) -> ActionError | None:
        """Note since when a base group waits; return the error once that is longer than the job allows."""
        now = time.time()
        waiting = read_optional(Waiting, folder.path / _WAITING)
        if waiting is None or waiting.since > now:
            waiting = Waiting(since=now)
            _keep_waiting(folder, waiting)
        if now - waiting.since < placement.create_timeout:
            return None
        limit = f"was not ready within {placement.create_timeout:g} s (master.create_timeout)"
        return ActionError(f"{_named(group, placement)} {limit}: {groups.missing_resource(placement.group)}", fatal=True)

    def remove(self, folder: JobFolder, node: NodeFolder, *, force: bool) -> None:
        """Request the end of a node, or end it at once. Blocks."""
        placed = read_optional(Placed, node.path / _PLACED)
        if placed is None or (node.path / _SEEN).exists() or (not force and _just_asked(node)):
            return
        durable.write_text(str(node.path / _ENDING), "")
        actor = groups.find_actor(placed.actor)
        live = self._live.get(node.path)
        if actor is None:
            return
        if live is None or live.state is NodeState.STARTING:
            groups.kill_actor(placed.actor)
            return
        actor.end.remote(force=force)

    # --- following ------------------------------------------------------------------------------------------------------

    def follow(self, uid: str, folder: JobFolder, node: NodeFolder) -> None:
        """Follow a node to its end; from any thread."""
        self._loop.call_soon_threadsafe(self._begin, uid, folder, node)

    def _begin(self, uid: str, folder: JobFolder, node: NodeFolder) -> None:
        task = self._tending.get(node.path)
        if task is None and not (node.path / _SEEN).exists():
            task = self._tending[node.path] = asyncio.create_task(self._tend(uid, folder, node))
            task.add_done_callback(lambda _: self._tending.pop(node.path, None))

    async def _tend(self, uid: str, folder: JobFolder, node: NodeFolder) -> None:
        placed = await asyncio.to_thread(read_optional, Placed, node.path / _PLACED)
        if placed is None:
            return
        try:
            async with self._ordering(folder, node, placed):
                final = await self._report(uid, folder, node, placed)
        except Exception:
            why = "the ledger cannot monitor the actor of this node"
            log.exception("job=%s node=%d: %s; the node counts as lost", folder.path.name, node.number, why)
            final = _lost(node, placed, self._live.get(node.path), why)
        await asyncio.to_thread(self._close, folder, node, placed, final)
        self._changed(folder.path)

    async def _report(self, uid: str, folder: JobFolder, node: NodeFolder, placed: Placed) -> NodeSeen:
        """Follow the actor until its agent has ended; return how it ended."""
        actor = await asyncio.to_thread(groups.find_actor, placed.actor)
        if actor is None:
            return _lost(node, placed, self._live.get(node.path), "its actor no longer exists")
        try:
            where = await actor.where.remote()
            spec = await asyncio.to_thread(_spec, uid, folder, node, placed, where)
            refused = await actor.start.remote(spec)
            if refused:
                return dataclasses.replace(
                    _lost(node, placed, None, refused["reason"]), state=NodeState.FAILED, exit_code=1, host=where["node_id"]
                )
            return await self._news(folder, node, placed, actor, where["node_id"])
        except RuntimeEnvSetupError as error:
            return _lost(node, placed, None, f"the runtime environment of its actor failed: {_line(error)}")
        except RayActorError as error:
            return _lost(node, placed, self._live.get(node.path), f"its actor ended: {_line(error)}")

    async def _news(self, folder: JobFolder, node: NodeFolder, placed: Placed, actor: Any, host: str) -> NodeSeen:
        offsets = await asyncio.to_thread(output.sizes, node.path)
        sent = _Sent()
        while True:
            try:
                await self._send_files(folder, placed, actor, sent)
                waits = _REPORT if node.path in self._live and (sent.endpoint or placed.host) else 0.2
                news = await actor.news.remote(offsets, waits)
            except ActorUnavailableError:
                await asyncio.sleep(_PAUSE)
                continue
            chunks = [chunk for chunk in news["chunks"] if output.is_output(chunk[0])]
            for name, offset, data in chunks:
                await asyncio.to_thread(output.append, node.path, name, offset, data)
                offsets[name] = offset + len(data)
            if any(name.endswith(EXIT) for name, _, _ in chunks):
                self._changed(folder.path)
            seen = news["seen"]
            if seen is None:
                continue
            seen = dataclasses.replace(seen, host=host)
            if news["over"]:
                final: NodeSeen = dataclasses.replace(seen, present=False, deleting=False)
                return final
            if not seen.ended and self._live.get(node.path) != seen:
                self._live[node.path] = seen
                self._changed(folder.path)

    async def _send_files(self, folder: JobFolder, placed: Placed, actor: Any, sent: _Sent) -> None:
        """Send the coordinator's address and certificates, if they have changed; `announce` sends a new address sooner."""
        if sent.endpoint and self._loop.time() < sent.again:
            return
        text, stamp = await asyncio.to_thread(lambda: (_endpoint(folder), _stamp(folder, placed)))
        if text and text != sent.endpoint:
            await actor.endpoint.remote(text)
            sent.endpoint = text
        if stamp and stamp != sent.stamp:  # also after the ledger was lost: they may have been renewed just before
            await actor.renew.remote(await asyncio.to_thread(_certificates, folder, placed))
            sent.stamp = stamp
        sent.again = self._loop.time() + _REPORT

    # --- instances ------------------------------------------------------------------------------------------------------

    def call(self, host: NodeFolder) -> None:
        """Have what is to run of a host reach its actor at once; from any thread."""
        self._loop.call_soon_threadsafe(lambda: bell.set() if (bell := self._bells.get(host.path)) else None)

    @contextlib.asynccontextmanager
    async def _ordering(self, folder: JobFolder, node: NodeFolder, placed: Placed) -> AsyncIterator[None]:
        """Send a host what is to run and to end while the context lasts; a node has nothing of that."""
        if not placed.host:
            yield
            return
        self._bells[node.path] = asyncio.Event()
        sending = asyncio.create_task(self._send(folder, node, placed))
        try:
            yield
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            self._bells.pop(node.path, None)

    async def _send(self, folder: JobFolder, host: NodeFolder, placed: Placed) -> None:
        sent: set[str] = set()
        bell = self._bells[host.path]
        while True:
            bell.clear()
            orders = await asyncio.to_thread(_orders, host.path, sent)
            actor = await asyncio.to_thread(groups.find_actor, placed.actor) if orders else None
            if actor is not None:
                # After the orders: the host starts only what this record wants, and a newer supervisor has seen the orders.
                record = await asyncio.to_thread(_text, folder.record)
                with contextlib.suppress(RayError):
                    if await actor.order.remote(record, orders):
                        sent |= orders.keys()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(bell.wait(), _PAUSE if orders.keys() - sent else _REPORT)

    def announce(self, folder: JobFolder) -> None:
        """Begin to send the coordinator's address to every agent of a job: an actor that was stopped takes it much later."""
        for path in [path for path in self._live if path.is_relative_to(folder.path)]:
            task = asyncio.create_task(self._announce(folder, path))
            self._announcing.add(task)
            task.add_done_callback(self._announcing.discard)

    async def _announce(self, folder: JobFolder, path: Path) -> None:
        placed = await asyncio.to_thread(read_optional, Placed, path / _PLACED)
        actor = None if placed is None else await asyncio.to_thread(groups.find_actor, placed.actor)
        text = await asyncio.to_thread(_endpoint, folder)  # as late as possible: it never replaces a newer one
        if actor is not None and text:
            with contextlib.suppress(RayError):
                await actor.endpoint.remote(text)

    def _close(self, folder: JobFolder, node: NodeFolder, placed: Placed, final: NodeSeen) -> None:
        """Remove the actor, then store how the node ended."""
        actor = groups.find_actor(placed.actor)
        if actor is not None:
            with contextlib.suppress(RayError, TimeoutError):
                groups.finish(actor)
            groups.kill_actor(placed.actor)
        if placed.own:
            groups.remove_group(placed.group)
        with contextlib.suppress(FileNotFoundError):  # the job was deleted
            durable.write_text(str(node.path / _SEEN), codec.dumps(final))
        self._final[node.path] = final
        self._live.pop(node.path, None)


def placement_of(folder: JobFolder) -> Placement:
    """Return the placement of a job; raises `ActionError`."""
    path = folder.path / FILE
    found = read_optional(Placement, path)
    if found is None:
        raise ActionError(
            f"{path}: file not found; without the placement in this file, the nodes of the job cannot start", fatal=True
        )
    return found


def _note(node: NodeFolder, placed: Placed) -> None:
    for path in (node.path.parents[1], node.path.parent, node.path):
        path.mkdir(mode=0o700, exist_ok=True)
    durable.write_text(str(node.path / _PLACED), codec.dumps(placed))


def _named(group: groups.Group, placement: Placement) -> str:
    return f"placement group {group.name} of {len(placement.group)} nodes"


def _waits(group: groups.Group, placement: Placement) -> ActionError:
    reason = groups.missing_resource(placement.group)
    return ActionError(f"{_named(group, placement)} ({group.state.lower()}) waits for resources: {reason}", waits=True)


def _just_asked(node: NodeFolder) -> bool:
    """Return whether the end of a node was requested within the last second."""
    try:
        return time.time() - (node.path / _ENDING).stat().st_mtime < 1.0
    except FileNotFoundError:
        return False


def _orders(host: Path, sent: Iterable[str]) -> dict[str, str]:
    """Return the files of a host that say what is to run and to end, by their names, but those that were sent."""
    known = set(sent)
    found = {str(path.relative_to(host)): path for name in (START, STOP, KILL) for path in host.glob(f"{UNITS}/*/*/{name}")}
    return {name: path.read_text() for name, path in found.items() if name not in known and not (path.parent / EXIT).exists()}


def _keep_waiting(folder: JobFolder, waiting: Waiting | None) -> None:
    """Store since when the base group of a job waits; None: it does not wait."""
    path = folder.path / _WAITING
    if waiting is not None:
        durable.write_text(str(path), codec.dumps(waiting))
    elif path.exists():
        path.unlink(missing_ok=True)


def _fresh(node: NodeFolder, placed: Placed) -> NodeSeen:
    return NodeSeen(
        attempt=placed.attempt, node=node.number, incarnation=node.incarnation, state=NodeState.STARTING, present=True
    )


def _lost(node: NodeFolder, placed: Placed, live: NodeSeen | None, reason: str) -> NodeSeen:
    known = live or _fresh(node, placed)
    return dataclasses.replace(
        known, state=NodeState.LOST, present=False, exit_code=None, reason=reason, unseen=live is not None, deleting=False
    )


def _spec(uid: str, folder: JobFolder, node: NodeFolder, placed: Placed, where: dict[str, str]) -> NodeSpec:
    """Return what the actor needs to start the agent. Reads the job's files, of which some are secret."""
    certificates = _certificates(folder, placed)
    names = [folder.plan.name, folder.secret.name, folder.function.name, folder.endpoint.name]
    roles = folder if placed.host else _whole(folder)
    paths = {name: folder.path / name for name in (*names, *((folder.record.name,) if placed.host else ()))}
    paths |= {path.name: path for path in (roles.roles_secret, roles.config)}
    files = {name: path.read_text() for name, path in paths.items() if path.exists()} | certificates
    return NodeSpec(
        name=folder.path.name,
        uid=uid,
        attempt=placed.attempt,
        node=node.number,
        incarnation=node.incarnation,
        unseen=placed.unseen,
        host=where["address"],
        machine=where["node_id"],
        tls=f"{TLS}/{CERTIFICATE}" in certificates,
        group=placed.host,
        files=files,
    )


def _whole(folder: JobFolder) -> JobFolder:
    """Return the job whose elastic role is the job of a folder."""
    return JobFolder(path=folder.path.parents[1])


def _tls_folders(folder: JobFolder, placed: Placed) -> dict[str, Path]:
    """Return the folders with certificates of a node, by their names in its own folder."""
    return {TLS: folder.tls} if placed.host else {TLS: folder.tls, TLS_OF_ROLES: _whole(folder).tls}


def _certificates(folder: JobFolder, placed: Placed) -> dict[str, str]:
    """Return the certificates and keys of a node by their names in its folder, each certificate after its key."""
    paths = {f"{name}/{file}": path / file for name, path in _tls_folders(folder, placed).items() for file in _CERTIFICATES}
    return {name: path.read_text() for name, path in paths.items() if path.exists()}


def _stamp(folder: JobFolder, placed: Placed) -> tuple[int, ...]:
    """Return a value that changes when a certificate of a node was renewed; empty for a job without TLS."""
    paths = [path / CERTIFICATE for path in _tls_folders(folder, placed).values()]
    return tuple(path.stat().st_mtime_ns for path in paths if path.exists())


def _endpoint(folder: JobFolder) -> str:
    return _text(folder.endpoint)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _line(error: Exception) -> str:
    if isinstance(error, ActorDiedError):
        cause = next((line for line in str(error).splitlines() if "died because" in line or "Cause" in line), "")
        if cause:
            return cause.strip()
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
