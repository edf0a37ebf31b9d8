"""The shell around the rendezvous: it serialises what is said, publishes what follows, and answers in its own time.

Everything runs in one event loop and the core is called without a pause in between, so no lock is needed. Each change of the
state gets a number; the publisher writes the newest state and then raises the number that is durable. An answer leaves only
when the state that it was read from is durable, so a coordinator that is killed has told nobody what its successor cannot read.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from dataclasses import dataclass, field

from rallypoint.agent.clock import Clock
from rallypoint.agent.coordinator.sink import StatusSink
from rallypoint.agent.errors import StaleError
from rallypoint.agent.rendezvous import checks, telling
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import State
from rallypoint.agent.transport.service import MAX_HOLD
from rallypoint.agent.waiting import set_within
from rallypoint.supervision.folding import bounded
from rallypoint.wire.messages import AgentReport, Assignment, Continue, Refusal, Reply, Stop
from rallypoint.wire.size import Size
from rallypoint.wire.status import JobStatus, Progress, Verdict

__all__ = ["PROGRESS_PERIOD", "Coordinator"]

log = logging.getLogger("rallypoint.coordinator")

#: Seconds between two writes that tell progress only, where writing costs nobody anything.
PROGRESS_PERIOD = 1.0

#: Seconds between two tries to publish while the sink does not work.
_SINK_RETRY = 1.0

#: Seconds that the sink has to make an answer durable, also where the agent's hold is shorter. Longer, and the agent is told
#: nothing new: it must neither take us for dead nor seem dead itself because a disk is full.
_DURABLE_WITHIN = 5.0

#: A timer that fires a moment too early would find nothing due: never ask again sooner than this.
_TIMER_FLOOR = 0.001


@dataclass(eq=False)
class _Parked:
    """A report whose answer is held back."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    superseded: bool = False


