"""Asking the coordinator until there is an answer, whichever coordinator that is."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from rallypoint.agent.errors import ConfigError, LostContactError, OrphanedError, UnreachableError
from rallypoint.agent.files import read_json
from rallypoint.agent.transport.lease import Lease, in_words
from rallypoint.agent.transport.service import Exchange
from rallypoint.wire.endpoint import Endpoint
from rallypoint.wire.messages import AgentReport, Continue, Reply

__all__ = ["CoordinatorClient", "EndpointSource", "FileEndpoint", "FixedEndpoint"]

log = logging.getLogger("rallypoint.client")

#: Seconds before the second retry; doubled each time up to `_RETRY_LAST`. The first retry is at once: where only the network
#: was cut for a moment the coordinator must not take us for dead.
_RETRY_SECOND, _RETRY_LAST = 0.02, 0.5

#: Seconds that an answer may be late, beyond the time for which it may be held back.
_SLACK = 10.0

#: Seconds after which the endpoint is looked up again although the known one answers: it may have been replaced.
_LOOK_AGAIN = 5.0


#: A report that is sent so many seconds after it was made says how old it is.
_AGED = 0.5


class EndpointSource(Protocol):
    """Where it is written down at which address the coordinator listens."""

    async def read(self) -> Endpoint | None:
        """Return the newest endpoint, or None while there is none. `term` 0 says that the term is not known."""
        ...

    def news(self) -> Coroutine[Any, Any, None] | None:
        """Return what ends when another endpoint is known than was read last; None where that must be looked for."""
        ...


class FileEndpoint:
    """A file that the coordinator writes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> Endpoint | None:
        """Read the file in a thread; a file that cannot be read now counts as not there."""
        try:
            return await asyncio.to_thread(read_json, Endpoint, self._path)
        except ConfigError as error:
            log.warning("%s", error)
            return None

    def news(self) -> None:
        """A file must be looked at."""

    def __str__(self) -> str:
        return str(self._path)


class FixedEndpoint:
    """One address for the whole job."""

    def __init__(self, host: str, port: int) -> None:
        self._endpoint = Endpoint(attempt=0, term=0, host=host, port=port)

    async def read(self) -> Endpoint | None:
        """Return the address."""
        return self._endpoint

    def news(self) -> None:
        """There is only the one."""

    def __str__(self) -> str:
        return self._endpoint.address


