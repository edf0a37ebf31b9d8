"""Jobs that operators are given as builders, and functions that build them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.sdk import dag

from rallypoint.decorators import elastic_training_task
from rallypoint.job import JobError, compile_plan, load_job
from rallypoint.job.builder import Job, JobBuilder
from rallypoint.operators import ElasticTrainingOperator
from rallypoint.provider.errors import InvalidJob, OptionError
from tests.operators.tasks import operator
from tests.provider.fake_backend import FakeBackend
from tests.provider.tasks import FakeTask, context

if TYPE_CHECKING:
    from rallypoint.job.builder import RLJobBuilder


def built(lr: float = 0.1) -> JobBuilder:
    return JobBuilder().device_type("CPU").config({"lr": lr}).train("pkg.train.run").nnodes(2).nproc_per_node(2).end()


def names(job) -> list[str]:
    return [role.name for role in job.roles]


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(built(), id="builder"),
        pytest.param(JobBuilder().device_type("CPU").train("pkg.train.run").nnodes(2).nproc_per_node(2), id="without end()"),
        pytest.param(built().build(), id="built"),
        pytest.param(load_job({"name": "x", **built().build().document}, based=False), id="read"),
    ],
)
def test_an_operator_takes_a_builder_as_it_takes_a_document(job):
    """Two parsings of the DAG give the same document; fields complete it."""
    op = operator(FakeBackend(), job=job, entrypoint=None, env={"LOG": "info"})
    made = op.build_job(context(FakeTask()))

    assert isinstance(op.job, dict)
    (plan,) = compile_plan(made)
    assert (plan.max_nodes, plan.nproc_per_node, plan.env["LOG"]) == (2, 2, "info")


def test_a_builder_of_several_roles_is_one_job():
    """All roles, under the name of the task."""
    job = built().role("rollout").run("pkg.rollout.serve").total(2).resource(cpu=1).not_driver().device_per_node(8)
    made = operator(FakeBackend(), job=job, entrypoint=None, fault_tolerance=None).build_job(context(FakeTask()))

    assert names(made) == ["elastic", "rollout"]
    assert not made.name.startswith("dlrover")


def test_a_builder_with_a_mistake_is_an_error_of_the_dag_file():
    """With the path of each problem."""
    with pytest.raises(JobError, match=r"roles\.rollout"):
        ElasticTrainingOperator(task_id="t", job=built().role("rollout").run("python serve.py").total(-1))


def decorated(function, **kwargs):
    @dag(schedule=None)
    def line():
        elastic_training_task(**kwargs)(function)()

    (op,) = line().tasks
    return op


def by_builder() -> JobBuilder:
    return built()


def by_job() -> Job:
    return built().build()


def by_chain() -> RLJobBuilder:
    return built()  # type: ignore[return-value]


@pytest.mark.parametrize("function", [by_builder, by_job, by_chain])
def test_a_function_that_returns_a_builder_builds_the_job(function):
    """It is called in the task, and its entrypoint is the job's; arguments complete the job."""
    made = decorated(function, env={"LOG": "info"}).build_work(context(FakeTask()))

    (plan,) = compile_plan(made)
    assert ("pkg.train:run" in plan.args, plan.env["LOG"]) == (True, "info")


def test_every_other_function_runs_on_the_ranks():
    """Whatever it says that it returns."""

    def train() -> dict[str, float]:
        return {}

    assert decorated(train).build_work(context(FakeTask())).function.name.endswith("train")


def test_a_function_that_builds_no_job_fails_its_task_once():
    """With the value that it returned."""

    def wrong() -> JobBuilder:
        return 3  # type: ignore[return-value]

    with pytest.raises(InvalidJob, match=r"wrong\(\) returned 3; expected a JobBuilder"):
        decorated(wrong).execute(context(FakeTask()))


def test_a_function_that_builds_the_job_excludes_another_one():
    """The error names the argument and the reason."""
    with pytest.raises(OptionError, match=r"job: .* because the decorated function returns the job"):
        decorated(by_builder, job="job.yaml")
