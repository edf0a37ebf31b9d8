"""DAGs as Airflow runs them, on real processes: every example, what fails, what waits, in the worker and in the triggerer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rallypoint.report.summary import XCOM_KEYS
from tests.leftovers import marked_with
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]

#: The examples that need no cluster; what the others would create is looked at in tests/operators/test_appwrapper.py.
EXAMPLES = sorted(
    path
    for path in (ROOT / "dags_examples").glob("*.py")
    if "from airflow.sdk import dag" in path.read_text() and '"kubernetes"]' not in path.read_text()
)
DAGS = Path(__file__).parent / "dags"
#: What is the same however tasks wait: a task that only submits, and sensors, which are deferred by themselves.
SUBMITTING = [path for path in [*EXAMPLES, DAGS / "watching.py"] if "wait_for_completion=False" in path.read_text()]

pytestmark = [pytest.mark.airflow, pytest.mark.extended, pytest.mark.timeout(3600)]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What is told of every DAG after its run, and what Airflow said meanwhile."""

    folder: Path
    deferred: bool
    dags: dict[str, Any]
    log: str

    def task(self, dag: str, task: str) -> dict[str, Any]:
        """Return the state of a task and what it pushed."""
        told: dict[str, Any] = self.dags[dag]["tasks"][task]
        return told


@pytest.fixture(scope="module", params=[pytest.param(False, id="in the worker"), pytest.param(True, id="deferred")])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Every DAG, run by processes with an Airflow home of their own; Airflow reads its home when it is imported."""
    folder = tmp_path_factory.mktemp("airflow")
    busy = [*EXAMPLES, DAGS / "failing.py", DAGS / "watching.py", DAGS / "shapes.py"]
    if request.param:
        busy = [path for path in busy if path not in SUBMITTING]
    # Beside the others, in an Airflow of its own: its task does nothing but wait until its time is over.
    with ThreadPoolExecutor(2) as both:
        waiting = both.submit(_run, folder, "late", [DAGS / "late.py"], deferred=request.param)
        dags, log = _run(folder, "busy", busy, deferred=request.param)
        late, told = waiting.result()
    yield Runs(folder=folder, deferred=request.param, dags={**dags, **late}, log=log + told)
    eventually(lambda: not marked_with(str(folder)), why="nothing may be left running")


def _run(folder: Path, name: str, files: list[Path], *, deferred: bool) -> tuple[dict[str, Any], str]:
    """Run DAG files one after the other; return what is told of each DAG, and what Airflow said."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(folder / f"airflow-{name}"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": str(deferred),
        "PYTHONPATH": str(ROOT),
        "RALLYPOINT_HOME": str(folder / "home"),
        "TEST_FOLDER": str(folder),
    }
    conf = json.dumps({"folder": str(folder / "training"), "step_seconds": 0})
    command = [sys.executable, "-m", "tests.live.airflow_runs", conf, *map(str, files)]
    # In one stream, so that the lines stay in their order.
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stdout
    dags: dict[str, Any] = json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))
    return dags, done.stdout


def test_every_example_runs(runs):
    """Each example DAG that needs no cluster succeeds; deferred too, where its task waits for its job."""
    examples = {path.stem for path in EXAMPLES if not (runs.deferred and path in SUBMITTING)}
    assert len(examples) == (3 if runs.deferred else 5)
    assert {name: runs.dags[name]["state"] for name in examples} == dict.fromkeys(examples, "success"), runs.log
    said = runs.log.split("--- elastic_training_local\n")[1].split("\n--- ")[0]
    assert ("running trigger in line" in said) is runs.deferred


def test_what_is_promised_is_in_xcom(runs):
    """The summary, and each of its parts under a key of its own; a second task reads the result."""
    train = runs.task("elastic_training_local", "train")["xcom"]
    summary = train["return_value"]

    assert (summary["phase"], summary["step"], summary["world_size"], summary["attempts"]) == ("Succeeded", 300, 4, 1)
    assert {"job_name", "return_value", *XCOM_KEYS} <= train.keys()
    assert Path(train["checkpoint"]).exists()
    assert runs.task("elastic_training_local", "report")["xcom"]["return_value"] >= 0.95


def test_what_a_function_returns_on_rank_0_is_what_its_task_returns(runs):
    """It travels as JSON, is unrolled by its keys, and the next task is given it."""
    fit = runs.task("elastic_training_function", "fit")["xcom"]

    assert (fit["return_value"]["ranks"], fit["ranks"]) == (2, 2)
    assert runs.task("elastic_training_function", "judge")["xcom"]["return_value"] == fit["slope"]
    assert fit["final_step"] == 100


def test_a_failing_job_fails_its_task_with_the_story(runs):
    """One exception tells which rank on which node ended how, with the last lines of its log."""
    train = runs.task("failing", "train")

    assert (train["state"], train["xcom"]["faults"]) == ("failed", 2)
    assert "TrainingFailed: Job failing-train-" in runs.log
    assert "on node 0" in runs.log
    assert "ZeroDivisionError: the loss is not a number" in runs.log
    assert "about to divide" in runs.log


def test_jobs_are_tasks_of_any_shape(runs):
    """Mapped, in a group, in a pool, between a setup and its teardown."""
    assert runs.dags["shapes"]["state"] == "success", runs.log
    assert runs.task("shapes", "add")["xcom"]["return_value"] == 13
    assert runs.task("shapes", "inside.train")["xcom"]["attempts"] == 1
    assert runs.task("shapes", "end")["xcom"]["return_value"] is True


def test_a_task_whose_time_is_over_takes_its_job_with_it(runs):
    """In the worker as in the triggerer; that nothing is left running is seen at the end of all runs."""
    assert runs.task("late", "train")["state"] == "failed"
    assert "did not end within execution_timeout" in runs.log


@pytest.mark.parametrize("runs", [pytest.param(False, id="in the worker")], indirect=True)
def test_sensors_wait_for_what_another_task_submitted(runs):
    """The submitting task ends at once; a detached supervisor drives the job that the sensors see meet and succeed."""
    states = {name: runs.task("watching", name)["state"] for name in ("submit", "meet", "end")}
    assert set(states.values()) == {"success"}, states

    met, ended = (runs.task("watching", name)["xcom"]["return_value"] for name in ("meet", "end"))
    assert runs.task("watching", "submit")["xcom"]["return_value"]["phase"] == ""
    assert (met["nodes"], met["round"], ended["phase"]) == (2, 1, "Succeeded")
