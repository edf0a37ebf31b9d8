"""The reports of a node agent: their content, when the workers are looked at again, and the exchange with the coordinator."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Callable

from rallypoint.agent.culprit import with_few_tails
from rallypoint.agent.errors import LostContactError, OrphanedError
from rallypoint.agent.node.decide import Node, Phase
from rallypoint.agent.node.events import Answered, Told
from rallypoint.agent.node.parts import Parts
from rallypoint.agent.rendezvous.settings import HEARD_EVERY, pace_of
from rallypoint.agent.transport.client import CoordinatorClient
from rallypoint.agent.waiting import set_within
from rallypoint.wire.exits import Exit
from rallypoint.wire.messages import AgentReport, AgentState, Assignment, Continue, Refusal, Reply, Stop, WorkerReport
from rallypoint.wire.plan import Plan
from rallypoint.wire.sections import Sections

__all__ = ["Looks", "ReportLoop", "Reporter", "report_pace"]

log = logging.getLogger("rallypoint.node")

#: Seconds without an answer after which the workers are looked at although nothing is reported; and between two such looks.
_LOOK = 0.5


class Looks:
    """When the workers are looked at: each `interval` seconds, and at once where something else than their health has changed.

    An agent speaks more often than that, since its silence is news (`pace_of`): between two looks it says again what it saw.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last, self._of = float("-inf"), object()

    def due(self, gist: object, now: float, *, pace: float, hurry: bool) -> bool:
        """Return whether to look now, and count on it; `pace` is that of the reports, and in a `hurry` each of them looks."""
        # Half a pace is no time: a report that is a little early must not put the look off until the next.
        if not hurry and gist == self._of and now - self._last < self._interval - pace / 2:
            return False
        self._last, self._of = now, gist
        return True


