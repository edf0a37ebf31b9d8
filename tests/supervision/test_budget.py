"""What a budget counts, when it is refilled, and that nothing which restarts can change either."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.supervision.budget import Budget, Course
from rallypoint.wire import codec
from rallypoint.wire.incident import FREE, Cause, Folded, Incident, IncidentId, Rung, merge_incidents
from rallypoint.wire.plan import Refill
from rallypoint.wire.status import Progress

FOR_LIFE = Refill()
WINDOW = Refill(window=100.0)
HEALTHY = Refill(healthy_for=60.0)
CHECKPOINT = Refill(on_checkpoint=True)


def fault(number: int, cause: Cause = Cause.PROCESS, *, attempt: int = 1, node: int = 0, clock: float = 0.0) -> Incident:
    return Incident(
        id=IncidentId(attempt=attempt, round=number, node=node), cause=cause, rung=Rung.RESTART_WORKERS, reason="?", clock=clock
    )


def budget(refill: Refill = FOR_LIFE, limit: int = 3, node: int | None = None) -> Budget:
    return Budget(cause=Cause.PROCESS, limit=limit, node=node, refill=refill)


def folded(count: int, cause: Cause = Cause.PROCESS, **more: object) -> Folded:
    known = Folded(cause=cause, attempt=1, node=0, count=count, first_at=1.0, last_at=2.0, last_clock=5.0)
    return dataclasses.replace(known, **more)  # type: ignore[arg-type]


def steps(course: Course, *told: tuple[float, int]) -> Course:
    for clock, step in told:
        course = course.reported(Progress(step=step), clock)
    return course


def test_a_budget_counts_its_own_cause_attempt_and_node() -> None:
    """Everything else is another budget's business."""
    told = (
        fault(1),
        fault(2, node=1),
        fault(3, attempt=2),
        fault(4, Cause.NODE),
        fault(5, Cause.SCALE),
    )
    assert budget().spent(told, 1) == 2
    assert budget(node=1).spent(told, 1) == 1
    assert budget().spent(told, None) == 3, "attempt None: of the whole job"


def test_what_was_folded_counts_as_before() -> None:
    """A count of four faults and two whole ones are six, and the seventh is too many for a limit of six."""
    counts = (folded(4), folded(9, Cause.NODE), folded(9, attempt=2), folded(1, node=7))
    assert budget(node=0).spent((fault(1), fault(2)), 1, folded=counts) == 6
    assert not budget(limit=6, node=0).exceeded((fault(1), fault(2)), 1, folded=counts)
    assert budget(limit=6, node=0).exceeded((fault(1), fault(2), fault(3)), 1, folded=counts)


def test_by_default_a_budget_is_for_life() -> None:
    """No time, no progress and no checkpoint refills one without a refill."""
    course = dataclasses.replace(steps(Course(), (0.0, 1)).after_fault(), healthy=1e9, step=10**6, checkpoint="/c/9")
    told = (fault(1, clock=1.0),)
    assert budget().refilled(told, course, clock=1e9) is told
    assert budget().spent(told, 1, clock=1e9) == 1


@pytest.mark.parametrize(
    ("clock", "spent"),
    [
        pytest.param(110.0, 2, id="both within"),
        pytest.param(110.5, 1, id="the older is out"),
        pytest.param(150.0, 0, id="at its very end a fault counts no more"),
    ],
)
def test_a_window_counts_only_the_last_faults(clock: float, spent: int) -> None:
    """A fault counts for so many seconds."""
    told = (fault(1, clock=10.25), fault(2, clock=50.0))
    assert budget(WINDOW).spent(told, 1, clock=clock) == spent


def test_a_fault_without_a_clock_was_just_now() -> None:
    """Only the coordinator has told it so far: no window lets it go for want of a time."""
    assert budget(WINDOW).spent((fault(1),), 1, clock=1e9) == 1
    assert budget(WINDOW).spent((), 1, clock=1e9, folded=(folded(2, last_clock=0.0),)) == 2


