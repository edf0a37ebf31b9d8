"""TLS of calls between roles: both sides present a certificate of the job."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from rallypoint.training.roles.errors import AuthenticationError, RolesError
from rallypoint.wire.tls import AUTHORITY, CERTIFICATE, KEY, peer_name

__all__ = ["client_context", "require_peer", "server_context"]


#: Per folder and protocol, the context, with the inode, size and time of change of each of its files.
_contexts: dict[tuple[Path, int], tuple[tuple[tuple[int, ...], ...], ssl.SSLContext]] = {}


def client_context(folder: Path) -> ssl.SSLContext:
    """Return the context of connections to other instances; raises `RolesError`. Changed files are read again."""
    return _context(folder, ssl.PROTOCOL_TLS_CLIENT)


def server_context(folder: Path) -> ssl.SSLContext:
    """Return the context of accepted connections; raises `RolesError`. Changed files are read again."""
    return _context(folder, ssl.PROTOCOL_TLS_SERVER)


def require_peer(sock: ssl.SSLSocket, job: str) -> None:
    """Raise `AuthenticationError` unless the other side's certificate, which `ssl` has verified, is one of this job."""
    told: Any = sock.getpeercert() or {}
    names = {value for kind, value in told.get("subjectAltName", ()) if kind == "DNS"}
    if peer_name(job) not in names:
        raise AuthenticationError(f"the client needs a TLS certificate with the DNS name {peer_name(job)}")


def _context(folder: Path, protocol: int) -> ssl.SSLContext:
    try:
        files = tuple(_state(folder / name) for name in (AUTHORITY, CERTIFICATE, KEY))
        known = _contexts.get((folder, protocol))
        if known is not None and known[0] == files:
            return known[1]
        made = _loaded(folder, protocol)
    except (ssl.SSLError, OSError) as error:
        raise RolesError(
            f"RALLYPOINT_ROLES_TLS: {folder}: {AUTHORITY}, {CERTIFICATE} and {KEY} cannot be loaded: {error}"
        ) from error
    _contexts[folder, protocol] = files, made
    return made


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _loaded(folder: Path, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(folder / AUTHORITY)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED
    return context
