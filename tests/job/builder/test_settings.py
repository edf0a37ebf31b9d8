"""The settings of `submit()`: where each is given, what it means in the document, and what is refused."""

from __future__ import annotations

import sys

import pytest

from rallypoint.job import JobError, compile_plan, load_job
from rallypoint.job.builder import JobBuilder
from rallypoint.job.builder.settings import SETTINGS, read, read_place
from tests.job.builder.test_builder import problems

DOCUMENT = {"name": "x", "entrypoint": "a.py"}


def test_defaults_are_those_of_the_page():
    """Two cores, 4096 MiB, 600 s, and ten restarts of each kind."""
    document = read({}, {}).with_defaults().applied(DOCUMENT)

    assert document["master"] == {"cpu": "2", "memory": "4096Mi", "create_timeout": 600, "max_restarts": 10}
    assert document["recovery"] == {"node_replacements": 10}
    assert document["fault_tolerance"] == {"retry_limit": 10}
    (plan,) = compile_plan(load_job(document))
    assert (plan.budgets.node_replacements, plan.budgets.retry_limit, plan.budgets.coordinator_replacements) == (10, 10, 10)


def test_a_default_leaves_what_the_document_has():
    """Only what is given takes its place."""
    own = {**DOCUMENT, "fault_tolerance": {"retry_limit": 1}}

    assert read({}, {}).with_defaults().applied(own)["fault_tolerance"] == {"retry_limit": 1}
    assert read({"job_max_restart": 2}, {}).applied(own)["fault_tolerance"] == {"retry_limit": 2}


VALUES = {
    "job_name": ("a", "b"),
    "master_cpu": (1, "3"),
    "master_mem": (128, "256"),
    "master_create_timeout": (30, "40"),
    "node_max_restart": (1, "2"),
    "job_max_restart": (1, "2"),
    "master_max_restart": (1, "2"),
    "master_isolation_schedule_resource": ("A", "B"),
    "worker_isolation_schedule_resource": ("A", "B"),
    "failover_trigger_strategy": (1, "2"),
    "failover_exec_strategy": (1, "2"),
}


@pytest.mark.parametrize("name", VALUES)
def test_an_argument_wins_over_its_variable(name):
    """Under each of its names; an empty variable is not set."""
    argument, text = VALUES[name]
    for spelled in (name, *SETTINGS[name].others):
        variable = f"DLROVER_UNIFIED_{spelled.upper()}"
        both = read({name: argument}, {variable: text})
        assert both.values == {name: SETTINGS[name].rule.read(argument)}
        assert read({}, {variable: text}).values == {name: SETTINGS[name].rule.read(text)}
        assert read({}, {variable: ""}).values == {}


def test_the_nine_of_the_page_are_there():
    """All but the two strategies, which are DLRover's own."""
    assert set(VALUES) <= set(SETTINGS)


def test_every_wrong_setting_is_told():
    """Unknown ones with the nearest name, out of bounds with what is allowed, and two names that differ."""
    found = problems(
        lambda: read(
            {"master_cpus": 1, "job_max_restart": -5, "master_cpu": float("nan"), "failover_exec_strategy": 7, "timeout": 0},
            {
                "DLROVER_UNIFIED_MASTER_MEM": "1",
                "DLROVER_UNIFIED_MASTER_MEMORY": "2",
                "DLROVER_UNIFIED_NOPE": "1",
                "OTHER": "1",
            },
        )
    )

    assert sorted(found) == [
        "$DLROVER_UNIFIED_MASTER_MEMORY",
        "$DLROVER_UNIFIED_NOPE",
        "failover_exec_strategy",
        "job_max_restart",
        "master_cpu",
        "master_cpus",
        "timeout",
    ]
    assert found["master_cpus"] == "is not a setting of submit(); did you mean 'master_cpu'?"


def test_settings_without_meaning_here_are_warned_of():
    """Variables that DLRover itself knows."""
    with pytest.warns(UserWarning, match="DLROVER_UNIFIED_DL_CONFIG: no effect"):
        assert read({}, {"DLROVER_UNIFIED_DL_CONFIG": "{}"}).values == {}
    given = read({"master_state_backend_type": "HDFS"}, {})
    with pytest.warns(UserWarning, match="master_state_backend_type HDFS: no effect"):
        given.applied(DOCUMENT)


@pytest.mark.parametrize(("strategy", "budgets"), [(0, (0, 0, 0)), (1, (0, 0, 3)), (2, (3, 3, 3))], ids=["none", "job", "role"])
def test_strategies_are_budgets_of_an_elastic_role(strategy, budgets):
    """None restarts nothing, job only the job; role is the ladder."""
    document = JobBuilder().train("a.py").build().to_document(failover_exec_strategy=strategy)
    (plan,) = compile_plan(load_job(document))

    assert (plan.budgets.max_restarts, plan.budgets.node_replacements, plan.budgets.retry_limit) == budgets


def test_a_task_of_airflow_uses_the_operator(monkeypatch):
    """A hidden blocking call in a task is refused."""
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "train")

    assert "ElasticTrainingOperator" in problems(lambda: JobBuilder().train("a.py").build().submit())["submit"]


def test_where_a_job_runs_is_an_argument():
    """The names are those of the command line's options; an error names the value and what is allowed."""
    place, left = read_place({"backend": "kubernetes", "namespace": "training", "home": "", "context": None, "master_cpu": 1})

    assert (place, left) == ({"backend": "kubernetes", "namespace": "training"}, {"master_cpu": 1})
    found = problems(lambda: read_place({"backend": "slurm", "namespace": 3, "kind": "a\nb"}))
    assert found["backend"] == "'slurm' is not allowed; expected one of local, kubernetes, ray"
    assert sorted(found) == ["backend", "kind", "namespace"]
    assert problems(lambda: read({"backnd": "local"}, {}))["backnd"] == "is not a setting of submit(); did you mean 'backend'?"


def test_a_connection_needs_airflow(monkeypatch):
    """Without Airflow the error names the argument, and what to do instead."""
    monkeypatch.setitem(sys.modules, "airflow", None)
    job = JobBuilder().device_type("CPU").role("judge").run("m.f").build()

    expected = "'training' is not allowed; Airflow is not installed. Install apache-airflow, or set the argument backend"
    assert problems(lambda: job.submit("j", conn_id="training")) == {"conn_id": expected}


def test_the_image_is_that_of_each_role_without_one():
    """No method of DLRover's builder names an image, which pods need; other roles of a document keep theirs."""
    builder = JobBuilder().role("trainer").train("pkg.train.run").nnodes(1).nproc_per_node(1)
    job = builder.role("judge").run("pkg.judge.run").resource(cpu=1).end().build()

    assert [role["image"] for role in job.to_document("rl", image="train:1")["roles"].values()] == ["train:1", "train:1"]
    given = read({"image": "train:1"}, {})
    assert given.applied({"roles": {"a": {"image": "own:1"}, "b": {}}})["roles"] == {
        "a": {"image": "own:1"},
        "b": {"image": "train:1"},
    }
    assert given.applied({"name": "one"}) == {"name": "one", "image": "train:1"}
    with pytest.raises(JobError, match="image: 5 is not allowed"):
        read({"image": 5}, {})
