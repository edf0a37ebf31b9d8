"""What an operator may be given, and what it costs to name one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import pytest
from airflow.sdk import dag
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.log import mask_secret

from rallypoint.operators import ElasticTrainingOperator
from rallypoint.provider.errors import InvalidJob, OptionError
from tests.operators.tasks import operator
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, context


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(
            {"orphan_policy": "weep"},
            "orphan_policy: 'weep' is not allowed; expected one of",
            id="orphan",
        ),
        pytest.param(
            {"on_finish_action": "burn"},
            "on_finish_action: 'burn' is not allowed; expected one of",
            id="finish",
        ),
        pytest.param(
            {"on_kill_action": "x"},
            "on_kill_action: 'x' is not allowed; expected one of",
            id="kill",
        ),
        pytest.param(
            {"poll_interval": 0},
            "poll_interval: 0 is not allowed; expected a number",
            id="interval",
        ),
        pytest.param(
            {"backend": "mainframe"},
            "backend: 'mainframe' is not allowed; expected one of kubernetes, local",
            id="kind",
        ),
        pytest.param(
            {"namespace": "team-a"},
            "namespace: 'team-a' is not allowed; expected no value; backend 'local' accepts only the arguments home",
            id="place",
        ),
        pytest.param(
            {"backend": "kubernetes", "home": "/data"},
            "home: '/data' is not allowed; expected no value; backend 'kubernetes' accepts only the "
            "arguments namespace, kubeconfig, cluster_context",
            id="folder of a cluster",
        ),
        pytest.param(
            {"supervisor_image": "tools:1"},
            "supervisor_image: 'tools:1' is not allowed; expected no value",
            id="image of no pod",
        ),
        pytest.param(
            {"poll_interval": "5"},
            "poll_interval: '5' is not allowed; expected a number",
            id="text",
        ),
    ],
)
def test_a_wrong_option_is_an_error_when_the_dag_is_parsed(arguments, says):
    """The field, the value and what is allowed."""
    with pytest.raises(OptionError, match=says):
        ElasticTrainingOperator(task_id="train", entrypoint="train.py", **arguments)


def test_a_job_that_cannot_run_is_not_tried_again():
    """A wrong job file fails the task once, with every problem."""
    with pytest.raises(InvalidJob, match="nodes: 'many'") as caught:
        operator(FakeBackend(), nodes="many").execute(context(FakeTask()))

    assert isinstance(caught.value, AirflowFailException)


SECRET = "it's\\a-secret-of-the-warehouse-of-all-pasts-and-futures-1234567890"


@pytest.mark.parametrize(
    "arguments",
    [
        {"args": f"--host db.example.org --user etl --password {SECRET}"},
        {"args": [["--host", "db.example.org", "--password", SECRET]]},
        {"args": {"--host": "db.example.org", "--password": SECRET}},
        {"env": f"HOST=db.example.org PASSWORD={SECRET}"},
        {"env": {"CONF": {"host": "db.example.org", "user": "etl", "pw": SECRET}}},
        {"env": {"CONF": ["--pw", (SECRET,), {SECRET: {SECRET}}]}},
        {"env": {"URL": f"postgres://etl@db.example.org/warehouse?password={SECRET}\0"}},
        {"env": {f"postgres://etl@db/{SECRET}": "x"}},
        {"entrypoint": f"train.py --password {SECRET}"},
        {"job": f"{{args: --host db.example.org --password {SECRET}}}"},
        {"roles": {"ro": {"launch": "simple", "entrypoint": "a.py", "args": f"--host db.example.org --password {SECRET}"}}},
    ],
    ids=lambda arguments: f"{next(iter(arguments))}: {type(next(iter(arguments.values()))).__name__}",
)
def test_an_error_about_a_value_shows_no_part_of_a_secret(arguments):
    """The value is masked before it is cut and quoted: Airflow would find neither a part of a secret nor an escaped one."""
    mask_secret(SECRET)
    job = {"job": arguments, "entrypoint": None} if "roles" in arguments else arguments

    with pytest.raises(InvalidJob) as caught:
        operator(FakeBackend(), **job).execute(context(FakeTask()))

    told = f"{caught.value} {caught.value.__cause__}"
    assert "***" in told
    assert [part for part in (SECRET[7:15], SECRET[-8:]) if part in told] == []


def test_templates_are_filled_in_and_arguments_are_never_taken_for_files(tmp_path):
    """`args` may name a YAML file of the script's own; the job file's own text is a template too."""
    (tmp_path / "job.yaml").write_text("entrypoint: train.py\nenv: {RUN: '{{ run_id }}'}\n")

    @dag(schedule=None)
    def nightly():
        return operator(FakeBackend(verdict=SUCCESS), entrypoint=None, job="job.yaml", args=["--config", "{{ run_id }}.yaml"])

    built = nightly()
    built.fileloc = str(tmp_path / "dag.py")
    built.resolve_template_files()
    op: Any = built.task_dict["train"]
    now = context(FakeTask(), run_id="manual__1")
    op.render_template_fields(now)
    op.execute(now)

    plan = op.fake.submitted[0].plan
    assert plan.args == ("--config", "manual__1.yaml")
    assert plan.env == {"RUN": "manual__1"}
    assert plan.workdir == str(tmp_path)


@pytest.mark.parametrize(
    ("job", "value", "says"),
    [
        pytest.param("{{ params.x }}", "other.yaml", "is not allowed as the result of a template", id="a file"),
        pytest.param("jobs/{{ params.x }}.yaml", "../other", "expected a file in the folder .*/jobs", id="another folder"),
        pytest.param("jobs/{{ params.x }}.yaml", "digits", "", id="a file of the folder"),
        pytest.param("{{ params.x }}", "entrypoint: train.py", "", id="YAML text"),
    ],
)
def test_parameters_do_not_choose_files_of_the_worker(tmp_path, job, value, says):
    """A user who may trigger a DAG but not write one reads no file that the DAG does not name."""
    (tmp_path / "jobs").mkdir()
    for path in ("other.yaml", "jobs/digits.yaml"):
        (tmp_path / path).write_text("entrypoint: train.py\n")

    @dag(schedule=None)
    def nightly():
        return operator(FakeBackend(verdict=SUCCESS), entrypoint=None, job=job)

    built = nightly()
    built.fileloc = str(tmp_path / "dag.py")
    op: Any = built.task_dict["train"]
    now = context(FakeTask(), params={"x": value})
    op.render_template_fields(now)
    with pytest.raises(AirflowFailException, match=says) if says else contextlib.nullcontext():
        op.execute(now)

    assert len(op.fake.submitted) == (0 if says else 1)


def test_a_mapped_task_has_a_job_for_each_of_its_instances():
    """`partial().expand()` works with every argument, and names tell the instances apart."""

    @dag(schedule=None)
    def nightly():
        ElasticTrainingOperator.partial(task_id="train", entrypoint="train.py", backend="local").expand(args=[["--a"], ["--b"]])

    assert nightly().task_dict["train"].is_mapped
    fake = FakeBackend(verdict=SUCCESS)
    names = {operator(fake).execute(context(FakeTask(map_index=index)))["job"] for index in range(2)}
    assert len(names) == 2


IMPORTS = """
import sys
from airflow.sdk import BaseOperator, BaseOperatorLink, BaseSensorOperator, PokeReturnValue, conf, exceptions
before = set(sys.modules)
import rallypoint.operators, rallypoint.sensors
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names)))
print(sorted(name for name in sys.modules if name.startswith(("rallypoint.backends.", "rallypoint.job", "rallypoint.agent"))))
"""


def test_naming_an_operator_or_a_sensor_costs_nothing_over_airflow():
    """A DAG file brings neither torch nor kubernetes, nor anything else that Airflow's own SDK did not bring already."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["['rallypoint']", "['rallypoint.backends.credentials', 'rallypoint.backends.site']"], (
        done.stdout + done.stderr
    )