def test_a_folded_count_leaves_its_window_with_its_last_fault() -> None:
    """Of the many only the last time is known; none is let go before."""
    assert budget(WINDOW).spent((), 1, clock=104.9, folded=(folded(4),)) == 4
    assert budget(WINDOW).spent((), 1, clock=105.0, folded=(folded(4),)) == 0


def test_what_left_its_window_is_marked_before_anybody_takes_over() -> None:
    """A successor counts what it inherits as new; what has gone already does not come back by that."""
    told = (fault(1, clock=10.0), fault(2, clock=90.0))
    marked = budget(WINDOW).refilled(told, Course(), clock=120.0)
    assert [i.refilled for i in marked] == [True, False]
    assert budget(WINDOW).spent(marked, 1, clock=0.0, when=lambda _: 0.0) == 1


def test_healthy_progress_refills() -> None:
    """Sixty seconds from one newer step to the last, and the faults before count no more; those of other causes do."""
    told = (fault(1), fault(2, Cause.NODE))
    course = steps(Course().after_fault(), (10.0, 1), (40.0, 2), (69.0, 3))
    assert budget(HEALTHY).refilled(told, course, clock=69.0) is told
    course = steps(course, (70.0, 4))
    marked = budget(HEALTHY).refilled(told, course, clock=70.0)
    assert [i.refilled for i in marked] == [True, False]
    assert budget(HEALTHY).refilled_counts((folded(3), folded(2, Cause.NODE)), course) == (
        folded(3, refilled=3),
        folded(2, Cause.NODE),
    )
    assert budget(HEALTHY).spent(marked, 1, folded=(folded(3, refilled=3), folded(2, node=1))) == 2


def test_a_fault_begins_healthy_progress_anew() -> None:
    """Fifty seconds before a fault and fifty after it are not a hundred."""
    course = steps(Course(), (0.0, 1), (50.0, 2)).after_fault()
    course = steps(course, (60.0, 3), (110.0, 4))
    assert course.healthy == 50.0
    assert not course.earns(HEALTHY)


def test_repeated_steps_are_no_progress() -> None:
    """A job that fails at the same step for ever, however long it takes to come there, refills nothing."""
    course = steps(Course(), (0.0, 1), (10.0, 5)).after_fault()
    course = steps(course, (100.0, 3), (1000.0, 4), (2000.0, 5))
    assert course.healthy == 0.0
    assert not course.earns(HEALTHY)


def test_an_interruption_is_not_healthy_progress() -> None:
    """The hour in which the job was suspended or rescaled is not counted, what was before it is."""
    course = steps(Course(), (0.0, 1), (30.0, 2)).paused()
    course = steps(course, (3630.0, 3), (3650.0, 4))
    assert course.healthy == 50.0


@pytest.mark.parametrize(
    ("step", "checkpoint", "earned"),
    [
        pytest.param(12, "/c/12", True, id="newer"),
        pytest.param(12, "/c/8", False, id="the one from before the fault"),
        pytest.param(10, "/c/9", False, id="another one, of steps that were reached before"),
        pytest.param(12, "", False, id="none is told"),
    ],
)
def test_a_newer_checkpoint_refills(step: int, checkpoint: str, earned: bool) -> None:
    """Newer is one of another name, told at a step beyond those before the fault."""
    course = Course().reported(Progress(step=10, checkpoint="/c/8"), 0.0).after_fault()
    assert course.reported(Progress(step=step, checkpoint=checkpoint), 5.0).earns(CHECKPOINT) is earned


def test_one_who_takes_over_has_earned_nothing_yet() -> None:
    """It knows how far the job is, and not how long it went well or whether its checkpoint is newer than the last fault."""
    course = Course.inherited(Progress(step=10, checkpoint="/c/10"))
    assert not course.earns(Refill(healthy_for=0.001, on_checkpoint=True))
    assert steps(course, (0.0, 11), (60.0, 12)).earns(HEALTHY)


