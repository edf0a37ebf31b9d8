"""What must hold of the node agent in every order of events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rallypoint.agent.node.decide import (
    End,
    Event,
    Node,
    Phase,
    StartWorkers,
    StopWorkers,
    StoreLost,
    WorkersEnded,
    WorkersGone,
    step,
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
            assert StopWorkers() in actions
    assert ends == (node.phase is Phase.ENDED)
