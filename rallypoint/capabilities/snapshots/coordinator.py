"""The coordinator's half: which node keeps whose snapshots, and the last checkpoint of an attempt. Pure.

Theory of operation
===================

When an attempt ends because no cheaper recovery is left, the rendezvous holds back the verdict (`RoundView.ending`) and agents
stop their workers as at the end of any round. Waiting agents then receive requests. First each one reports the snapshots in its
memory, those of other nodes included. An agent that has not regrouped may have a snapshot that its last report does not
mention, so this phase ends when all survivors have answered or regrouped without a snapshot. The newest complete snapshot is
chosen, and each of its parts is assigned to one agent, which writes the part. After all parts are written, one agent verifies
that and renames the checkpoint. Then the attempt ends (`EndSaving`). If an agent is lost meanwhile or cannot write, or after
`DUMP_TIMEOUT`, the attempt ends without a last checkpoint; earlier checkpoints stay as they are.

A coordinator that takes over begins again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rallypoint.capabilities.base import CoordinatorCapability, Effect, EndSaving, RoundView
from rallypoint.capabilities.snapshots.wire import (
    AssignmentSection,
    HeldParts,
    ReplySection,
    ReportSection,
    SavePhase,
    SaveRequest,
    SaveResult,
)
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import DUMP_TIMEOUT, Rung
from rallypoint.wire.messages import AgentReport, AgentState
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus, Member

__all__ = ["Saving", "Snapshots", "choose", "create"]


@dataclass(frozen=True, kw_only=True)
class Saving:
    """A last checkpoint that is being saved.

    Attributes:
        number: number of the last round.
        since: start, on the coordinator's clock.
        phase: of the current requests; `results` are the answers by agent.
        agents: agents of the last world that are asked first.
        fence, step: the chosen snapshot; `shares` are the ranks whose parts each agent writes.
    """

    number: int
    since: float
    agents: frozenset[str]
    phase: SavePhase = SavePhase.TELL
    results: Mapping[str, SaveResult] = field(default_factory=dict, hash=False)
    fence: Fence = Fence()
    step: int = 0
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)

    @property
    def asked(self) -> frozenset[str]:
        """The agents that receive a request in this phase."""
        if self.phase is SavePhase.TELL:
            return self.agents
        return frozenset(self.shares) if self.phase is SavePhase.WRITE else frozenset({min(self.shares)})


class Snapshots(CoordinatorCapability["Saving | None"]):
    """Its state is the last checkpoint that is being saved, None without one."""

    name = "snapshots"

    def restore(self, published: JobStatus | None, *, continues: bool, now: float) -> Saving | None:
        """Begin a last checkpoint again that the coordinator before has begun."""
        if published is None or not continues or published.verdict is not None:
            return None
        if not any(i.rung is Rung.DUMP and i.id.attempt == published.fence.attempt for i in published.incidents):
            return None
        # No agent has reported yet, so all of them are asked.
        agents = frozenset(member.agent for member in published.world)
        return Saving(number=published.fence.round, since=now, agents=agents)

    def can_save(self, reports: Iterable[AgentReport]) -> bool:
        """Return whether a node has a snapshot, and knows where a checkpoint is stored."""
        return any(ReportSection.of(report).dumps for report in reports)

    def on_report(
        self, state: Saving | None, report: AgentReport, before: AgentReport | None, view: RoundView, now: float
    ) -> Saving | None:
        """Store an answer, and ask agents that turn out to have a snapshot."""
        if state is None:
            return None
        if state.phase is SavePhase.TELL and not state.agents >= (holders := _holders(view)):
            state = dataclasses.replace(state, agents=state.agents | holders)
        result = ReportSection.of(report).dump
        if result is None or (result.number, result.phase) != (state.number, state.phase):
            return state
        return dataclasses.replace(state, results={**state.results, report.agent: result})

    def after_losses(self, state: Saving | None, view: RoundView, now: float) -> tuple[Saving | None, Sequence[Effect]]:
        """Begin when the rendezvous holds back the verdict, and apply every conclusion that is due."""
        state = _begun(view, now) if state is None else state
        return (None, ()) if state is None else _advanced(state, view, now)

    def after_tick(self, state: Saving | None, view: RoundView, now: float) -> Saving | None:
        """Begin if the verdict was held back while a round would have been formed."""
        return _begun(view, now) if state is None else state

    def assignment_for(self, state: Saving | None, member: Member, view: RoundView) -> AssignmentSection:
        """Return where the next node takes this node's snapshots; the nodes of a world form a ring."""
        follower = view.world[(member.group_rank + 1) % len(view.world)]
        peer = view.peers.get(follower.agent)
        return AssignmentSection(replicas="" if follower is member or peer is None else ReportSection.of(peer.report).replicas)

    def reply_for_waiting(self, state: Saving | None, report: AgentReport) -> ReplySection | None:
        """Return the request to an agent that has not answered yet."""
        if state is None or report.agent not in state.asked or report.agent in state.results:
            return None
        request = SaveRequest(
            number=state.number,
            phase=state.phase,
            fence=state.fence,
            step=state.step,
            ranks=state.shares.get(report.agent, ()),
        )
        return ReplySection(dump=request)

    def next_deadline(self, state: Saving | None) -> float | None:
        """Return when the last checkpoint is given up."""
        return None if state is None else state.since + DUMP_TIMEOUT


