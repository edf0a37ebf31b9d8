"""The coordinator's home in a cluster: ConfigMaps, the supervisor's Lease, and a supervisor that comes by with the roster."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rallypoint.agent.coordinator.announcing import Announcer
from rallypoint.agent.coordinator.configmap import NO_ROUTE, ConfigMapSink, PodSink
from rallypoint.agent.coordinator.kube import ApiError, KubeApi, config_map_path, lease_path
from rallypoint.agent.coordinator.namespaced import Namespaced
from rallypoint.agent.coordinator.orphan import HeartbeatSource
from rallypoint.agent.coordinator.record import LossSource, SizeSource
from rallypoint.agent.coordinator.sink import FileSink, StatusSink, read_status
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.files import read_json
from rallypoint.agent.tls import Tls
from rallypoint.agent.transport.service import SupervisorDoor
from rallypoint.wire import codec, sanitize
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.node_range import Size
from rallypoint.wire.plan import Plan
from rallypoint.wire.ports import COORDINATOR_PORT, grpc_port
from rallypoint.wire.roster import LostNode, Roster
from rallypoint.wire.status import JobStatus

__all__ = ["RECORD_KEY", "LeaseHeartbeat", "PodHome", "SignsOfLife", "newest"]

log = logging.getLogger("rallypoint.pod")

#: Seconds between two writes to the ConfigMap that tell progress only.
_PROGRESS_PERIOD = 30.0

#: Seconds between two looks at the heartbeat, each of which is one request.
_LOOK = 30.0

#: Seconds between two tries to learn what the last coordinator published.
_RETRY = 1.0

#: Name of the status in the folder of the pod, where the ConfigMap may not be written.
_STATUS_FILE = "status.json"

#: Key of the record in the job's ConfigMap.
RECORD_KEY = "record.json"


class PodHome:
    """See `home.Home`; `door` is the home itself."""

    progress_period = _PROGRESS_PERIOD
    look = _LOOK

    def __init__(self, args: argparse.Namespace, *, token: str, tls: Tls | None = None) -> None:
        self._args, self._token, self._tls = args, token, tls
        self._api = KubeApi.of_this_pod(os.environ)
        self._remote = ConfigMapSink(self._api, args.status_configmap)
        self._local: Path = args.status_dir / _STATUS_FILE
        self._announcer: Announcer | None = None
        self._roster: Roster | None = None
        self._signs = None if args.record_configmap is None else SignsOfLife(LeaseHeartbeat(self._api, args.record_configmap))
        self.where = f"ConfigMap {args.status_configmap}"
        self.sink: StatusSink = PodSink(self._remote, FileSink(self._local))
        self.heartbeat: HeartbeatSource | None = self._signs
        self.door: SupervisorDoor | None = self
        self.size: SizeSource | None = RosterSize(self)
        self.requested: Callable[[str], Awaitable[Any]] | None = self._requested
        self.losses: LossSource | None = RosterLosses(self)

    async def previous(self) -> JobStatus | None:
        """Read the ConfigMap; where we cannot, what the pod was given and what it wrote itself.

        A server that has answered is waited for, however long that takes. One that never has for `NO_ROUTE` seconds is one to
        which this pod has no route: the kubelet has brought what the pod was given, and the supervisor can read what it writes.

        To begin without it could close a round that an earlier coordinator has closed, with another world.
        """
        told, reached, began = "", False, time.monotonic()
        while True:
            try:
                return await self._remote.read()
            except ApiError as error:
                if error.refused:
                    log.warning(
                        "the coordinator has no permission to read the last job status from the API server (%s); it reads the "
                        "copy that is mounted in its pod",
                        error,
                    )
                    return await asyncio.to_thread(self._known)
                reached = reached or bool(error.status)
                if not reached and time.monotonic() >= began + NO_ROUTE:
                    log.warning(
                        "the API server did not return the last job status within %g s (%s); the coordinator reads the "
                        "copy that is mounted in its pod",
                        NO_ROUTE,
                        error,
                    )
                    return await asyncio.to_thread(self._known)
                if str(error) != told:
                    log.warning(
                        "the coordinator cannot read the last job status from the API server (%s); retrying until it can read "
                        "the status",
                        error,
                    )
                told = str(error)
            await asyncio.sleep(_RETRY)

    def _known(self) -> JobStatus | None:
        given: Path | None = self._args.known_status
        first = None if given is None or not _has_text(given) else read_json(JobStatus, given)
        return newest(first, read_status(self._local))

    def port(self, plan: Plan) -> int:
        """Each pod has an address of its own, so one number serves all."""
        return plan.rendezvous.coordinator_port or COORDINATOR_PORT

    def grpc_port(self, plan: Plan) -> int:
        """The next number: whoever lets traffic into pods by port can know it."""
        return grpc_port(self.port(plan))

    async def announce(self, endpoint: Endpoint) -> None:
        """Tell the agents as soon as a supervisor has told where they are."""
        self._announcer = Announcer(endpoint, token=self._token, tls=self._tls)
        if self._roster is not None:
            self._announcer.take(self._roster)

    def seen(self, mark: str) -> None:
        """See `SupervisorDoor`."""
        if self._signs is not None:
            self._signs.seen(mark)

    def take(self, roster: Roster) -> None:
        """See `SupervisorDoor`."""
        if self._announcer is not None:
            self._announcer.take(roster)
        self._roster = roster  # it came before we were ready to be found

    @property
    def roster(self) -> Roster | None:
        """The last that a supervisor told, None before its first."""
        return self._roster

    async def _requested(self, field: str) -> Any:
        """Return a field of the job's record that the roster carries."""
        return codec.to_json(getattr(self._roster, field, None))

    async def close(self) -> None:
        """Close all connections."""
        if self._announcer is not None:
            await self._announcer.close()
        await self._api.close()


