"""Worker commands in the coordinator: forward the last one to all agents, and collect the answers of all ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.capabilities.base import CoordinatorCapability, Effect, RecordEvent, RoundView
from rallypoint.capabilities.commands.wire import ReplySection, ReportSection, StatusSection
from rallypoint.wire.messages import AgentReport
from rallypoint.wire.plan import Plan
from rallypoint.wire.status import JobStatus
from rallypoint.wire.wish import RankAnswer, Wish, WishStatus

__all__ = ["Commands", "State", "create"]

#: The last command, None before the first.
State = Wish | None


class Commands(CoordinatorCapability[State]):
    """The coordinator's half of the capability."""

    name = "commands"

    def restore(self, published: JobStatus | None, *, continues: bool, now: float) -> State:
        """Begin without a command: the service reads the last one again."""
        return None

    def on_request(self, state: State, request: object, view: RoundView, now: float) -> tuple[State, Sequence[Effect]]:
        """Return the state with a command of this attempt; the same state if it is not newer."""
        if not isinstance(request, Wish) or request.attempt != view.fence.attempt or request == state:
            return state, ()
        if state is not None and request.number < state.number:
            return state, ()  # read from an older copy of the job's record
        return request, (RecordEvent(kind="worker-command", detail=f"{request.verb.value}, sent to all ranks"),)

    def reply_for(self, state: State, report: AgentReport) -> ReplySection | None:
        """Return the command for an agent that has not received it."""
        answer = ReportSection.of(report).wish
        return None if state is None or (answer is not None and answer.number >= state.number) else ReplySection(wish=state)

    def reply_key(self, state: State) -> object:
        """Return the command."""
        return state

    def to_status(self, state: State, view: RoundView) -> StatusSection | None:
        """Return the command with an answer for every rank of the world, empty for ranks without an answer."""
        if state is None:
            return None
        answers = (ReportSection.of(report).wish for _, report in view.members())
        known = {
            one.rank: one for answer in answers if answer is not None and answer.number == state.number for one in answer.ranks
        }
        ranks = [m.first_rank + local_rank for m in view.world for local_rank in range(m.local_world_size)]
        ranked = tuple(known.get(rank, RankAnswer(rank=rank)) for rank in sorted(ranks))
        return StatusSection(wish=WishStatus(number=state.number, verb=state.verb, ranks=ranked))


def create(_plan: Plan) -> Commands:
    """Return the coordinator's half; every job has it."""
    return Commands()
