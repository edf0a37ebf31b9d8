"""The shell around the rendezvous: it serialises what is said, publishes what follows, and answers in its own time.

Everything runs in one event loop and the core is called without a pause in between, so no lock is needed. What is said in one
turn of the loop is taken over together, and concluded from once: agents come in thousands, and each conclusion looks at all of
them. Where that takes long, the next one waits a few times as long, so that listening and answering get most of the time.

Each change of the state gets a number; the publisher writes the newest state and then raises the number that is durable. An
answer leaves only when the state that it was read from is durable, so a coordinator that is killed has told nobody what its
successor cannot read.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rallypoint.agent.clock import Clock
from rallypoint.agent.coordinator import event_lines
from rallypoint.agent.coordinator.sink import StatusSink
from rallypoint.agent.errors import StaleError
from rallypoint.agent.rendezvous import checks, telling, tuning, wishes
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import State
from rallypoint.agent.rendezvous.health import rounds as hang_rounds
from rallypoint.agent.transport.service import MAX_HOLD
from rallypoint.agent.waiting import set_within
from rallypoint.supervision.folding import bounded
from rallypoint.wire.messages import AgentReport, Assignment, Continue, Refusal, Reply, Stop
from rallypoint.wire.missing import Absence
from rallypoint.wire.size import Size
from rallypoint.wire.status import JobStatus, Progress, Verdict
from rallypoint.wire.wish import Wish

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

#: Seconds by which a timer may be late. If it is later than that nobody was listened to meanwhile, and nobody was silent.
_LATE = 0.05

#: Turns of the loop in which what has arrived is read, understood and taken over.
_TURNS = 4

#: How many times as long as the last one took is waited for the next conclusion, or for a write that nobody waits for; and how
#: many seconds at the most.
_PAUSE, _LONGEST_PAUSE = 3.0, 0.25


@dataclass(eq=False)
class _Asked:
    """A report whose answer is held back.

    `reply` is the answer that is about to be given, read from the state of number `version`; None while there is nothing to
    say. `over` says that the time is over for which the agent wants to wait for one.
    """

    report: AgentReport
    answer: asyncio.Future[Reply]
    until: float
    reply: Reply | None = None
    version: int = 0
    over: bool = False
    timer: asyncio.TimerHandle | None = None


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
        self._state, self._sink, self._clock, self._log = state, sink, clock, log_event
        self._own = state.settings
        self._progress_period, self._trouble = progress_period, ""
        self._version, self._durable = 1, 0
        #: What was said and not taken over yet, in its order; a text is the name of an agent that hung up.
        self._inbox: list[_Asked | str] = []
        self._told: list[tuple[str, Reply]] = []
        self._parked: dict[str, _Asked] = {}
        self._ready: dict[str, _Asked] = {}
        self._sequences: dict[str, int] = {}
        self._dirty, self._urgent = asyncio.Event(), asyncio.Event()
        self._turn: asyncio.Handle | None = None
        self._not_before = 0.0
        self._due, self._listened, self._calling = 0.0, clock(), False
        self._timer: asyncio.TimerHandle | None = None
        self._progress_timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()
        self._closing = self._dismissed = False
        self._unsupervised: float | None = None

    # --- What a server calls -----------------------------------------------------------------------------------------------

    async def report(self, report: AgentReport) -> Reply:
        """Take a report and answer it; see `CoordinatorService.report`."""
        if self._closing:
            return self._last_word()
        loop = asyncio.get_running_loop()
        hold = min(report.hold, MAX_HOLD) + (rendezvous.stretch(self._state) if report.hold else 0.0)
        asked = _Asked(report=report, answer=loop.create_future(), until=loop.time() + hold)
        self._inbox.append(asked)
        self._take_soon()
        try:
            return await asked.answer
        finally:
            self._forget(asked)

    def hung_up(self, agent: str) -> None:
        """Note that an agent is gone; see `CoordinatorService.hung_up`."""
        if not self._closing:
            self._inbox.append(agent)
            self._take_soon()

    def status(self) -> JobStatus:
        """Return what is true now, durable or not yet."""
        status = rendezvous.status(self._state, self._clock())
        return dataclasses.replace(status, durable=False) if self._trouble_now else status

    @property
    def _trouble_now(self) -> str:
        return "" if self._sink is None else self._sink.trouble

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

    def wish(self, wish: Wish | None) -> None:
        """Pass on what somebody asks of the workers; does nothing for what is known."""
        state = wishes.wished(self._state, wish, self._clock())
        if state is not self._state:
            self._apply(state)

    def change(self, change: Callable[[State, float], State]) -> State:
        """Change the state by a function of it and of now, and return it; nothing follows where it stays the very same."""
        state = change(self._state, self._clock())
        if state is not self._state:
            self._apply(rendezvous.tick(state, self._clock()))
        return self._state

    def conclude(self, verdict: Verdict) -> None:
        """End the attempt with a verdict, unless it has one."""
        if self._state.verdict is None:
            self._apply(telling.verdict(self._state, verdict, self._clock()))

    # --- Its life ----------------------------------------------------------------------------------------------------------

    async def publish_first(self) -> None:
        """Publish the first status, before anybody is answered; raises `StaleError` or `OSError`."""
        if self._sink is not None:
            await self._sink.publish(self.status())
        self._note_trouble()

    async def serve(self) -> None:
        """Work until every agent was told the verdict, or `stop` was called; raises `StaleError` when it was replaced."""
        self._apply(rendezvous.tick(self._state, self._clock()))
        publisher = asyncio.create_task(self._publish(self._sink) if self._sink is not None else asyncio.Event().wait())
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
        for timer in (self._timer, self._progress_timer, self._turn):
            if timer is not None:
                timer.cancel()
        unheard = [asked for asked in self._inbox if isinstance(asked, _Asked)]
        for asked in (*unheard, *self._parked.values()):
            self._give(asked, self._last_word())

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
        state, fresh = rendezvous.opened(self._with_told(self._state)), []
        for one in said:
            if isinstance(one, str):
                state = rendezvous.disconnected(state, one, now)
            elif self._admits(state, one):
                state = rendezvous.hear(state, one.report, now)
                fresh.append(one)
        self._apply(rendezvous.tick(rendezvous.sealed(state), now, listened=self._listened), fresh)
        self._check_dismissed()
        self._not_before = loop.time() + min(_PAUSE * (loop.time() - began), _LONGEST_PAUSE)

    def _admits(self, state: State, asked: _Asked) -> bool:
        """Return whether a report is taken over, and hold its answer back; answer it at once where it is not."""
        report = asked.report
        refused = rendezvous.refusal(state, report)
        if refused is not None:
            self._give(asked, self._refuse(report, refused))
            return False
        if report.sequence < self._sequences.get(report.agent, 0):
            self._give(asked, self._nothing_new())
            return False
        self._sequences[report.agent] = report.sequence
        older = self._parked.pop(report.agent, None)
        if older is not None:  # its answer interests nobody any more
            self._give(older, self._last_word())
        if not asked.answer.done():
            self._parked[report.agent] = asked
        return True

    def _with_told(self, state: State) -> State:
        told, self._told = self._told, []
        return rendezvous.told_all(state, told) if told else state

    def _apply(self, state: State, fresh: Iterable[_Asked] = ()) -> None:
        before, self._state = self._state, state
        self._version += 1
        for event in event_lines.new_events(before, state):
            self._log(state, event)
        news = _audible(before) != _audible(state)
        for asked in tuple(self._parked.values()) if news else fresh:
            self._consider(asked)
        if self._sink is None:
            self._settle(self._version)
        else:
            self._dirty.set()
            if self._ready or state.verdict is not None:
                self._urgent.set()
        self._arm()

    def _arm(self) -> None:
        """Wake up when the core has something to conclude by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = rendezvous.deadline(self._state)
        if due is not None and not self._closing and not self._calling:
            delay = max(due - self._clock(), _TIMER_FLOOR)
            self._due = self._clock() + delay
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _tick(self) -> None:
        late = self._clock() - self._due
        if late > _LATE:
            # A leap of ours (a machine that slept, a core that was taken away) must not look like the silence of everybody.
            log.warning("listened to nobody for %.1f s", late)
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
        if rendezvous.dismissed(self._state) and self._durable >= self._version:
            self._dismissed = True
            self._over.set()

    def _refuse(self, report: AgentReport, refused: Refusal) -> Refusal:
        log.warning("agent %s on %s refused: %s", report.agent, report.host, refused.reason)
        return refused

    # --- Answering ---------------------------------------------------------------------------------------------------------

    def _consider(self, asked: _Asked) -> None:
        """Look what there is to say to an agent that waits, and say it once that is durable."""
        agent = asked.report.agent
        asked.reply, asked.version = rendezvous.answer(self._state, agent), self._version
        if asked.answer.done():
            return
        if asked.reply is not None:
            self._ready[agent] = asked
        else:
            self._ready.pop(agent, None)
        loop = asyncio.get_running_loop()
        if asked.reply is None and (asked.over or asked.until <= loop.time()):
            self._give(asked, self._last_word())
        elif asked.timer is None:
            asked.timer = loop.call_at(asked.until, self._hold_over, asked)

    def _hold_over(self, asked: _Asked) -> None:
        if asked.over or asked.reply is None:
            self._give(asked, self._last_word())
            return
        asked.over = True  # what there is to say may still become durable
        hold = min(asked.report.hold, MAX_HOLD)
        asked.timer = asyncio.get_running_loop().call_later(max(0.0, self._durable_within() - hold), self._hold_over, asked)

    def _last_word(self) -> Reply:
        """What an agent is told for want of anything new; once everybody was told the verdict, that."""
        verdict = self._state.verdict
        if self._dismissed and verdict is not None:
            return Stop(fence=self._state.fence, verdict=verdict)
        return self._nothing_new()

    def _nothing_new(self) -> Continue:
        pace = hang_rounds.pace(self._state)
        return Continue(fence=self._state.fence, unsupervised=self._unsupervised, pace=pace)

    def _durable_within(self) -> float:
        return min(_DURABLE_WITHIN, self._state.settings.node_lease / 3)

    def _tell_ready(self) -> None:
        """Give the answers that were read from a durable state and are still right."""
        for asked in tuple(self._ready.values()):
            if asked.version > self._durable:
                continue
            known = asked.reply
            if asked.version != self._version:
                self._consider(asked)
            if asked.reply is not None and asked.reply == known:
                self._give(asked, self._tell(asked.report.agent, asked.reply))

    def _tell(self, agent: str, reply: Reply) -> Reply:
        if isinstance(reply, Continue):
            return dataclasses.replace(reply, unsupervised=self._unsupervised)
        if isinstance(reply, (Assignment, Stop)):
            self._told.append((agent, reply))
            self._take_soon()
        return reply

    def _give(self, asked: _Asked, reply: Reply) -> None:
        if not asked.answer.done():
            asked.answer.set_result(reply)
        self._forget(asked)

    def _forget(self, asked: _Asked) -> None:
        """Drop a report that was answered, or whose answer nobody waits for any more."""
        agent = asked.report.agent
        for held in (self._parked, self._ready):
            if held.get(agent) is asked:
                del held[agent]
        if asked.timer is not None:
            asked.timer.cancel()

    # --- Publishing --------------------------------------------------------------------------------------------------------

    async def _publish(self, sink: StatusSink) -> None:
        loop = asyncio.get_running_loop()
        published: JobStatus | None = None
        due, pause_until = self._clock(), 0.0
        while True:
            await self._dirty.wait()
            await set_within(self._urgent, pause_until - loop.time())
            self._dirty.clear()
            self._urgent.clear()
            began = loop.time()
            version, status = self._version, self.status()
            if published is None or _gist(status) != _gist(published) or self._clock() >= due:
                await self._write(sink, status)
                published, due = status, self._clock() + self._progress_period
            else:  # the gist is durable already; the rest follows when it is due
                self._publish_at(due)
            self._settle(version)
            pause_until = loop.time() + min(_PAUSE * (loop.time() - began), _LONGEST_PAUSE)

    def _publish_at(self, due: float) -> None:
        if self._progress_timer is not None:
            self._progress_timer.cancel()
        delay = max(due - self._clock(), _TIMER_FLOOR)
        self._progress_timer = asyncio.get_running_loop().call_later(delay, self._dirty.set)

    async def _write(self, sink: StatusSink, status: JobStatus) -> None:
        while True:
            try:
                await sink.publish(bounded(status))
            except OSError as error:
                log.warning("the status cannot be published (%s); nobody is told anything new until it can", error)
                await asyncio.sleep(_SINK_RETRY)
            else:
                self._note_trouble()
                return

    def _note_trouble(self) -> None:
        """Tell in the job's story when no later coordinator can read what is published, and when it can again."""
        trouble = self._trouble_now
        if bool(trouble) != bool(self._trouble):
            self.note("status-undurable" if trouble else "status-durable", trouble or "the status can be written again")
        self._trouble = trouble

    def _settle(self, version: int) -> None:
        self._durable = version
        self._tell_ready()
        self._check_dismissed()


def _audible(state: State) -> tuple[object, ...]:
    """What of the state an answer to a parked report can depend on; its own report cannot change while it is parked."""
    inquiry = None if state.inquiry is None else state.inquiry.number
    asked = inquiry, checks.task(state), state.wish, tuning.tuned(state)
    return state.state, state.fence, state.broken, state.verdict, state.away, *asked


def _gist(status: JobStatus) -> JobStatus:
    """The status without what changes all the time; a report that is overdue is mostly there a moment later."""
    gone = tuple(one for one in status.missing if one.why is not Absence.SILENT)
    # Of a slow rank that it is slow; how slow is measured anew with each of its steps.
    slow = (dataclasses.replace(one, score=0.0, own=0.0, usual=0.0, step=0.0) for one in status.stragglers)
    return dataclasses.replace(
        status,
        progress=Progress(),
        ranks=(),
        phases={},
        samples=(),
        stragglers=tuple(sorted(slow, key=lambda one: one.rank)),
        missing=gone,
        missing_count=len(gone),
        updated_at=0.0,
    )
