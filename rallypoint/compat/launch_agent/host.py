"""The process in which the agent of a `launch_agent` lives: it reads what to do from a folder and leaves there how it ended.

It is a process of its own because an agent owns its process: it reaps every child, is the parent of orphans, kills what workers
leave behind, and handles signals. In the caller's program all of that would hit the caller's own children and threads.

The caller holds the other end of our stdin. When that closes, the caller is gone, and the run ends as by SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rallypoint.agent.descriptors import raise_limit
from rallypoint.agent.errors import ConfigError, UsageError
from rallypoint.agent.meeting_place import ATTEMPT
from rallypoint.agent.node.agent import Ending
from rallypoint.agent.options import RunOptions
from rallypoint.agent.run import take_part
from rallypoint.agent.stderr import unstalled
from rallypoint.agent.transport.http_client import speaks_rallypoint
from rallypoint.compat.launch_agent.settle import EtcdPlace
from rallypoint.wire.endpoint import Endpoint, split_address
from rallypoint.wire.errors import RallypointError
from rallypoint.wire.exits import Exit
from rallypoint.wire.repeated_lines import limit_repeated_lines

__all__ = ["ENDING", "ORDERS", "EtcdAgreement", "Left", "Orders", "main"]

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
                settled, reason = "", f"cannot connect: {error}"
            else:
                reason = f"the key contains {settled}, but no coordinator answers at this address"
            if settled == ours:
                self._ours = ours
                self._keeping = asyncio.create_task(self._keep())
                return ours
            if settled and await speaks_rallypoint(_endpoint(settled)):
                return settled
            if loop.time() >= deadline:
                raise ConfigError(
                    f"cannot find the coordinator through the key {self._place.key} of etcd at {self.host}:{self.port} within "
                    f"{self._within:g} s: {reason}; check that etcd and node 0 are running"
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
            log.debug("cannot delete the key %s in etcd: %s; etcd deletes the key when its TTL expires", self._place.key, error)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH)
            try:
                await self._call(self._refresh)
            except OSError as error:
                # Who has met goes on without it; only who comes now has to wait.
                log.warning(
                    "etcd at %s:%d: cannot extend the TTL of the key %s: %s; retrying in %g s",
                    self.host,
                    self.port,
                    self._place.key,
                    error,
                    _REFRESH,
                )

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


#: The files of the folder.
ORDERS, ENDING = "orders.pickle", "ending.pickle"


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What is to be done; `level` is of the log."""

    options: RunOptions
    etcd: EtcdPlace | None
    logs: Path
    level: int


@dataclass(frozen=True, kw_only=True)
class Left:
    """How it ended: an `ending`, or the `error` that it could not work for."""

    ending: Ending | None = None
    error: str = ""


def main(folder: Path) -> int:
    """Run the agent that the folder describes, and return the exit code."""
    # What lies there is by the process that started us, in a folder that nobody else may enter.
    orders: Orders = pickle.loads((folder / ORDERS).read_bytes())  # noqa: S301
    raise_limit()
    unstalled()
    logging.basicConfig(
        stream=sys.stderr,
        level=orders.level,
        format="%(asctime)s.%(msecs)03d %(name)s: %(message)s",
        datefmt="%H:%M:%S",
    )
    limit_repeated_lines()
    try:
        ending = asyncio.run(_run(orders, folder))
        left, code = Left(ending=ending), ending.code
    except RallypointError as error:
        left, code = Left(error=str(error)), _code(error)
    part = folder / f"{ENDING}.part"
    part.write_bytes(pickle.dumps(left))
    part.replace(folder / ENDING)
    return code


def _code(error: RallypointError) -> int:
    if isinstance(error, UsageError):
        return Exit.USAGE
    return Exit.CONFIG if isinstance(error, ConfigError) else Exit.JOB_FAILED


async def _run(orders: Orders, folder: Path) -> Ending:
    loop = asyncio.get_running_loop()
    line = sys.stdin.fileno()
    os.set_blocking(line, False)

    def read() -> None:
        if os.read(line, 1):
            return  # nobody writes; whatever it was, the caller lives
        loop.remove_reader(line)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(line, read)
    # Until the agent handles signals by itself: what comes so early ends us at once, and there is nothing to stop yet.
    try:
        return await take_part(orders.options, orders.logs, folder, agreement=_agreement(orders))
    finally:
        loop.remove_reader(line)


def _agreement(orders: Orders) -> EtcdAgreement | None:
    if orders.etcd is None:
        return None
    return EtcdAgreement(orders.etcd, within=orders.options.plan.rendezvous.join_timeout)