def create(_plan: Plan) -> Snapshots:
    """Return the coordinator's half."""
    return Snapshots()


def _begun(view: RoundView, now: float) -> Saving | None:
    if not view.ending or view.verdict is not None:
        return None
    return Saving(number=view.fence.round, since=now, agents=_holders(view))


def _holders(view: RoundView) -> frozenset[str]:
    """Return the survivors that have a snapshot; agents of an earlier version never report one and are not asked."""
    return frozenset(report.agent for report in view.survivors() if ReportSection.of(report).dumps)


def _advanced(saving: Saving, view: RoundView, now: float) -> tuple[Saving | None, Sequence[Effect]]:
    """Return the next phase and no effect, or None and the end."""
    while True:
        living = {name for name, peer in view.peers.items() if peer.report.state is not AgentState.LEAVING}
        lost, first = saving.asked - living, saving.phase is SavePhase.TELL
        if lost and not first:
            return _given_up("a node that stores a part of the snapshot was lost")
        if now >= saving.since + DUMP_TIMEOUT:
            return _given_up(f"the checkpoint was not written within {DUMP_TIMEOUT:g} s")
        if saving.asked - lost - set(saving.results):
            return saving, ()
        if first and not all(report.state is AgentState.WAITING for report in view.survivors()):
            return saving, ()
        failed = next((result for result in saving.results.values() if result.error), None)
        if failed is not None:
            return _given_up(failed.error)
        if saving.phase is SavePhase.COMMIT:
            name = next((result.checkpoint for result in saving.results.values()), "")
            return None, [EndSaving(saved=True, detail=f"saved a last checkpoint of step {saving.step}: {name}")]
        if first:
            chosen = choose({agent: result.kept for agent, result in saving.results.items()})
            if chosen is None:
                return _given_up("no complete snapshot is available")
            fence, step, shares = chosen
            saving = dataclasses.replace(saving, phase=SavePhase.WRITE, results={}, fence=fence, step=step, shares=shares)
        else:
            saving = dataclasses.replace(saving, phase=SavePhase.COMMIT, results={})


def _given_up(why: str) -> tuple[None, Sequence[Effect]]:
    return None, [EndSaving(saved=False, detail=f"cannot save a last checkpoint: {why}")]


def choose(held: Mapping[str, Sequence[HeldParts]]) -> tuple[Fence, int, dict[str, tuple[int, ...]]] | None:
    """Return the newest complete snapshot, and the ranks whose parts each agent writes; None without one."""
    every = [(kept.fence, kept.step) for parts in held.values() for kept in parts]
    for age in sorted(set(every), reverse=True):
        shares: dict[str, list[int]] = {}
        owner: dict[int, str] = {}
        found = [(agent, kept) for agent, parts in sorted(held.items()) for kept in parts if (kept.fence, kept.step) == age]
        whole = next(((agent, kept) for agent, kept in found if kept.whole), None)
        if whole is not None:
            return *age, {whole[0]: whole[1].ranks[:1]}
        for agent, kept in found:
            for rank in kept.ranks:
                if owner.setdefault(rank, agent) == agent:
                    shares.setdefault(agent, []).append(rank)
        if set(owner) == set(range(found[0][1].world_size)):
            return *age, {agent: tuple(sorted(set(ranks))) for agent, ranks in shares.items()}
    return None
