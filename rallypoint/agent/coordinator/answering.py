"""Answers that are held back: until there is something to say, until that is durable, or until the agent waits no longer.

An answer leaves only when the state that it was read from is durable, so a coordinator that is killed has told nobody what its
successor cannot read.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rallypoint.agent.rendezvous import capabilities
from rallypoint.agent.rendezvous import core as rendezvous
from rallypoint.agent.rendezvous.core import State
from rallypoint.agent.rendezvous.settings import HEARD_EVERY
from rallypoint.agent.transport.service import MAX_HOLD
from rallypoint.wire.messages import AgentReport, Assignment, Continue, Reply, Stop

__all__ = ["Answers", "Asked"]

#: Seconds that the sink has to make an answer durable, also where the agent's hold is shorter. Longer, and the agent is told
#: nothing new: it must neither take us for dead nor seem dead itself because a disk is full.
_DURABLE_WITHIN = 5.0


@dataclass(eq=False)
class Asked:
    """A report whose answer is held back.

    `reply` is the answer that is about to be given, read from the state of number `version`; None while there is nothing to
    say. `until` is how long the agent wants to wait for one, by the loop's clock; `over` says that this is over.
    """

    report: AgentReport
    answer: asyncio.Future[Reply]
    until: float
    reply: Reply | None = None
    version: int = 0
    over: bool = False
    timer: asyncio.TimerHandle | None = None


class Answers:
    """Who waits for an answer, and what each is told when.

    `newest` returns the state as it is now, and `told` is called with the name of an agent and what it was told where the state
    must know that.

    Attributes:
        version: the number of the newest state; `durable` is that of the newest that a successor can read.
        unsupervised: seconds for which no supervisor was seen, None where nobody looks.
        dismissed: everybody was told the verdict, and who asks now is told it, too.
    """

    def __init__(self, newest: Callable[[], State], *, told: Callable[[str, Reply], None]) -> None:
        self._newest, self._told = newest, told
        self.version, self.durable = 1, 0
        self.unsupervised: float | None = None
        self.dismissed = False
        self._parked: dict[str, Asked] = {}
        self._ready: dict[str, Asked] = {}

    @property
    def ready(self) -> bool:
        """Whether something is to be told as soon as it is durable."""
        return bool(self._ready)

    def asked(self, report: AgentReport) -> Asked:
        """Begin to hold an answer back."""
        loop = asyncio.get_running_loop()
        return Asked(report=report, answer=loop.create_future(), until=loop.time() + min(report.hold, MAX_HOLD))

    def park(self, asked: Asked) -> None:
        """Keep a report whose answer may take a while; the one before it is let go."""
        agent = asked.report.agent
        older = self._parked.pop(agent, None)
        if older is not None:  # its answer interests nobody any more
            self.give(older, self.last_word())
        if not asked.answer.done():
            self._parked[agent] = asked

    def became(self, before: State, fresh: Iterable[Asked]) -> None:
        """Look what there is to say now that the state is another: to all, or to the `fresh` where that is no news."""
        self.version += 1
        news = _audible(before) != _audible(self._newest())
        for asked in tuple(self._parked.values()) if news else fresh:
            self._consider(asked)

    def settled(self, version: int) -> None:
        """Give the answers that were read from a durable state and are still right; `version` is the newest such one."""
        self.durable = version
        for asked in tuple(self._ready.values()):
            if asked.version > version:
                continue
            known = asked.reply
            if asked.version != self.version:
                self._consider(asked)
            if asked.reply is not None and asked.reply == known:
                self.give(asked, self._tell(asked.report.agent, asked.reply))

    def last_word(self) -> Reply:
        """What an agent is told for want of anything new; once everybody was told the verdict, that."""
        state = self._newest()
        if self.dismissed and state.verdict is not None:
            return Stop(fence=state.fence, verdict=state.verdict)
        return self.nothing_new()

    def nothing_new(self) -> Continue:
        """What an agent is told that waited for nothing."""
        state = self._newest()
        return Continue(fence=state.fence, unsupervised=self.unsupervised, pace=capabilities.report_period(state))

    def give(self, asked: Asked, reply: Reply) -> None:
        """Answer, once."""
        if not asked.answer.done():
            asked.answer.set_result(reply)
        self.forget(asked)

    def forget(self, asked: Asked) -> None:
        """Drop a report that was answered, or whose answer nobody waits for any more."""
        agent = asked.report.agent
        for held in (self._parked, self._ready):
            if held.get(agent) is asked:
                del held[agent]
        if asked.timer is not None:
            asked.timer.cancel()

    def close(self, unheard: Iterable[Asked]) -> None:
        """Answer everybody who waits, and the `unheard`."""
        for asked in (*unheard, *self._parked.values()):
            self.give(asked, self.last_word())

    def _consider(self, asked: Asked) -> None:
        """Look what there is to say to an agent that waits, and say it once that is durable."""
        agent = asked.report.agent
        asked.reply, asked.version = rendezvous.answer(self._newest(), agent), self.version
        if asked.answer.done():
            return
        if asked.reply is not None:
            self._ready[agent] = asked
        else:
            self._ready.pop(agent, None)
        loop, due = asyncio.get_running_loop(), self._due(asked)
        if asked.reply is None and (asked.over or due <= loop.time()):
            self.give(asked, self.last_word())
        elif asked.timer is None:
            asked.timer = loop.call_at(due, self._hold_over, asked)

    def _due(self, asked: Asked) -> float:
        """Until when an answer is held back. Who came first, before thousands, waits as long as they do."""
        return asked.until + (rendezvous.stretch(self._newest()) if asked.report.hold else 0.0)

    def _hold_over(self, asked: Asked) -> None:
        loop, due = asyncio.get_running_loop(), self._due(asked)
        if asked.over or (asked.reply is None and due <= loop.time()):
            self.give(asked, self.last_word())
            return
        if asked.reply is None:  # others have come meanwhile
            asked.timer = loop.call_at(due, self._hold_over, asked)
            return
        asked.over = True  # what there is to say may still become durable
        durable_within = min(_DURABLE_WITHIN, self._newest().settings.node_lease / 3, HEARD_EVERY)
        longer = max(0.0, durable_within - min(asked.report.hold, MAX_HOLD))
        asked.timer = loop.call_later(longer, self._hold_over, asked)

    def _tell(self, agent: str, reply: Reply) -> Reply:
        if isinstance(reply, Continue):
            return dataclasses.replace(reply, unsupervised=self.unsupervised)
        if isinstance(reply, (Assignment, Stop)):
            self._told(agent, reply)
        return reply


def _audible(state: State) -> tuple[object, ...]:
    """What of the state an answer to a parked report can depend on; its own report cannot change while it is parked."""
    return state.state, state.fence, state.forming.reason, state.verdict, state.away, capabilities.reply_key(state)
