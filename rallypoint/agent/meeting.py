"""How the agents of a run by hand find their coordinator, which lives in the process of one of them, and their secret.

The only node of a run has the coordinator in its own process. Of several nodes with one address, the node that can open the
port hosts the coordinator, and the others join it there. If the address is not known before, an `Agreement` selects the host.

RALLYPOINT_SECRET or --secret-file sets the secret. A run on one machine (one node, or a loopback address) needs neither: its
secret is derived from the run id and a key file that only the user can read. A run on several machines without a secret is
rejected, except with --insecure-token: then every process that knows the run id can derive the secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from rallypoint.agent.clock import Clock
from rallypoint.agent.coordinator.shell import Coordinator
from rallypoint.agent.errors import ConfigError
from rallypoint.agent.files import read_secret
from rallypoint.agent.meeting_place import ATTEMPT, TERM, Agreement, Met, endpoint_at, with_services
from rallypoint.agent.options import MasterAddress, RunOptions
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.tls import watched_tls
from rallypoint.agent.transport.near import NearExchange
from rallypoint.agent.transport.shared_port import SharedPort
from rallypoint.capabilities.base import coordinator_capabilities
from rallypoint.wire import env
from rallypoint.wire.private import PRIVATE_FILE, private_folder

__all__ = ["meet"]

log = logging.getLogger("rallypoint.run")

_LOOPBACK = "127.0.0.1"

#: Key file in $RALLYPOINT_HOME; the secrets of runs on one machine are derived from it.
_KEY_FILE = "run-key"

#: Bytes of that key.
_KEY_SIZE = 32


@contextlib.asynccontextmanager
async def meet(options: RunOptions, clock: Clock, agreement: Agreement | None = None) -> AsyncIterator[Met]:
    """Have a coordinator, here or elsewhere, while the context lasts; raises `ConfigError`."""
    shell = Coordinator(_new_state(options, clock), sink=None, clock=clock)
    place = options.meeting if agreement is None else agreement
    if place is not None:
        token = _run_secret(options, place.host, os.environ)
        tls = None if options.tls is None else watched_tls(Path(options.tls), options.plan.name)
        # A node by itself needs no HTTP, which takes longer to import than all the rest.
        from rallypoint.agent.hosting import host_or_join  # noqa: PLC0415

        async with host_or_join(shell, options, token=token, agreement=agreement, tls=tls) as met:
            yield met
        return
    serving = asyncio.create_task(shell.serve())
    try:
        async with with_services(shell, options), _store_port(shell, options.master):
            yield Met(endpoint=endpoint_at(_LOOPBACK, 0), exchange=NearExchange(shell), hosted=serving)
    finally:
        shell.stop()
        await serving


@contextlib.asynccontextmanager
async def _store_port(shell: Coordinator, master: MasterAddress | None) -> AsyncIterator[None]:
    """Serve each round's store at the address of the command line while the context lasts; raises `ConfigError`."""
    if master is None:
        yield
        return
    shared = SharedPort(lambda: shell.store)
    try:
        await shared.start(master.host, master.port)
    except OSError as error:
        raise ConfigError(
            f"{master.flag} {master.port}: cannot open the port of the TCPStore on {master.host}: {error.strerror}; "
            "choose another port, or omit the flag to use a free port"
        ) from error
    try:
        yield
    finally:
        await shared.close()


def _new_state(options: RunOptions, clock: Clock) -> rendezvous.State:
    return rendezvous.new(
        rendezvous.Settings.from_plan(options.plan),
        job=options.plan.name,
        uid=secrets.token_hex(8),
        attempt=ATTEMPT,
        term=TERM,
        now=clock(),
        registered=coordinator_capabilities(options.plan),
    )


def _run_secret(options: RunOptions, host: str, base: Mapping[str, str]) -> str:
    """Return the secret of the run whose coordinator is at `host`; raises `ConfigError` without a secret."""
    if options.secret_file:
        return read_secret(Path(options.secret_file))
    given = base.get(env.SECRET, "").strip()
    if given:
        return given
    derived = hashlib.sha256(f"rallypoint run {options.plan.name}".encode()).hexdigest()
    if options.insecure_token:
        log.warning(
            "the agents of this run have no secret, so any process that knows the run id %r can join the run", options.plan.name
        )
        return derived
    if options.plan.max_nodes == 1 or _is_loopback(host):
        return _local_secret(options, derived, base)
    raise ConfigError(
        f"{env.SECRET}: is not set, so any process that knows the run id {options.plan.name!r} could join this run. "
        f"Set {env.SECRET} to the same secret on every node (openssl rand -hex 32), pass a file with the secret "
        "(--secret-file), or run without a secret (--insecure-token)"
    )


def _is_loopback(host: str) -> bool:
    """Return whether only processes of this machine can reach an address. Only the name localhost is resolved."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _local_secret(options: RunOptions, derived: str, base: Mapping[str, str]) -> str:
    """Return the secret of a run on one machine; raises `ConfigError` if its agents cannot share a secret."""
    try:
        return hmac.new(_user_key(base), derived.encode(), hashlib.sha256).hexdigest()
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        if options.plan.max_nodes == 1:
            # The run has one agent, so a random secret is sufficient.
            log.info(
                "the agent cannot read or create this user's key file (%s); this run has one node and uses a random secret "
                "instead",
                error,
            )
            return secrets.token_hex(_KEY_SIZE)
        raise ConfigError(
            f"{env.SECRET}: is not set, and the agent cannot read or create the file from which it derives a secret: {error}. "
            f"Set {env.SECRET} to the same secret for all agents of the run, or run without a secret (--insecure-token)"
        ) from error


def _user_key(base: Mapping[str, str]) -> bytes:
    """Return the key of this user; the first run creates it. Raises `OSError`, or `RuntimeError` without a home."""
    home = Path(base.get(env.HOME) or Path.home() / ".rallypoint")
    private_folder(home)
    path = home / _KEY_FILE
    return _read_key(path) or _new_key(path)


def _read_key(path: Path) -> bytes:
    """Return the key, empty if the file is missing; raises `OSError` if another user could read or write the file."""
    try:
        # Without O_NONBLOCK, a named pipe of another user would block for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(
                f"key file {path}: mode {found.st_mode & 0o777:04o} and owner uid {found.st_uid} are not allowed; "
                f"expected mode 0600 and owner uid {os.geteuid()}"
            )
        key = file.read(_KEY_SIZE + 1)
    if len(key) != _KEY_SIZE:
        raise OSError(
            f"key file {path}: the file has {len(key)} bytes; expected {_KEY_SIZE}; "
            "delete this file, and the next run creates it again"
        )
    return key


def _new_key(path: Path) -> bytes:
    """Create the key atomically: one of several agents creates it, and the others read it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_SIZE))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink()
    return _read_key(path)
