"""Incidents are joined, never lost and never counted twice."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from rallypoint.supervision.budget import Budget
from rallypoint.wire.incident import Answer, Cause, Culprit, FaultKind, Incident, IncidentId, Rung, merge_incidents


def lost(node: int, incarnation: int = 1, **more: object) -> Incident:
    incident = Incident(
        id=IncidentId(attempt=1, round=0, node=node, sequence=incarnation), cause=Cause.NODE, rung=Rung.RECOVER, reason="lost"
    )
    return dataclasses.replace(incident, **more)  # type: ignore[arg-type]


def test_two_tellings_of_one_fault_are_joined() -> None:
    """The supervisor's and the coordinator's view become one incident with what either knew."""
    supervisor = lost(1, detected_at=5.0, healed_at=9.0)
    coordinator = lost(1, detected_at=4.0, rung=Rung.ELASTIC_TRAINING, last_step=30, resumed_step=20)
    [joined] = merge_incidents((supervisor,), (coordinator,))
    assert (joined.detected_at, joined.healed_at, joined.rung, joined.steps_lost) == (4.0, 9.0, Rung.ELASTIC_TRAINING, 10)


def test_what_was_free_is_free_whoever_tells_it_first() -> None:
    """The backend knows of a preemption where the coordinator only sees that the node is gone."""
    preempted, gone = lost(1, cause=Cause.PREEMPTION, kind=FaultKind.PREEMPTED), lost(1, kind=FaultKind.NODE_LOST)
    for one, other in ((preempted, gone), (gone, preempted)):
        [joined] = merge_incidents((one,), (other,))
        assert (joined.cause, joined.kind) == (Cause.PREEMPTION, FaultKind.PREEMPTED)
        assert Budget(cause=Cause.NODE, limit=0).spent((joined,), 1) == 0


def test_who_knows_more_has_the_verdict() -> None:
    """That a node is gone is said for want of anything better, and a worker to blame says more than its node."""
    rule = "rule 1"
    judged = lost(1, kind=FaultKind.HARDWARE, answer=Answer.RETRY_ELSEWHERE, rule=rule, culprit=Culprit(local_rank=0))
    seen = lost(1, kind=FaultKind.NODE_LOST, answer=Answer.RETRY_HERE, rule="table", culprit=Culprit(exit_code=5))
    for one, other in ((judged, seen), (seen, judged)):
        [joined] = merge_incidents((one,), (other,))
        assert (joined.kind, joined.answer, joined.rule) == (FaultKind.HARDWARE, Answer.RETRY_ELSEWHERE, rule)
        assert joined.culprit == Culprit(local_rank=0)


def test_a_refill_is_not_forgotten_by_a_telling_that_does_not_know_it() -> None:
    """The mark stays, whichever of the two has it."""
    for one, other in ((True, False), (False, True)):
        [joined] = merge_incidents((lost(1, refilled=one),), (lost(1, refilled=other),))
        assert joined.refilled


def test_steps_lost_are_unknown_without_reports() -> None:
    """A script that reports no step loses an unknown number, not zero."""
    assert lost(1).steps_lost is None


incidents = st.lists(st.builds(lost, st.integers(0, 2), st.integers(1, 3)), max_size=8)


@given(incidents, incidents)
def test_a_budget_does_not_care_who_tells_it_how_often(one: list[Incident], two: list[Incident]) -> None:
    """Joining is a union: repeating a telling charges nothing, and no order loses anything."""
    budget = Budget(cause=Cause.NODE, limit=3)
    joined = merge_incidents(one, two)
    assert merge_incidents(joined, two) == joined
    assert {i.id for i in merge_incidents(two, one)} == {i.id for i in joined} == {i.id for i in (*one, *two)}
    assert budget.spent(joined, 1) == len({i.id for i in (*one, *two)})


def test_a_budget_answers_as_many_faults_as_its_limit() -> None:
    """The limit itself is still answered; one more is not; other slots and attempts do not count."""
    budget = Budget(cause=Cause.NODE, limit=2, node=1)
    told = (lost(1, 1), lost(1, 2), lost(0, 1))
    assert not budget.exceeded(told, 1)
    assert budget.exceeded((*told, lost(1, 3)), 1)
    assert budget.spent(told, 2) == 0
