"""What must hold of the node agent in every order of events."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from rallypoint.agent.node.decide import Node, Phase, step
from rallypoint.agent.node.events import (
    Action,
    Announced,
    End,
    Event,
    Freed,
    LeaveOverdue,
    LeaveWorld,
    StartWorkers,
    StepFailed,
    StopWorkers,
    StoreLost,
    WorkersEnded,
    WorkersGone,
)
from rallypoint.wire.fence import Fence
from rallypoint.wire.incident import Culprit
from rallypoint.wire.messages import Continue, Refusal, Regroup, Stop
from tests.agent.test_decide import FENCE, LOST, SIGTERM, SUCCEEDED, answered, assignment

ranks = st.frozensets(st.integers(0, 1))
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(lambda r, t: answered(assignment(r, t)), st.integers(1, 5), st.integers(1, 3)),
    st.just(answered(Regroup(fence=FENCE, reason="a node was lost"))),
    st.just(answered(Continue(fence=FENCE))),
    st.sampled_from([answered(Refusal(fence=FENCE, reason="x", stale=stale)) for stale in (False, True)]),
    st.just(answered(Stop(fence=FENCE, verdict=SUCCEEDED))),
    st.builds(lambda r: WorkersEnded(ranks=r), ranks),
    st.builds(lambda r: WorkersEnded(ranks=r, failures=tuple(Culprit(local_rank=i) for i in r)), ranks),
    st.just(WorkersGone()),
    st.just(StoreLost(reason="killed")),
    st.sampled_from([SIGTERM, LOST]),
)


@given(st.lists(events, max_size=30))
def test_no_two_rounds_at_once_and_one_end(story: list[Event]) -> None:
    """Workers start only where none are left, rounds only grow, the fence never falls, and the end comes once."""
    node, free, started, ends = Node(local_world_size=2, fence=Fence(attempt=1)), True, 0, 0
    for event in story:
        before = node
        node, actions = step(node, event)
        assert node.fence >= before.fence
        free = free or isinstance(event, WorkersGone)
        for action in actions:
            if isinstance(action, StartWorkers):
                assert free
                assert action.assignment.fence.round > started
                free, started = False, action.assignment.fence.round
            if isinstance(action, End):
                ends += 1
        if before.phase is Phase.ENDED:
            assert (node, actions) == (before, ())
        if node.phase in (Phase.FAILING, Phase.REGROUPING, Phase.ENDING) and before.phase is not node.phase:
            assert {StopWorkers(), StopWorkers(at_once=True)} & set(actions)
    assert ends == (node.phase is Phase.ENDED)


rounds = st.integers(0, 5)
kept_assignments = st.builds(
    lambda r, t, kept: answered(dataclasses.replace(assignment(r, t), kept=kept)),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 2),
)
living: st.SearchStrategy[Event] = st.one_of(
    st.builds(Announced, round=rounds, local_rank=st.integers(0, 1), able=st.booleans(), resizable=st.booleans()),
    st.builds(Freed, round=rounds, local_rank=st.integers(0, 1)),
    st.builds(lambda r, rank: StepFailed(round=r, failure=Culprit(local_rank=rank, lives=True)), rounds, st.integers(0, 1)),
    st.builds(LeaveOverdue, round=rounds),
    st.builds(WorkersGone, spared=ranks),
    kept_assignments,
)


class _Shell:
    """What whoever does the actions knows: who is being stopped, and who owes a word."""

    def __init__(self) -> None:
        self.stopping = False
        self.spared: frozenset[int] = frozenset()
        self.owing: frozenset[int] = frozenset()

    def saw(self, event: Event, round_: int) -> None:
        if isinstance(event, WorkersGone) and event.spared == self.spared:
            self.stopping = False
        elif isinstance(event, Freed) and event.round == round_:
            self.owing -= {event.local_rank}
        elif isinstance(event, StepFailed) and event.round == round_:
            self.owing -= {event.failure.local_rank}
        elif isinstance(event, WorkersEnded):
            self.owing -= event.ranks

    def does(self, action: Action) -> None:
        if isinstance(action, LeaveWorld):
            assert action.ranks
            self.owing = action.ranks
        elif isinstance(action, StopWorkers):
            self.stopping, self.spared = True, action.spare
            self.owing &= action.spare
        elif isinstance(action, StartWorkers):
            assert not self.stopping, "somebody of the last round is still being stopped"
            assert not self.owing, "somebody has not left the last world"
            assert action.kept <= self.spared
            assert not action.kept or action.assignment.kept
            self.spared = frozenset()


@given(st.lists(st.one_of(events, living, living), max_size=40))
def test_who_lives_on_is_started_by_nobody_and_spared_by_all(story: list[Event]) -> None:
    """A place is asked for when all but the kept are gone and the kept have left; those, and only those, are not started."""
    node, shell = Node(local_world_size=2, fence=Fence(attempt=1), keeps=True), _Shell()
    for event in story:
        shell.saw(event, node.round)
        node, actions = step(node, event)
        for action in actions:
            shell.does(action)
        assert node.kept <= node.alive
        assert node.owing <= node.kept
        assert node.phase is not Phase.JOINING or not (node.stopping or node.owing)
        assert node.phase not in (Phase.ENDING, Phase.ENDED) or not node.kept
