"""What an AppWrapper's task submits, and the example DAGs for clusters."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from rallypoint.job import JobError
from rallypoint.operators import AppWrapperOperator, ElasticTrainingOperator
from rallypoint.provider.errors import InvalidJob, OptionError
from rallypoint.provider.manifest import Manifest
from rallypoint.wire.plan import Kind
from tests.provider.fake_backend import SUCCESS, FakeBackend
from tests.provider.tasks import FakeTask, context

SETTINGS = {"jobName": "digits", "containerImage": "registry.example/train:1", "queueName": "q", "mainProgram": "train.py"}

MANIFEST = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "digits", "annotations": {"team": "a"}},
    "spec": {"pytorchReplicaSpecs": {}},
}


def operator(**arguments) -> AppWrapperOperator:
    return AppWrapperOperator(task_id="train", **arguments)


def work(**arguments) -> Manifest:
    return operator(**arguments).build_work(context(FakeTask()))


@pytest.mark.parametrize("field", ["settings", "manifest"])
def test_a_template_may_not_name_a_file(tmp_path, field):
    """Whoever triggers a DAG chooses parameters; the files of the worker are the author's."""
    path = tmp_path / "evil.yaml"
    path.write_text("kind: PyTorchJob")
    op: Any = operator(**{field: "{{ params.x }}"})
    now = context(FakeTask(), params={"x": str(path)})
    op.render_template_fields(now)

    with pytest.raises(JobError, match=f"{field}: '.*evil.yaml' is not allowed as the result of a template"):
        op.build_work(now)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(
            {},
            "settings: None is not allowed; expected a value for exactly one of the arguments settings and manifest",
            id="nothing",
        ),
        pytest.param(
            {"settings": "a.yaml", "manifest": {}},
            "expected a value for exactly one of the arguments settings and manifest",
            id="both",
        ),
        pytest.param(
            {"manifest": MANIFEST, "kind": "pods"},
            "kind: 'pods' is not allowed; expected one of",
            id="kind",
        ),
        pytest.param({"manifest": MANIFEST, "backend": "local"}, "backend: 'local' is not allowed", id="this machine"),
        pytest.param({"manifest": MANIFEST, "home": "/data"}, "home: '/data' is not allowed", id="a folder"),
    ],
)
def test_a_wrong_option_is_an_error_when_the_dag_is_parsed(arguments, says):
    """The field, the value and what is allowed."""
    with pytest.raises(OptionError, match=says):
        operator(**arguments)


def test_settings_become_an_appwrapper_of_this_task_instance():
    """Its name begins with the settings' own and is another one for another run; the annotations say whose it is."""
    made, again = work(settings=SETTINGS), work(settings=SETTINGS)
    other = operator(settings=SETTINGS).build_work(context(FakeTask(run_id="manual__2")))

    assert made == again
    assert made.manifest["kind"] == "AppWrapper"
    assert made.name == made.manifest["metadata"]["name"] != other.name
    assert made.name.startswith("digits-")
    assert made.manifest["metadata"]["annotations"]["airflow/run_id"] == "manual__1"
    assert made.kind is None


def test_the_text_of_settings_may_hold_templates(tmp_path):
    """A file is read when the task runs, and rendered."""
    file = tmp_path / "settings.yaml"
    file.write_text("jobName: digits\ncontainerImage: '{{ ti.dag_id }}/train:1'\nmainProgram: train.py\n")

    (component,) = work(settings=str(file)).manifest["spec"]["components"]

    assert "nightly/train:1" in str(component["template"])


def test_a_manifest_keeps_its_name_unless_another_is_given():
    """And its own annotations, beside those that say whose it is."""
    made = work(manifest=MANIFEST, kind="appwrapper")

    assert (made.name, made.kind) == ("digits", Kind.APPWRAPPER)
    assert made.manifest["metadata"]["annotations"] == {
        "team": "a",
        "airflow/dag_id": "nightly",
        "airflow/run_id": "manual__1",
        "airflow/task_id": "train",
        "airflow/map_index": "-1",
    }
    assert work(manifest=MANIFEST, name="other").manifest["metadata"]["name"] == "other"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param({"settings": {"jobName": "digits"}}, "containerImage", id="settings without an image"),
        pytest.param({"settings": {**SETTINGS, "numPod": 2}}, "numPod", id="an unknown setting"),
        pytest.param({"manifest": {"kind": "PyTorchJob"}}, r"manifest.metadata.name: .*the name of the job", id="no name"),
        pytest.param({"manifest": "none.yaml"}, "manifest: cannot be read", id="no such file"),
        pytest.param({"settings": "- a list"}, "settings: .*a mapping with a jobName", id="no mapping"),
    ],
)
def test_what_can_be_no_job_fails_the_task_once(arguments, says):
    """The place, the value and what is allowed."""
    with pytest.raises(InvalidJob, match=says):
        operator(**arguments)._valid_work(context(FakeTask()))


class InMemory(AppWrapperOperator):
    """Submits to a backend in memory; `drawn` is what it was asked to draw."""

    def __init__(self, *, fake: FakeBackend, **arguments: Any) -> None:
        super().__init__(task_id="train", poll_interval=0.01, **arguments)
        self.fake = fake
        self.drawn: list[Any] = []

    def open_backend(self) -> Any:
        fake, drawn = self.fake, self.drawn

        def plan_manifest(manifest, *, kind, orphan_policy, hidden):
            assert hidden == ()
            from rallypoint.job import load_job

            drawn.append((manifest["kind"], kind))
            job = load_job(name=manifest["metadata"]["name"], entrypoint=["train"], fault_tolerance={"retry_limit": 0})
            return fake.plan(job, orphan_policy=orphan_policy)

        fake.plan_manifest = plan_manifest  # type: ignore[attr-defined]
        return fake


def test_a_task_sees_its_appwrapper_to_the_end():
    """It is submitted as a manifest, and what a task returns is what every task does."""
    op = InMemory(fake=FakeBackend(verdict=SUCCESS), settings=SETTINGS, namespace="training")
    ti = FakeTask()

    summary = op.execute(context(ti))

    assert op.drawn == [("AppWrapper", None)]
    assert summary["phase"] == "Succeeded"
    assert ti.pushed["job_name"].startswith("digits-")


def test_what_a_deferred_task_stores_names_things_only():
    """Where the job is travels with its claim."""
    op = ElasticTrainingOperator(
        task_id="train", entrypoint="train.py", backend="kubernetes", namespace="training", cluster_context="prod"
    )
    claim = op._claim(context(FakeTask()), "digits")

    place = claim.place
    assert (place.backend, place.namespace, place.context) == ("kubernetes", "training", "prod")
    assert claim.poll_interval == 15.0


@pytest.mark.parametrize(
    ("module", "kind"),
    [("kubernetes_elastic", "ElasticJob"), ("appwrapper_settings", "Manifest")],
)
def test_the_example_dags_describe_jobs_that_can_run(module, kind):
    """Each parses, and what it would submit is valid once its templates are filled in."""
    made = importlib.import_module(f"dags_examples.{module}")
    dag = getattr(made, module)()
    dag.fileloc = made.__file__  # as Airflow finds it, which calls it there
    task = dag.get_task("train")
    values = context(FakeTask(), params={"image": "registry.example/train:1", "namespace": "training"}, run_id="manual__1")
    task.render_template_fields(values)

    job = task.build_work(values)

    assert type(job).__name__ == kind
    assert job.name.startswith("digits-")
    assert task.namespace == "training"
