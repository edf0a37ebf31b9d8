"""Settling through an etcd server whose address is the coordinator's: one key, which the host of the coordinator keeps alive.

Whoever writes the key first hosts. The key has a time to live, so that a host that was killed is forgotten; until then those
who find its address see that nobody answers there, and wait. It speaks what the Python client speaks, etcd's API v2.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.launch.settle import EtcdPlace
from rallypoint.agent.meeting_place import ATTEMPT
from rallypoint.agent.transport.http_client import speaks_rallypoint
from rallypoint.wire.endpoint import Endpoint, split_address

__all__ = ["EtcdAgreement"]

log = logging.getLogger("rallypoint.etcd")

#: Seconds that the key lives without a refresh, between two refreshes, and between two tries to settle.
_TTL, _REFRESH, _RETRY = 15, 5.0, 0.5


class EtcdAgreement:
    """See `meeting.Agreement`."""

    def __init__(self, place: EtcdPlace, *, within: float) -> None:
        self.host, self.port = place.host, place.port
        self._place, self._within = place, within
        self._keeping: asyncio.Task[None] | None = None
        self._client: Any = None
        self._ours = ""

    async def settle(self, ours: str) -> str:
        """Offer our address, or take that of who was first and answers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._within
        self._client = await self._call(self._connect)
        while True:
            try:
                settled = str(await self._call(self._offer, ours))
            except OSError as error:
                settled, trouble = "", f"cannot connect: {error}"
            else:
                trouble = f"{settled} is stored there, but the process at this address does not answer"
            if settled == ours:
                self._ours = ours
                self._keeping = asyncio.create_task(self._keep())
                return ours
            if settled and await speaks_rallypoint(_endpoint(settled)):
                return settled
            if loop.time() >= deadline:
                raise ConfigError(
                    f"etcd at {self.host}:{self.port}: key {self._place.key}: {trouble} (tried for {self._within:g} s); "
                    "check that etcd and node 0 are running"
                )
            await asyncio.sleep(_RETRY)

    async def close(self) -> None:
        """Let the key go, if it is ours."""
        if self._keeping is None:
            return
        self._keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeping
        try:
            await self._call(self._forget)
        except OSError as error:
            log.debug("cannot delete etcd key %s; it expires with its TTL: %s", self._place.key, error)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH)
            try:
                await self._call(self._refresh)
            except OSError as error:
                # Who has met goes on without it; only who comes now has to wait.
                log.warning("etcd at %s:%d: cannot refresh key %s: %s", self.host, self.port, self._place.key, error)

    # --- The client, which blocks: in threads -----------------------------------------------------------------------------

    async def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.to_thread(call, *args)

    def _connect(self) -> Any:
        import etcd  # noqa: PLC0415  optional

        place = self._place
        given = {"ca_cert": place.cacert or None, "cert": place.cert}
        return etcd.Client(host=place.host, port=place.port, protocol=place.protocol, allow_reconnect=False, **given)

    def _offer(self, ours: str) -> str:
        """Write our address, or return the one that is there; raises `OSError` when etcd does not answer."""
        import etcd  # noqa: PLC0415

        try:
            self._client.write(self._place.key, ours, prevExist=False, ttl=_TTL)
        except etcd.EtcdAlreadyExist:
            return self._read()
        except etcd.EtcdException as error:
            raise OSError(str(error)) from error
        return ours

    def _read(self) -> str:
        import etcd  # noqa: PLC0415

        try:
            return str(self._client.read(self._place.key).value)
        except etcd.EtcdKeyNotFound:
            return ""  # it has just gone: the next try may write it
        except etcd.EtcdException as error:
            raise OSError(str(error)) from error

    def _refresh(self) -> None:
        import etcd  # noqa: PLC0415

        try:
            try:
                self._client.write(self._place.key, self._ours, prevValue=self._ours, ttl=_TTL)
            except etcd.EtcdKeyNotFound:
                self._client.write(self._place.key, self._ours, prevExist=False, ttl=_TTL)
        except etcd.EtcdException as error:
            raise OSError(str(error)) from error

    def _forget(self) -> None:
        import etcd  # noqa: PLC0415

        try:
            self._client.delete(self._place.key, prevValue=self._ours)
        except etcd.EtcdException as error:
            raise OSError(str(error)) from error


def _endpoint(address: str) -> Endpoint:
    host, port = split_address(address)
    return Endpoint(attempt=ATTEMPT, term=1, host=host, port=port)
