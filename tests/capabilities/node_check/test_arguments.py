"""DLRover's arguments of the node check, from the annotation to their effect."""

from __future__ import annotations

import pytest

from rallypoint.agent.rendezvous.core import State
from rallypoint.capabilities.node_check.wire import PlanSection, StatusSection
from rallypoint.job import JobError
from tests.agent.test_argument_effects import plan, settings
from tests.agent.test_options import read
from tests.capabilities.node_check import test_rounds as checks


def checked(**arguments: object) -> State:
    return checks.start(settings(**arguments), check=PlanSection.of(plan(**arguments)))


@pytest.mark.argument("precheck")
@pytest.mark.difference(13)
@pytest.mark.parametrize(
    ("level", "stages"),
    [pytest.param(0, 0, id="0"), pytest.param(1, 1, id="1 in pairs"), pytest.param(2, 2, id="2 and then all nodes at once")],
)
def test_nodes_are_checked_before_they_train(level: int, stages: int) -> None:
    """Level 2 has a task for the whole world, not for pairs alone."""
    state = checked(nnodes=4, precheck=level)
    sizes = set()
    if level:
        task = checks.asked(state, 0)
        sizes.add(0 if task is None else task.world_size)
    state = checks.play(state, {})
    told = StatusSection.of(checks.told(state)).check

    assert (told is not None) == bool(level)
    assert sizes == ({4} if level else set())  # two nodes of two workers
    assert (told is not None and told.whole is not None and told.whole.nodes == 4) == (stages == 2)


@pytest.mark.argument("network_check", "comm_perf_test")
def test_the_two_switches_are_the_two_levels() -> None:
    """network-check is the check in pairs, comm-perf-test that and all nodes at once."""
    assert [PlanSection.of(plan(**{name: "true"})).check_level for name in ("network_check", "comm_perf_test")] == [1, 2]
    assert checks.asked(checked(nnodes=4, network_check="true"), 0) is not None
    told = StatusSection.of(checks.told(checks.play(checked(nnodes=4, comm_perf_test="true"), {}))).check
    assert told is not None
    assert told.whole is not None


@pytest.mark.argument("exclude_straggler")
@pytest.mark.parametrize("exclude", [pytest.param("true", id="on"), pytest.param("false", id="off")])
def test_a_slow_node_is_replaced_where_it_says_so(exclude: str) -> None:
    """More than twice the median, in the check."""
    state = checked(nnodes=4, precheck=1, exclude_straggler=exclude)
    state = checks.later(checks.play(state, {2: checks.SLOW}))

    assert state.away == ({"agent-2.1"} if exclude == "true" else set())


@pytest.mark.difference(12)
def test_to_exclude_stragglers_without_a_check_is_an_error() -> None:
    """It would have no effect."""
    with pytest.raises(
        JobError,
        match="exclude_straggler: 'true' is not allowed; expected no value, because the job has no node check",
    ):
        plan(exclude_straggler="true")


@pytest.mark.parametrize(
    ("line", "field", "expected"),
    [
        pytest.param("--precheck 0 t.py", "check_level", 0, id="no check"),
        pytest.param("--precheck 1 t.py", "check_level", 1, id="check in pairs"),
        pytest.param("--network-check t.py", "check_level", 1, id="check in pairs, by its older name"),
        pytest.param("--comm_perf_test --precheck 1 t.py", "check_level", 2, id="check of all"),
        pytest.param("--precheck 1 --exclude-straggler t.py", "exclude_straggler", True, id="stragglers leave"),
    ],
)
def test_a_flag_of_a_run_by_hand_reaches_the_plan(line: str, field: str, expected: object) -> None:
    """Each flag has its effect."""
    assert getattr(PlanSection.of(read(line).plan), field) == expected