class Reporter:
    """Puts an agent's reports together, and numbers them."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._config = parts, parts.config
        self._agent = f"{parts.config.host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._sequence = 0
        self._looks, self._pace = Looks(parts.config.plan.rendezvous.report_interval), report_pace(parts.config.plan)
        self._workers: tuple[WorkerReport, ...] = ()

    def gist(self, node: Node) -> object | None:
        """Return what is reported as soon as it changes, None while there is nobody whom it concerns."""
        parts = self._parts
        if node.phase in (Phase.ENDING, Phase.ENDED) and not node.leaving:
            return None
        pids = tuple(worker.pid for worker in parts.group.workers)
        told = (node.state, node.round, node.told_failures, node.failover, node.reason)
        waits = node.state is AgentState.WAITING
        return (
            *told,
            parts.stores.offer,
            pids,
            node.keepable,
            *(capability.urgent() for capability in parts.capabilities),
            waits and parts.ready,
        )

    def look(self) -> None:
        """Look at the workers without a report: of those without a pulse only a look tells when they were last alive."""
        self._workers = self._parts.round.reports()

    def report(self, node: Node, *, pace: float) -> AgentReport:
        """Return the next report; while nothing happens there is one every `pace` seconds, less in a hurry."""
        parts, config = self._parts, self._config
        state = node.state
        self._sequence += 1
        if self._looks.due(self.gist(node), parts.now(), pace=pace, hurry=pace < self._pace):
            self._workers = parts.round.reports()
        workers = self._workers
        return AgentReport(
            job=config.plan.name,
            fence=node.fence,
            node=config.node,
            incarnation=config.incarnation,
            unseen=config.unseen,
            agent=self._agent,
            host=config.told,
            local_world_size=config.plan.nproc_per_node,
            store=parts.stores.offer,
            state=state,
            round=node.round,
            workers=workers,
            failures=with_few_tails(node.told_failures),
            failover=node.failover,
            failover_note=node.note,
            reason=node.reason,
            result=parts.round.result() if state is AgentState.DONE else None,
            keeps=len(node.keepable),
            resizable=node.keepable <= node.resizable,
            tolerance="" if parts.profile is None else parts.profile.tolerance(),
            free_ports=parts.ports.offer if state is AgentState.WAITING else (),
            ready=parts.ready,
            hold=_hold(config.plan, state, pace),
            sequence=self._sequence,
            sections=self._sections(workers),
        )

    def _sections(self, workers: tuple[WorkerReport, ...]) -> Sections:
        found = (capability.report(workers) for capability in self._parts.capabilities)
        return Sections(*(section for section in found if section is not None))


def report_pace(plan: Plan) -> float:
    """Return the seconds between two reports of an agent to which nothing happens."""
    return pace_of(plan.rendezvous.report_interval, plan.rendezvous.node_lease, plan.rendezvous.fence_timeout)


def _hold(plan: Plan, state: AgentState, pace: float) -> float:
    """Return the seconds that an answer may be held back."""
    if state is AgentState.LEAVING:
        return 0.0
    if state is AgentState.RUNNING:
        return pace
    # An answer that is held back must not look like a coordinator that is gone.
    return pace_of(HEARD_EVERY, plan.rendezvous.node_lease, plan.rendezvous.fence_timeout)


class ReportLoop:
    """Sends reports: at least one in `pace` seconds, more after `hurry`.

    A report is sent when the value of `gist` changes, and none while it is None; `report` makes the report. `heard` receives
    every answer, and `put` the events that follow from it. `look` checks the workers while there is no answer, so that the next
    report contains when they were last alive.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        *,
        pace: float,
        gist: Callable[[], object | None],
        report: Callable[[], AgentReport],
        look: Callable[[], None],
        heard: Callable[[Reply], None],
        put: Callable[[Answered | Told], None],
    ) -> None:
        self._client, self._pace, self._gist, self._report, self._pass_on, self._put = client, pace, gist, report, heard, put
        self._look = look
        self._news = asyncio.Event()
        self._stirred = asyncio.Event()  # there is news, or an answer
        self._farewell = asyncio.Event()
        self._taken = asyncio.Event()
        self._taken.set()
        self._asking: set[asyncio.Task[Reply]] = set()
        self._told: object | None = None
        self._hurry = 0.0
        self._without = 0  # the last round that was logged to run without this node

    @property
    def pace(self) -> float:
        """Seconds between two reports while nothing happens, as it is now."""
        return self._hurry or self._pace

    def hurry(self, pace: float) -> None:
        """Report every `pace` seconds until it is 0 again; a supervisor or command has requested this."""
        self._hurry = min(pace, self._pace)

    @property
    def asking(self) -> tuple[asyncio.Task[Reply], ...]:
        """The requests that are on their way."""
        return tuple(self._asking)

    def tell_news(self) -> None:
        """Send a report now if something has changed since the last report."""
        if self._gist() != self._told:
            self._news.set()
            self._stirred.set()

    def take(self) -> None:
        """Note that an answer was acted upon."""
        self._taken.set()

    async def farewell(self, within: float) -> None:
        """Wait until the coordinator has heard that this agent leaves, at most `within` seconds."""
        self.tell_news()
        await set_within(self._farewell, within)

    async def talk(self) -> None:
        """Talk until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            # An agent with a place in a round must not report that it waits: it would look as if its answer had been lost.
            await self._taken.wait()
            self._news.clear()
            self._told = self._gist()
            if self._told is None:
                await self._news.wait()
                continue
            report = self._report()
            started = loop.time()
            if await self._ask(report):
                await set_within(self._news, started + max(report.hold, self.pace) - loop.time())

    async def _ask(self, report: AgentReport) -> bool:
        """Ask; return False when there is news before the answer.

        The old request is not broken off: the coordinator answers it as soon as it has the newer report, while a connection
        that breaks looks like the end of this agent.
        """
        ask = asyncio.create_task(self._client.ask(report))
        self._asking.add(ask)
        ask.add_done_callback(self._answered)
        while not ask.done() and not self._news.is_set():
            self._stirred.clear()
            if not await set_within(self._stirred, max(report.hold, self.pace) + _LOOK):
                self._look()
        if not ask.done():
            ask.add_done_callback(self._heard_late)
            return False
        self._heard(report, ask)
        return True

    def _answered(self, ask: asyncio.Task[Reply]) -> None:
        self._asking.discard(ask)
        if not ask.cancelled():
            ask.exception()  # retrieved: nothing awaits the request when this agent ends meanwhile
        self._stirred.set()

    def _heard_late(self, ask: asyncio.Task[Reply]) -> None:
        """Of an answer to what is no longer true only the end of the job interests."""
        if not ask.cancelled() and ask.exception() is None and isinstance(ask.result(), Stop):
            self._put(Answered(reply=ask.result()))

    def _note_spare(self, report: AgentReport, reply: Reply) -> None:
        """Log once for each round that it runs without this node, and that the job ended before this node had a place."""
        if report.state is not AgentState.WAITING:
            return
        if isinstance(reply, Continue) and reply.fence.round > max(report.fence.round, self._without):
            self._without = reply.fence.round
            log.info("round %d started without this node; this node waits for the next round", self._without)
        if isinstance(reply, Stop) and not report.fence.round:
            log.info("the job ended before this node joined a round: %s", reply.verdict.message)

    def _heard(self, report: AgentReport, ask: asyncio.Task[Reply]) -> None:
        try:
            reply = ask.result()
        except LostContactError as error:
            log.warning(
                "the agent lost contact with the coordinator; stopping the workers of this node"
            )  # the reason is printed when the agent ends
            code = Exit.ORPHANED if isinstance(error, OrphanedError) else Exit.LOST_CONTACT
            self._put(Told(code=code, reason=str(error), leaving=False))
            return
        if isinstance(reply, Refusal):
            log.warning("the coordinator rejected the report of this agent: %s", reply.reason)
        self._note_spare(report, reply)
        if report.state is AgentState.LEAVING:
            self._farewell.set()
        self._pass_on(reply)
        if isinstance(reply, Assignment):
            self._taken.clear()
        self._put(Answered(reply=reply))
