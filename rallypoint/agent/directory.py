"""`rallypoint-agent roles-directory`: through which the instances of roles in several pods find each other.

The entries are in memory. Each process announces its own again every two seconds, so a server that was restarted knows all
entries after that time; until then, calls of connected instances continue.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
from collections.abc import Mapping

from aiohttp import web

from rallypoint.agent.files import read_secret
from rallypoint.agent.tls import Tls, watched_tls
from rallypoint.agent.transport.first_request import CertificateRule, Text
from rallypoint.agent.transport.http_listen import authenticated, certified, listen
from rallypoint.agent.transport.tls_port import Secured
from rallypoint.wire import codec
from rallypoint.wire.codec import WireError
from rallypoint.wire.health_check import DIRECTORY, health_page
from rallypoint.wire.paths import ENTRIES_PATH, HEALTH_PATH
from rallypoint.wire.roles import ENTRY_LIMIT, RoleEntry, directory_token, read_entry

__all__ = ["DirectoryServer", "RoleDirectory", "TooManyError", "roles_directory"]

log = logging.getLogger("rallypoint.directory")

#: Most entries; each takes at most 4 KiB.
_MOST = 100_000


class TooManyError(Exception):
    """The directory is full."""


class RoleDirectory:
    """The newest entry of each instance and queue. Pure."""

    def __init__(self, most: int = _MOST) -> None:
        self._entries: dict[str, RoleEntry] = {}
        self._most = most

    @property
    def entries(self) -> Mapping[str, RoleEntry]:
        """All entries by name."""
        return self._entries

    def announce(self, entry: RoleEntry) -> bool:
        """Store an entry; return False if a newer life of the instance is known. Raises `TooManyError`."""
        known = self._entries.get(entry.name)
        if known is not None and known.life > entry.life:
            return False
        if known is None and len(self._entries) >= self._most:
            raise TooManyError(
                f"the role directory, which lists the addresses of role instances, is full: it has {self._most} entries"
            )
        self._entries[entry.name] = entry
        return True


class DirectoryServer:
    """The port of a directory: `PUT` and `GET` of `/v1/entries/NAME`, and `GET` of `/v1/entries`."""

    def __init__(self, directory: RoleDirectory, *, secret: str, tls: Tls | None = None) -> None:
        self._directory, self._token, self._tls = directory, directory_token(secret.encode()), tls
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self, host: str, port: int | socket.socket) -> int:
        """Listen and return the port, a free one when `port` is 0; it may be a socket that listens. Raises `ConfigError`."""
        tls, checks = self._tls, [authenticated(self._token)]
        rule = None if tls is None else CertificateRule(tls=tls)
        if rule is not None:
            checks.insert(0, certified(rule))
        app = web.Application(client_max_size=ENTRY_LIMIT, middlewares=checks)
        app.router.add_get(ENTRIES_PATH, self._list)
        app.router.add_get(f"{ENTRIES_PATH}/{{name}}", self._find)
        app.router.add_put(f"{ENTRIES_PATH}/{{name}}", self._announce)
        secured = None if tls is None else Secured(lambda: tls.server)
        self._runner, self._port = await listen(
            app,
            host,
            port,
            whose="role directory",
            token=self._token,
            secured=secured,
            pages={HEALTH_PATH: self._health},
            now={HEALTH_PATH: self._health_text},
            rule=rule,
        )
        return self._port

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _announce(self, request: web.Request) -> web.Response:
        try:
            entry = read_entry(await request.read())
        except WireError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        if entry.name != request.match_info["name"]:
            raise web.HTTPBadRequest(
                text=f"role directory: name {request.match_info['name'][:80]!r} in the URL is not allowed; "
                f"expected {entry.name}, the name of the instance in the request"
            )
        try:
            accepted = self._directory.announce(entry)
        except TooManyError as error:
            raise web.HTTPInsufficientStorage(text=str(error)) from error
        if not accepted:
            raise web.HTTPConflict(
                text=f"the address of instance {entry.name} was rejected, because a newer process of the same instance "
                "has already published its own address"
            )
        return web.Response()

    async def _find(self, request: web.Request) -> web.Response:
        entry = self._directory.entries.get(request.match_info["name"])
        if entry is None:
            raise web.HTTPNotFound
        return web.Response(text=codec.dumps(entry), content_type="application/json")

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"entries": [codec.to_json(entry) for entry in self._directory.entries.values()]})

    async def _health(self) -> Text:
        return self._health_text()

    def _health_text(self) -> Text:
        return Text.of_json(health_page(DIRECTORY, self._port))


def roles_directory(args: argparse.Namespace) -> int:
    """Serve the directory until SIGTERM; return the exit code."""
    secret = read_secret(args.secret_file)
    tls = None if args.tls is None else watched_tls(args.tls, args.job)
    port = args.port if args.listener is None else socket.socket(fileno=args.listener)
    asyncio.run(_serve(DirectoryServer(RoleDirectory(), secret=secret, tls=tls), args.host, port))
    return 0


async def _serve(server: DirectoryServer, host: str, port: int | socket.socket) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    bound = await server.start(host, port)
    log.info("the role directory, which lists the addresses of role instances, listens at %s:%d", host, bound)
    try:
        await ended.wait()
    finally:
        await server.close()
