"""The shell around the rendezvous: it serialises what is said, publishes what follows, and answers in its own time.

Everything runs in one event loop and the core is called without a pause in between, so no lock is needed. What is said in one
turn of the loop is taken over together, and concluded from once: agents come in thousands, and each conclusion looks at all of
them. Where that takes long, the next one waits a few times as long, so that listening and answering get most of the time.

Each change of the state gets a number; the publisher (publishing.py) writes the newest state and then raises the number that is
durable, and an answer (answering.py) leaves only when the state that it was read from is.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from rallypoint.agent.clock import Clock
from rallypoint.agent.coordinator import event_lines
from rallypoint.agent.coordinator.answering import Answers, Asked
from rallypoint.agent.coordinator.publishing import PROGRESS_PERIOD, Publisher
from rallypoint.agent.coordinator.sink import StatusSink
from rallypoint.agent.errors import StaleError
from rallypoint.agent.rendezvous import capabilities, journal
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import State
from rallypoint.agent.waiting import TIMER_FLOOR, breather
from rallypoint.capabilities.base import RoundView, ServiceContext, services
from rallypoint.wire.messages import AgentReport, Refusal, Reply
from rallypoint.wire.node_range import Size
from rallypoint.wire.plan import Plan
from rallypoint.wire.roster import LostNode
from rallypoint.wire.status import JobStatus, Verdict

__all__ = ["Coordinator", "running_services"]

log = logging.getLogger("rallypoint.coordinator")

#: Seconds by which a timer may be late. If it is later than that nobody was listened to meanwhile, and nobody was silent.
_LATE = 0.05

#: Turns of the loop in which what has arrived is read, understood and taken over.
_TURNS = 4


class Coordinator:
    """One coordinator of one attempt; implements `CoordinatorService`.

    Without a `sink` it ends with its process and nobody takes over: nothing is published, and every state is durable at once.
    """

    def __init__(
        self,
        state: State,
        *,
        sink: StatusSink | None,
        clock: Clock,
        progress_period: float = PROGRESS_PERIOD,
        log_event: event_lines.Teller = event_lines.in_words,
    ) -> None:
        self._state, self._clock, self._log = state, clock, log_event
        self._own = state.settings
        #: What was said and not taken over yet, in its order; a text is the name of an agent that hung up.
        self._inbox: list[Asked | str] = []
        self._told: list[tuple[str, Reply]] = []
        self._sequences: dict[str, int] = {}
        self._answers = Answers(lambda: self._state, told=self._was_told)
        self._publisher = None if sink is None else self._new_publisher(sink, progress_period)
        self._turn: asyncio.Handle | None = None
        self._not_before = 0.0
        self._due, self._listened, self._calling = 0.0, clock(), False
        self._timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._closing = False

    def _new_publisher(self, sink: StatusSink, period: float) -> Publisher:
        return Publisher(
            sink,
            clock=self._clock,
            period=period,
            newest=lambda: (self._answers.version, self.status()),
            durable=self._settle,
            note=self.note,
        )

    # --- What a server calls -----------------------------------------------------------------------------------------------

    async def report(self, report: AgentReport) -> Reply:
        """Take a report and answer it; see `CoordinatorService.report`."""
        if self._closing:
            return self._answers.last_word()
        asked = self._answers.asked(report)
        self._inbox.append(asked)
        self._take_soon()
        try:
            return await asked.answer
        finally:
            self._answers.forget(asked)

    def hung_up(self, agent: str) -> None:
        """Note that an agent is gone; see `CoordinatorService.hung_up`."""
        if not self._closing:
            self._inbox.append(agent)
            self._take_soon()

    def status(self) -> JobStatus:
        """Return what is true now, durable or not yet."""
        status = rendezvous.status(self._state, self._clock())
        undurable = self._publisher is not None and self._publisher.trouble
        return dataclasses.replace(status, durable=False) if undurable else status

    @property
    def store(self) -> str:
        """The `host:port` of the last closed round's store, "" before the first."""
        return self._state.closed.store

    # --- What somebody beside the agents tells ------------------------------------------------------------------------------

    def supervised(self, quiet: float) -> None:
        """Take note that no supervisor was seen for `quiet` seconds; see `orphan.OrphanedJob`."""
        self._answers.unsupervised = quiet

    def note(self, kind: str, detail: str) -> None:
        """Add a line to the job's story."""
        self._apply(journal.event(self._state, kind, detail, self._clock()))

    def resize(self, size: Size | None) -> None:
        """Keep to other bounds of the world than the plan's; None are the plan's own."""
        state = rendezvous.resized(self._state, size, self._own, self._clock())
        if state is not self._state:
            self._apply(state)

    def send(self, name: str, request: object) -> None:
        """Pass a request of its service to a capability; does nothing if the request changes nothing."""
        state = capabilities.on_request(self._state, name, request, self._clock())
        if state is not self._state:
            self._apply(rendezvous.tick(state, self._clock()))

    def state_of(self, name: str) -> tuple[Any, RoundView]:
        """Return the state of a capability by its name, and what it may read; raises `KeyError`."""
        return self._state.capabilities.state_of(name), capabilities.view(self._state)

    def give_up(self, lost: Iterable[LostNode]) -> None:
        """Wait no longer for nodes that a supervisor has found lost; does nothing for those that are here or gone."""
        state = rendezvous.given_up(self._state, lost)
        if state is not self._state:
            self._apply(rendezvous.tick(state, self._clock()))

    def change(self, change: Callable[[State, float], State]) -> State:
        """Change the state by a function of it and of now, and return it; nothing follows where it stays the very same."""
        state = change(self._state, self._clock())
        if state is not self._state:
            self._apply(rendezvous.tick(state, self._clock()))
        return self._state

    def conclude(self, verdict: Verdict) -> None:
        """End the attempt with a verdict, unless it has one."""
        if self._state.verdict is None:
            self._apply(journal.verdict(self._state, verdict, self._clock()))

    # --- Its life ----------------------------------------------------------------------------------------------------------

    async def publish_first(self) -> None:
        """Publish the first status, before anybody is answered; raises `StaleError` or `OSError`."""
        if self._publisher is not None:
            await self._publisher.first()

    async def serve(self) -> None:
        """Work until every agent was told the verdict, or `stop` was called; raises `StaleError` when it was replaced."""
        self._apply(rendezvous.tick(self._state, self._clock()))
        publisher = asyncio.create_task(asyncio.Event().wait() if self._publisher is None else self._publisher.run())
        over = asyncio.create_task(self._over.wait())
        try:
            done, _ = await asyncio.wait({publisher, over}, return_when=asyncio.FIRST_COMPLETED)
            if publisher in done:
                publisher.result()
        finally:
            self._close()
            for task in (publisher, over):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, StaleError):
                    await task

    def stop(self) -> None:
        """End `serve`. Does nothing the second time."""
        self._over.set()

    def _close(self) -> None:
        self._closing = True
        for timer in (self._timer, self._turn):
            if timer is not None:
                timer.cancel()
        if self._publisher is not None:
            self._publisher.close()
        self._answers.close(asked for asked in self._inbox if isinstance(asked, Asked))

    # --- Changing the state ------------------------------------------------------------------------------------------------

    def _take_soon(self) -> None:
        """Take over what was said when the loop has read what else there is, but not sooner than the last turn allows."""
        if self._turn is not None or self._closing:
            return
        loop = asyncio.get_running_loop()
        late = loop.time() >= self._not_before
        self._turn = loop.call_soon(self._take) if late else loop.call_at(self._not_before, self._take)

    def _take(self) -> None:
        """Take over what was said, in its order, and draw the conclusions."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        loop = asyncio.get_running_loop()
        began, now = loop.time(), self._clock()
        said, self._inbox = self._inbox, []
        state, fresh = self._with_told(self._state), []
        if len(said) > 1:
            state = rendezvous.opened(state)
        for one in said:
            if isinstance(one, str):
                state = rendezvous.disconnected(state, one, now)
            elif self._admits(state, one):
                state = rendezvous.hear(state, one.report, now)
                fresh.append(one)
        self._apply(rendezvous.tick(rendezvous.sealed(state), now, listened=self._listened), fresh)
        self._check_dismissed()
        self._not_before = loop.time() + breather(loop.time() - began)

    def _admits(self, state: State, asked: Asked) -> bool:
        """Return whether a report is taken over, and hold its answer back; answer it at once where it is not."""
        report = asked.report
        refused = rendezvous.refusal(state, report)
        if refused is not None:
            self._answers.give(asked, self._refuse(report, refused))
            return False
        if report.sequence < self._sequences.get(report.agent, 0):
            self._answers.give(asked, self._answers.nothing_new())
            return False
        self._sequences[report.agent] = report.sequence
        self._answers.park(asked)
        return True

    def _was_told(self, agent: str, reply: Reply) -> None:
        self._told.append((agent, reply))
        self._take_soon()

    def _with_told(self, state: State) -> State:
        told, self._told = self._told, []
        return rendezvous.told_all(state, told) if told else state

    def _apply(self, state: State, fresh: Iterable[Asked] = ()) -> None:
        before, self._state = self._state, state
        for event in event_lines.new_events(before, state):
            self._log(state, event)
        self._answers.became(before, fresh)
        if self._publisher is None:
            self._settle(self._answers.version)
        else:
            self._publisher.changed(urgent=self._answers.ready or state.verdict is not None)
        self._arm()

    def _arm(self) -> None:
        """Wake up when the core has something to conclude by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = rendezvous.wakes(self._state)
        if due is not None and not self._closing and not self._calling:
            delay = max(due - self._clock(), TIMER_FLOOR)
            self._due = self._clock() + delay
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        late = self._clock() - self._due
        if late > _LATE:
            # A leap of ours (a machine that slept, a core that was taken away) must not look like the silence of everybody.
            log.warning(
                "the event loop of the coordinator was blocked for %.1f s; the leases of all agents are extended by this time",
                late,
            )
            self._state = rendezvous.delayed(self._state, late)
        self._calling = True
        self._call_the_roll(self._clock(), _TURNS)

    def _call_the_roll(self, at: float, turns: int) -> None:
        """Let the loop read what was said until `at`, and conclude: whoever has spoken by then was not silent."""
        if turns and not self._closing:
            asyncio.get_running_loop().call_soon(self._call_the_roll, at, turns - 1)
            return
        self._listened, self._calling = at, False
        self._take()

    def _check_dismissed(self) -> None:
        if rendezvous.dismissed(self._state) and self._answers.durable >= self._answers.version:
            self._answers.dismissed = True
            self._over.set()

    def _settle(self, version: int) -> None:
        self._answers.settled(version)
        self._check_dismissed()

    def _refuse(self, report: AgentReport, refused: Refusal) -> Refusal:
        log.warning("the coordinator rejected the report of agent=%s host=%s: %s", report.agent, report.host, refused.reason)
        return refused


@contextlib.asynccontextmanager
async def running_services(
    shell: Coordinator,
    plan: Plan,
    host: str,
    clock: Clock,
    *,
    pod: bool = False,
    requested: Callable[[str], Awaitable[Any]] | None = None,
) -> AsyncIterator[None]:
    """Run all services of optional capabilities meanwhile; see `ServiceContext` for the arguments."""
    context = ServiceContext(
        plan=plan,
        host=host,
        pod=pod,
        clock=clock,
        status=shell.status,
        note=shell.note,
        send=shell.send,
        state_of=shell.state_of,
        requested=requested,
    )
    async with contextlib.AsyncExitStack() as running:
        for service in services(context):
            await running.enter_async_context(service)
        yield
