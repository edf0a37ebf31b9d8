"""Where Prometheus finds a job's metrics: a port of its own, on which nothing else is served and no secret is asked for.

The coordinator's own port tells nothing to anybody without the job's secret, and a network policy can keep it for the job; this
one may be open to whoever scrapes. `exposition.py` renders the metrics. A job whose port is taken runs without metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from rallypoint.agent.errors import ConfigError
from rallypoint.agent.transport.http_listen import Text, serve_pages
from rallypoint.capabilities.base import ServiceContext
from rallypoint.capabilities.metrics import exposition
from rallypoint.wire.connections import Limits
from rallypoint.wire.env import ROLE
from rallypoint.wire.paths import METRICS_PATH

__all__ = ["FRESH", "served"]

log = logging.getLogger("rallypoint.metrics")

#: Seconds for which one reading serves everybody: who scrapes more often, or is nobody whom we know, costs no more than that.
FRESH = 1.0

#: Connections at a time. Each ends with its answer.
_CONNECTIONS = 32


@contextlib.asynccontextmanager
async def served(context: ServiceContext, port: int) -> AsyncIterator[int]:
    """Serve the metrics of a coordinator meanwhile; yields the port, 0 if it cannot be opened."""
    pages = {METRICS_PATH: _Scraped(context).answer}
    try:
        close, bound = await serve_pages(
            pages, context.host, port, whose="metrics (health.metrics_port)", limits=Limits.few(_CONNECTIONS)
        )
    except ConfigError as error:
        log.warning("the coordinator cannot serve metrics: %s; the job continues without metrics", error)
        context.note("no-metrics", str(error))
        yield 0
        return
    try:
        yield bound
    finally:
        await asyncio.shield(close())


class _Scraped:
    """The last reading."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._role = context.plan.env.get(ROLE, "") if context.plan.job else ""
        self._text, self._at = "", float("-inf")

    async def answer(self) -> Text:
        """Return the metrics, `FRESH` seconds old at the most."""
        now = self._context.clock()
        if now - self._at >= FRESH:
            self._text, self._at = exposition.render(self._context.status(), role=self._role), now
        return Text(body=self._text.encode(), kind=exposition.CONTENT_TYPE)