class CoordinatorClient:
    """The agent's line to whichever coordinator is the newest. It never talks to one that is older than one it has heard."""

    def __init__(
        self,
        *,
        source: EndpointSource,
        exchange: Exchange,
        fence_timeout: float,
        attempt: int,
        lease: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to ask.

        Args:
            source: where the coordinator's address is found.
            exchange: how one report and its answer travel.
            fence_timeout: seconds without any answer after which `ask` gives up.
            attempt: of the job; coordinators of an earlier one are not listened to.
            lease: how many seconds the job may be without a supervisor, counted on here from what the coordinator told last;
                None where that ends nothing.
            clock: seconds, never backwards.
        """
        self._source, self._exchange, self._fence_timeout, self._clock = source, exchange, fence_timeout, clock
        self._endpoint: Endpoint | None = None
        self._looked_at = clock()
        self._heard_at = clock()
        self._newest = (attempt, 0)
        self._lease = None if lease is None else Lease(seconds=lease, at=clock())
        self._asked = 0
        self._late: set[asyncio.Future[Reply]] = set()

    async def ask(self, report: AgentReport) -> Reply:
        """Return the answer of the newest coordinator, after as many tries as it takes.

        Raises `LostContactError` when no coordinator has answered anything for `fence_timeout` seconds, `OrphanedError` when
        none answers and nobody has supervised the job for its lease, and `UnreachableError` when a try did not work and a
        newer report was asked with meanwhile: there is no use in trying the old one again. Raises `ConfigError` as the exchange
        does.
        """
        delay, made_at = 0.0, self._clock()
        self._asked = max(self._asked, report.sequence)
        while True:
            try:
                reply = await self._try(_aged(report, self._clock() - made_at))
            except UnreachableError as error:
                self._endpoint = None
                if report.sequence < self._asked:
                    raise
                self._check_lease(error)
                left = self._heard_at + self._fence_timeout - self._clock()
                if left <= 0:
                    raise LostContactError(f"the coordinator did not respond for {self._fence_timeout:g} s: {error}") from error
                log.debug("%s", error)
                await self._pause(min(delay, left))
                delay = min(max(2 * delay, _RETRY_SECOND), _RETRY_LAST)
            else:
                self._heard_at = self._clock()
                self._forget_late()
                self._note_supervision(reply)
                return reply

    def _note_supervision(self, reply: Reply) -> None:
        if self._lease is not None and isinstance(reply, Continue) and reply.unsupervised is not None:
            self._lease = self._lease.told(reply.unsupervised, self._clock())

    def _check_lease(self, error: UnreachableError) -> None:
        if self._lease is None:
            return
        self._lease = self._lease.waited(self._clock())
        if self._lease.expired:
            alone = f"no supervisor heartbeat for {in_words(self._lease.seconds)} and the coordinator does not answer"
            raise OrphanedError(f"{alone}: {error}") from error

    async def close(self) -> None:
        """Close the connections."""
        self._forget_late()
        await self._exchange.close()

    async def _try(self, report: AgentReport) -> Reply:
        endpoint = await self._find()
        left = self._heard_at + self._fence_timeout - self._clock()
        seconds = min(report.hold + _SLACK, max(left, _RETRY_LAST))
        reply = await self._exchange_unless_news(endpoint, report, seconds)
        self._refuse_older((reply.fence.attempt, reply.fence.term), endpoint)
        return reply

    async def _exchange_unless_news(self, endpoint: Endpoint, report: AgentReport, seconds: float) -> Reply:
        """Wait for an answer, but no longer for that of a coordinator that is known to have been replaced.

        One that is merely late is left open until we were heard over another connection: to the coordinator the end of our last
        is the end of this agent. It may have slept, and both are news to it at the same time.
        """
        patience = seconds + self._fence_timeout
        exchange = asyncio.ensure_future(self._exchange.exchange(endpoint, report, timeout=patience))
        exchange.add_done_callback(_look_away)  # also where this is cancelled in the moment in which it fails
        told = self._source.news()
        news = set() if told is None else {asyncio.ensure_future(told)}
        try:
            await asyncio.wait({exchange, *news}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if exchange.done():
                return exchange.result()
            if any(one.done() for one in news):
                raise UnreachableError(
                    f"the coordinator at {endpoint.address} was replaced by another coordinator during the request"
                )
            self._late.add(exchange)
            raise UnreachableError(f"the coordinator at {endpoint.address} did not respond within {seconds:.0f} s")
        finally:
            ended = [one for one in (exchange, *news) if not one.done() and one not in self._late]
            for one in ended:
                one.cancel()
            if ended:
                await asyncio.gather(*ended, return_exceptions=True)

    def _forget_late(self) -> None:
        for exchange in self._late:
            exchange.cancel()
        self._late.clear()

    async def _pause(self, seconds: float) -> None:
        told = self._source.news()
        if told is None:
            await asyncio.sleep(seconds)
            return
        news = asyncio.ensure_future(told)
        await asyncio.wait({news}, timeout=seconds)
        news.cancel()

    async def _find(self) -> Endpoint:
        if self._endpoint is None or self._clock() >= self._looked_at + _LOOK_AGAIN:
            self._endpoint = await self._source.read()
            self._looked_at = self._clock()
        if self._endpoint is None:
            raise UnreachableError(f"no coordinator has announced its address yet in {self._source}")
        if self._endpoint.term > 0:
            self._refuse_older((self._endpoint.attempt, self._endpoint.term), self._endpoint)
        return self._endpoint

    def _refuse_older(self, theirs: tuple[int, int], endpoint: Endpoint) -> None:
        if theirs < self._newest:
            raise UnreachableError(
                f"the coordinator at {endpoint.address} has attempt {theirs[0]}, term {theirs[1]}; the agent already knows "
                f"a newer coordinator with attempt {self._newest[0]}, term {self._newest[1]}"
            )
        self._newest = theirs


def _aged(report: AgentReport, seconds: float) -> AgentReport:
    """Return a report that is sent so many seconds after it was made: its workers have been quiet for longer."""
    if seconds < _AGED or not any(worker.quiet is not None for worker in report.workers):
        return report
    older = (w if w.quiet is None else dataclasses.replace(w, quiet=round(w.quiet + seconds, 3)) for w in report.workers)
    return dataclasses.replace(report, workers=tuple(older))


def _look_away(exchange: asyncio.Future[Reply]) -> None:
    """Retrieve the error of an exchange whose result may not be awaited any more, so that asyncio does not report it."""
    if not exchange.cancelled():
        exchange.exception()
