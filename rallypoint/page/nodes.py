"""The nodes of the last world and their ranks: how far each is, and who broke. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rallypoint.page import spans
from rallypoint.page.values import Mood, NodeRow, RankCell
from rallypoint.wire.incident import FREE, Incident
from rallypoint.wire.status import JobStatus, Member, RankStatus

__all__ = ["RANKS", "nodes"]

#: Ranks that are shown one by one; a larger world is shown by node.
RANKS = 4096

#: Seconds that a rank may be behind, and steps: agents do not speak at the same moment.
_SLACK, _SLACK_STEPS = 10.0, 2


def nodes(status: JobStatus | None, incidents: Iterable[Incident]) -> Iterator[NodeRow]:
    """Yield the nodes of the world, and then those that wait for a place; none where the coordinator is silent."""
    if status is None:
        return
    culprits = [i.culprit for i in incidents if i.culprit is not None and i.cause not in FREE]
    few = status.world_size <= RANKS
    furthest, slack = max((w.step for w in status.ranks if w.step is not None), default=0), _slack(status)
    steps = {worker.rank: worker for worker in status.ranks}
    for member in status.world:
        ranks = range(member.first_rank, member.first_rank + member.local_world_size)
        cells = tuple(
            RankCell(
                rank=rank,
                step=steps[rank].step if rank in steps else None,
                behind=_behind(steps.get(rank), furthest, slack),
                pid=steps[rank].pid if rank in steps else 0,
                faults=sum(1 for c in culprits if c.rank == rank),
            )
            for rank in (ranks if few else ())
        )
        state, mood = _node_state(member, any(rank in steps for rank in ranks), status)
        yield NodeRow(
            node=member.node,
            host=member.host,
            incarnation=member.incarnation,
            state=state,
            mood=mood,
            ranks=cells,
            faults=sum(1 for c in culprits if c.node == member.node),
        )
    for member in status.waiting:
        yield NodeRow(
            node=member.node, host=member.host, incarnation=member.incarnation, state="waiting for a round", mood=Mood.BUSY
        )


def _slack(status: JobStatus) -> int:
    """Return how many steps a rank may be behind before that is worth a word."""
    pace = spans.seconds_per_step(status)
    return _SLACK_STEPS if not pace else max(_SLACK_STEPS, round(_SLACK / pace))


def _behind(worker: RankStatus | None, furthest: int, slack: int) -> int:
    if worker is None or worker.step is None:
        return 0
    return furthest - worker.step if furthest - worker.step > slack else 0


def _node_state(member: Member, heard: bool, status: JobStatus) -> tuple[str, Mood]:  # noqa: FBT001  one of two
    if member.done:
        return "done", Mood.GOOD
    if status.verdict is not None:
        return "ended", Mood.QUIET
    return ("trains", Mood.GOOD) if heard else ("no report in this round", Mood.BUSY)