class RosterSize:
    """What the last roster said."""

    def __init__(self, home: PodHome) -> None:
        self._home = home

    async def size(self) -> Size | None:
        """Return what is known."""
        roster = self._home.roster
        return None if roster is None else roster.size


class RosterLosses:
    """What the last roster said."""

    def __init__(self, home: PodHome) -> None:
        self._home = home

    def lost(self) -> tuple[LostNode, ...]:
        """Return what is known."""
        roster = self._home.roster
        return () if roster is None else roster.lost


def newest(*known: JobStatus | None) -> JobStatus | None:
    """Return the status with the highest fence, of equal ones the later; None where there is none."""
    return max((s for s in known if s is not None), key=lambda s: (s.fence, s.updated_at), default=None)


def _has_text(path: Path) -> bool:
    """Return whether there is anything in a file: before the first status it is empty, or not there."""
    try:
        return path.stat().st_size > 0
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            return False
        raise ConfigError(f"--known-status {path}: cannot read the file: {error.strerror}") from error


class LeaseHeartbeat:
    """A record in a ConfigMap whose holder names a Lease that is renewed all the time; a `HeartbeatSource`.

    Each look is one request, in turn for the record and for the Lease: thousands of jobs must not be a load for the API server.
    """

    def __init__(self, api: KubeApi, record: Namespaced) -> None:
        self._api, self._record = api, record
        self._lease: Namespaced | None = None
        self._beat: str | None = None
        self._refused = self._record_next = False

    async def read(self) -> str | None:
        """Return the last beat that is known; what cannot be read is no sign of life."""
        self._record_next = not self._record_next or self._lease is None
        try:
            if self._record_next:
                await self._look_for_holder()
            elif self._lease is not None:
                await self._look_at_lease(self._lease)
        except ApiError as error:
            log.log(
                logging.WARNING if error.refused and not self._refused else logging.DEBUG,
                "the coordinator cannot read the heartbeat of the supervisor: %s",
                error,
            )
            self._refused = error.refused
            return None
        self._refused = False
        return self._beat

    async def _look_for_holder(self) -> None:
        found = await self._api.get(config_map_path(self._record))
        lease = await asyncio.to_thread(_lease_of, (found.get("data") or {}).get(RECORD_KEY), self._record.namespace)
        if lease != self._lease:
            self._lease = lease
            # Another supervisor has just stored itself in the record.
            self._beat = None if lease is None else f"{lease}"

    async def _look_at_lease(self, lease: Namespaced) -> None:
        try:
            found = await self._api.get(lease_path(lease))
        except ApiError as error:
            if error.status != 404:
                raise
            self._beat = None
            return
        metadata, spec = found.get("metadata") or {}, found.get("spec") or {}
        self._beat = f"{lease} {metadata.get('uid')} {metadata.get('resourceVersion')} {spec.get('renewTime')}"


def _lease_of(text: Any, namespace: str) -> Namespaced | None:
    """Return the Lease that a record's holder names, None where it names none."""
    try:
        holder = sanitize.parse(text)["holder"]
        return Namespaced.parse(holder["heartbeat"], namespace=namespace)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class SignsOfLife:
    """A heartbeat that is read, and supervisors that come by: either is a sign of life; a `HeartbeatSource`."""

    def __init__(self, heartbeat: LeaseHeartbeat) -> None:
        self._heartbeat = heartbeat
        self._seen = ""

    def seen(self, mark: str) -> None:
        """Store what a supervisor reported about itself."""
        self._seen = mark

    async def read(self) -> str | None:
        """Return something that is another thing after each sign of either."""
        beat = await self._heartbeat.read()
        return f"{beat or ''} {self._seen}".strip() or None
