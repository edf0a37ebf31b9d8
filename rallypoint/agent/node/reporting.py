"""What an agent says of its node: everything that is true of it, and what of it is worth saying at once."""

from __future__ import annotations

import os
import uuid

from rallypoint.agent.culprit import with_few_tails
from rallypoint.agent.node.decide import Node, Phase
from rallypoint.agent.node.parts import Parts
from rallypoint.agent.rendezvous.settings import HEARD_EVERY, pace_of
from rallypoint.wire.messages import AgentReport, AgentState, WorkerReport
from rallypoint.wire.plan import Plan
from rallypoint.wire.sections import Sections

__all__ = ["Looks", "Reporter", "report_pace"]


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
