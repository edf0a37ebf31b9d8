"""A job that is nothing but the check of another one's nodes."""

from __future__ import annotations

import pytest

from rallypoint.capabilities.node_check.wire import PlanSection
from rallypoint.job import JobError, compile_plan, load_job
from rallypoint.job.check import as_check, bare_check

JOB = {
    "name": "digits",
    "entrypoint": "train.py",
    "nodes": "2:4",
    "nproc_per_node": 8,
    "image": "registry/train:1",
    "health": {"precheck_program": ["probe.sh"], "report_interval": "0.5s"},
    "recovery": {"node_replacements": 5, "max_restarts": 1},
}


def test_the_nodes_stay_and_nothing_is_tried_again() -> None:
    """Only their check is left; what was given is not touched."""
    before = repr(JOB)
    plan = compile_plan(load_job(as_check(JOB, level=2, all_pairs=True, timeout="90s")))[0]

    assert (plan.name, plan.min_nodes, plan.max_nodes, plan.nproc_per_node) == ("digits-check", 2, 4, 8)
    checked = PlanSection.of(plan)
    assert (checked.check_level, checked.check_only, checked.check_all_pairs, checked.check_timeout) == (2, True, True, 90.0)
    assert (
        plan.budgets.retry_limit,
        plan.budgets.node_replacements,
        plan.budgets.max_restarts,
        plan.rendezvous.report_interval,
    ) == (0, 0, 1, 0.5)
    assert checked.check_program == ("probe.sh",)
    assert repr(JOB) == before


def test_a_long_name_is_cut() -> None:
    """A name is a label of at most 52 characters."""
    made = as_check({"name": f"{'a' * 45}-{'b' * 6}", "entrypoint": "train.py"}, level=1)
    assert made["name"] == f"{'a' * 45}-check"
    load_job(made)


def test_any_number_of_nodes_can_be_checked_without_a_job() -> None:
    """The plan of a check by itself has its nodes and nothing to train."""
    plan = compile_plan(load_job(as_check(bare_check("3", 2, name="check-1"), level=1, name="check-1")))[0]
    assert (plan.name, plan.min_nodes, plan.max_nodes, plan.nproc_per_node, PlanSection.of(plan).check_only) == (
        "check-1",
        3,
        3,
        2,
        True,
    )


def test_what_is_wrong_with_the_job_is_told() -> None:
    """Also where a check would take its place."""
    with pytest.raises(JobError, match="entrypoint"):
        load_job(as_check({"name": "digits"}, level=1))
    with pytest.raises(
        JobError,
        match="health: 'often' is not allowed; expected a mapping",
    ):
        as_check({**JOB, "health": "often"}, level=1)
