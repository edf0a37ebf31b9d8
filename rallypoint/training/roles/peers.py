"""Which instances a role has, and whether they answer."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

from rallypoint.training.roles.context import RoleSpec, role_specs
from rallypoint.training.roles.errors import RolesError, UnreachableError
from rallypoint.training.roles.network import DEFAULT_TIMEOUT, Network, require_timeout, this_network
from rallypoint.wire.roles import RoleEntry, entry_name

__all__ = ["Peer", "PeerState", "peers", "size_of", "spec_of", "wait_for"]

#: Seconds that an instance has to accept a connection.
_PROBE = 1.0

#: Seconds between two looks: the first pause and the longest.
_SOON, _LATER = 0.01, 0.25

_PARALLEL = 16


class PeerState(str, Enum):
    """State of an instance, seen from this process."""

    ABSENT = "absent"
    """It has not called `serve()`."""
    RUNNING = "running"
    """It accepts connections."""
    UNREACHABLE = "unreachable"
    """It has called `serve()` and does not accept connections: it was killed, or its machine is lost."""
    ENDED = "ended"
    """Its process has exited."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One instance of a role; `host`, `port` and `incarnation` are those of its newest life, "" and 0 of an absent one."""

    role: str
    rank: int
    state: PeerState
    host: str = ""
    port: int = 0
    incarnation: int = 0


def peers(role: str, *, network: Network | None = None) -> tuple[Peer, ...]:
    """Return the instances of a role by rank; each is asked for a connection, for at most one second.

    Raises:
        RolesError: the job has no such role, or this process belongs to no job with several roles.
        OSError: the directory cannot be read.

    """
    network = this_network() if network is None else network
    size = size_of(role, spec_of(role), network)
    entries = network.directory.entries()
    found = [(rank, entries.get(entry_name(role, rank))) for rank in range(size)]
    if size <= 1:
        return tuple(_peer(role, rank, entry) for rank, entry in found)
    with ThreadPoolExecutor(min(size, _PARALLEL), thread_name_prefix="rallypoint-probe") as pool:
        return tuple(pool.map(lambda one: _peer(role, *one), found))


def wait_for(role: str, timeout: float = DEFAULT_TIMEOUT, *, network: Network | None = None) -> tuple[Peer, ...]:
    """Wait until all instances of a role answer, and return them; an instance answers once it has called `serve()`.

    Raises:
        UnreachableError: an instance did not answer within `timeout` seconds; the text names it.
        RolesError: the job has no such role, or this process belongs to no job with several roles.

    """
    network = this_network() if network is None else network
    until, pause = time.monotonic() + require_timeout(timeout), _SOON
    spec_of(role)
    while True:
        try:
            found, why = peers(role, network=network), ""
        except OSError as error:
            found, why = (), str(error)
        missing = [peer for peer in found if peer.state is not PeerState.RUNNING]
        if not missing and not why:
            return found
        left = until - time.monotonic()
        if left <= 0:
            why = why or ", ".join(f"{peer.role}/{peer.rank} ({peer.state.value})" for peer in missing[:10])
            raise UnreachableError(
                f"{role}: {len(missing)} of {len(found)} instances do not respond after {timeout:g} s: {why}"
            )
        time.sleep(min(pause, left))
        pause = min(pause * 2, _LATER)


def spec_of(role: str) -> RoleSpec:
    """Return a role of the job; raises `RolesError` for an unknown name."""
    known = role_specs()
    if role not in known:
        raise RolesError(f"role: {role!r} is not allowed; expected one of: {', '.join(sorted(known)) or '(no roles)'}")
    return known[role]


def size_of(role: str, spec: RoleSpec, network: Network) -> int:
    """Return the number of instances: of an elastic role as its newest round has announced it. Raises `OSError`."""
    if spec.launch != "elastic":
        return spec.total
    newest: RoleEntry | None = None
    for entry in network.directory.entries().values():
        if entry.role == role and not entry.queue and (newest is None or entry.life[:3] > newest.life[:3]):
            newest = entry
    return spec.total if newest is None else newest.size


def _peer(role: str, rank: int, entry: RoleEntry | None) -> Peer:
    if entry is None:
        return Peer(role=role, rank=rank, state=PeerState.ABSENT)
    state = PeerState.ENDED if not entry.port else PeerState.RUNNING if _accepts(entry) else PeerState.UNREACHABLE
    return Peer(role=role, rank=rank, state=state, host=entry.host, port=entry.port, incarnation=entry.incarnation)


def _accepts(entry: RoleEntry) -> bool:
    try:
        with socket.create_connection((entry.host, entry.port), timeout=_PROBE):
            return True
    except OSError:
        return False