class Coordinator:
    """One coordinator of one attempt; implements `CoordinatorService`."""

    def __init__(self, state: State, *, sink: StatusSink, clock: Clock, progress_period: float = PROGRESS_PERIOD) -> None:
        self._state, self._sink, self._clock = state, sink, clock
        self._own = state.settings
        self._progress_period, self._trouble = progress_period, ""
        self._version, self._durable = 1, 0
        self._settling: set[asyncio.Event] = set()
        self._parked: dict[str, _Parked] = {}
        self._sequences: dict[str, int] = {}
        self._dirty = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._progress_timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._closing = self._dismissed = False
        self._unsupervised: float | None = None

    # --- What a server calls -----------------------------------------------------------------------------------------------

    async def report(self, report: AgentReport) -> Reply:
        """Take a report and answer it; see `CoordinatorService.report`."""
        refused = rendezvous.refusal(self._state, report)
        if refused is not None:
            return self._refuse(report, refused)
        if report.sequence < self._sequences.get(report.agent, 0):
            return self._nothing_new()
        parked = self._supersede(report)
        self._apply(rendezvous.receive(self._state, report, self._clock()))
        try:
            return await self._answer(report, parked)
        except asyncio.CancelledError:
            if not parked.superseded:
                self.hung_up(report.agent)
            raise

    def hung_up(self, agent: str) -> None:
        """Note a broken connection; see `CoordinatorService.hung_up`."""
        if not self._closing:
            self._apply(rendezvous.disconnected(self._state, agent, self._clock()))

    def status(self) -> JobStatus:
        """Return what is true now, durable or not yet."""
        status = rendezvous.status(self._state, self._clock())
        return dataclasses.replace(status, durable=False) if self._sink.trouble else status

    # --- What somebody beside the agents tells ------------------------------------------------------------------------------

    def supervised(self, quiet: float) -> None:
        """Take note that no supervisor was seen for `quiet` seconds; see `orphan.OrphanedJob`."""
        self._unsupervised = quiet

    def note(self, kind: str, detail: str) -> None:
        """Add a line to the job's story."""
        self._apply(telling.event(self._state, kind, detail, self._clock()))

    def resize(self, size: Size | None) -> None:
        """Keep to other bounds of the world than the plan's; None are the plan's own."""
        state = rendezvous.resized(self._state, size, self._own, self._clock())
        if state is not self._state:
            self._apply(state)

    def conclude(self, verdict: Verdict) -> None:
        """End the attempt with a verdict, unless it has one."""
        if self._state.verdict is None:
            self._apply(telling.verdict(self._state, verdict, self._clock()))

    # --- Its life ----------------------------------------------------------------------------------------------------------

    async def publish_first(self) -> None:
        """Publish the first status, before anybody is answered; raises `StaleError` or `OSError`."""
        await self._sink.publish(self.status())
        self._note_trouble()

    async def serve(self) -> None:
        """Work until every agent was told the verdict, or `stop` was called; raises `StaleError` when it was replaced."""
        self._apply(rendezvous.tick(self._state, self._clock()))
        publisher = asyncio.create_task(self._publish())
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
        for timer in (self._timer, self._progress_timer):
            if timer is not None:
                timer.cancel()
        for parked in self._parked.values():
            parked.wake.set()
        for settled in self._settling:
            settled.set()

    # --- Changing the state ------------------------------------------------------------------------------------------------

    def _apply(self, state: State) -> None:
        before, self._state = self._state, state
        self._version += 1
        self._dirty.set()
        _log_news(before, state)
        if _audible(before) != _audible(state):
            for parked in self._parked.values():
                parked.wake.set()
        self._arm()

    def _arm(self) -> None:
        """Wake up when the core has something to conclude by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = rendezvous.deadline(self._state)
        if due is not None and not self._closing:
            delay = max(due - self._clock(), _TIMER_FLOOR)
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        self._apply(rendezvous.tick(self._state, self._clock()))
        self._check_dismissed()

    def _check_dismissed(self) -> None:
        if rendezvous.dismissed(self._state) and self._durable >= self._version:
            self._dismissed = True
            self._over.set()

    def _refuse(self, report: AgentReport, refused: Refusal) -> Refusal:
        log.warning("agent %s on %s refused: %s", report.agent, report.host, refused.reason)
        return refused

    # --- Answering ---------------------------------------------------------------------------------------------------------

    def _supersede(self, report: AgentReport) -> _Parked:
        """Let an older report of the same agent go: its answer interests nobody any more."""
        self._sequences[report.agent] = report.sequence
        older = self._parked.get(report.agent)
        if older is not None:
            older.superseded = True
            older.wake.set()
        parked = self._parked[report.agent] = _Parked()
        return parked

    async def _answer(self, report: AgentReport, parked: _Parked) -> Reply:
        loop = asyncio.get_running_loop()
        hold = min(report.hold, MAX_HOLD)
        until, durable_until = loop.time() + hold, loop.time() + max(hold, self._durable_within())
        while not parked.superseded and not self._closing:
            parked.wake.clear()
            reply = rendezvous.answer(self._state, report.agent)
            if reply is None:
                if not await set_within(parked.wake, until - loop.time()):
                    break
            elif not await self._made_durable(durable_until):
                break
            elif rendezvous.answer(self._state, report.agent) == reply and not parked.superseded:
                return self._tell(report.agent, reply)
        return self._last_word()

    def _last_word(self) -> Reply:
        """What an agent is told for want of anything new; once everybody was told the verdict, that."""
        verdict = self._state.verdict
        if self._dismissed and verdict is not None:
            return Stop(fence=self._state.fence, verdict=verdict)
        return self._nothing_new()

    def _nothing_new(self) -> Continue:
        return Continue(fence=self._state.fence, unsupervised=self._unsupervised)

    def _durable_within(self) -> float:
        return min(_DURABLE_WITHIN, self._state.settings.node_lease / 3)

    async def _made_durable(self, until: float) -> bool:
        """Wait until the state as it is now is durable, or the loop's clock says `until`; return whether it is durable."""
        loop, version = asyncio.get_running_loop(), self._version
        settled = asyncio.Event()
        self._settling.add(settled)
        try:
            while self._durable < version and not self._closing:
                settled.clear()
                if not await set_within(settled, until - loop.time()):
                    break
        finally:
            self._settling.discard(settled)
        return self._durable >= version

    def _tell(self, agent: str, reply: Reply) -> Reply:
        if isinstance(reply, Continue):
            return dataclasses.replace(reply, unsupervised=self._unsupervised)
        if isinstance(reply, (Assignment, Stop)):
            self._apply(rendezvous.told(self._state, agent, reply))
        return reply

    # --- Publishing --------------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        published: JobStatus | None = None
        due = self._clock()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            version, status = self._version, self.status()
            if published is None or _gist(status) != _gist(published) or self._clock() >= due:
                await self._write(status)
                published, due = status, self._clock() + self._progress_period
            else:  # the gist is durable already; the rest follows when it is due
                self._publish_at(due)
            self._settle(version)

    def _publish_at(self, due: float) -> None:
        if self._progress_timer is not None:
            self._progress_timer.cancel()
        delay = max(due - self._clock(), _TIMER_FLOOR)
        self._progress_timer = asyncio.get_running_loop().call_later(delay, self._dirty.set)

    async def _write(self, status: JobStatus) -> None:
        while True:
            try:
                await self._sink.publish(bounded(status))
            except OSError as error:
                log.warning("the status cannot be published (%s); nobody is told anything new until it can", error)
                await asyncio.sleep(_SINK_RETRY)
            else:
                self._note_trouble()
                return

    def _note_trouble(self) -> None:
        """Tell in the job's story when no later coordinator can read what is published, and when it can again."""
        trouble = self._sink.trouble
        if bool(trouble) != bool(self._trouble):
            self.note("status-undurable" if trouble else "status-durable", trouble or "the status can be written again")
        self._trouble = trouble

    def _settle(self, version: int) -> None:
        self._durable = version
        for settled in self._settling:
            settled.set()
        self._check_dismissed()


def _audible(state: State) -> tuple[object, ...]:
    """What of the state an answer to a parked report can depend on; its own report cannot change while it is parked."""
    inquiry = None if state.inquiry is None else state.inquiry.number
    return state.state, state.fence, state.broken, state.verdict, state.away, inquiry, checks.task(state)


def _gist(status: JobStatus) -> JobStatus:
    """The status without what changes all the time."""
    return dataclasses.replace(status, progress=Progress(), ranks=(), samples=(), updated_at=0.0)


def _log_news(before: State, after: State) -> None:
    if after.events is before.events:
        return
    known = set(map(id, before.events))
    for event in after.events:
        if id(event) not in known:
            log.info("%s: %s", event.kind, event.detail)