# --- Properties ------------------------------------------------------------------------------------------------------------

refills = st.builds(
    Refill,
    window=st.sampled_from([0.0, 50.0]),
    healthy_for=st.sampled_from([0.0, 30.0]),
    on_checkpoint=st.booleans(),
)
KINDS = ("fault", "free", "step", "checkpoint", "restart", "tell again")
events = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 40)), max_size=40)


@dataclasses.dataclass
class Keeper:
    """One coordinator after another: each keeps incidents, and a clock that says nothing to the next."""

    refill: Refill
    incidents: tuple[Incident, ...] = ()
    course: Course = dataclasses.field(default_factory=Course)
    clock: float = 0.0
    step: int = 0
    faults: int = 0
    inherited: frozenset[IncidentId] = frozenset()

    def spent(self) -> int:
        return budget(self.refill).spent(self.incidents, 1, clock=self.clock, when=self._when)

    def _when(self, incident: Incident) -> float:
        return 0.0 if incident.id in self.inherited else incident.detected_at

    def meets(self, kind: str, seconds: int) -> None:
        self.clock += seconds
        self.incidents = budget(self.refill).refilled(self.incidents, self.course, clock=self.clock, when=self._when)
        if kind in ("fault", "free"):
            self.faults += 1
            cause = Cause.PROCESS if kind == "fault" else Cause.SCALE
            new = dataclasses.replace(fault(self.faults, cause), detected_at=self.clock)
            self.incidents = merge_incidents(self.incidents, (new,))
            self.course = self.course.after_fault() if kind == "fault" else self.course.paused()
        elif kind in ("step", "checkpoint"):
            self.step += 1
            checkpoint = f"/c/{self.step}" if kind == "checkpoint" else ""
            self.course = self.course.reported(Progress(step=self.step, checkpoint=checkpoint), self.clock)
            self.incidents = budget(self.refill).refilled(self.incidents, self.course, clock=self.clock, when=self._when)
        elif kind == "tell again":
            self.incidents = merge_incidents(self.incidents, self.incidents)
        else:
            self._restart()

    def _restart(self) -> None:
        told = tuple(codec.loads(Incident, codec.dumps(incident)) for incident in self.incidents)
        self.incidents, self.clock = told, 0.0
        self.inherited = frozenset(incident.id for incident in told)
        self.course = Course.inherited(Progress(step=self.course.step, checkpoint=self.course.checkpoint))


@given(refills, events)
def test_nothing_that_restarts_refills_a_budget_or_charges_it_twice(refill: Refill, trace: list[tuple[str, int]]) -> None:
    """Only a fault costs, exactly one; a restart, a free event and a repeated telling change nothing."""
    keeper = Keeper(refill)
    for kind, seconds in trace:
        keeper.meets("tell again", seconds)
        before = keeper.spent()
        keeper.meets(kind, 0)
        after = keeper.spent()
        if kind == "fault":
            assert after == before + 1
        elif kind in ("step", "checkpoint"):
            assert after <= before
        else:
            assert after == before


@given(events)
def test_without_a_refill_every_fault_counts_for_ever(trace: list[tuple[str, int]]) -> None:
    """AppWrapper's rule: the number that was spent is the number of faults."""
    keeper = Keeper(FOR_LIFE)
    for kind, seconds in trace:
        keeper.meets(kind, seconds)
    assert keeper.spent() == sum(kind == "fault" for kind, _ in trace)
    assert budget().total(keeper.incidents, 1) == keeper.spent()


@given(st.lists(st.sampled_from(sorted(FREE)), max_size=20), st.sampled_from([c for c in Cause if c not in FREE]))
def test_free_causes_never_consume_a_budget(causes: list[Cause], paying: Cause) -> None:
    """However many there are: no budget that pays counts one."""
    told = tuple(fault(number, cause) for number, cause in enumerate(causes))
    assert Budget(cause=paying, limit=0).spent(told, None) == 0
