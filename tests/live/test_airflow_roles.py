"""A task that runs a job with several roles, as Airflow runs it, in the worker and in the triggerer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.roles.jobs import SCRIPTS

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.airflow, pytest.mark.extended, pytest.mark.timeout(600)]


@pytest.mark.parametrize("deferred", [False, True], ids=["in the worker", "deferred"])
def test_a_task_runs_all_roles_and_returns_the_result_of_each_driver(tmp_path: Path, deferred: bool, light: None) -> None:
    """The next task takes the results by the names of the roles; the server is ended."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": str(deferred),
        "PYTHONPATH": os.pathsep.join((str(SCRIPTS), str(ROOT), os.environ["PYTHONPATH"])),
        "ROLE_JOBS_FOLDER": str(tmp_path),
    }
    command = [sys.executable, "-m", "tests.live.airflow_runs", "{}", str(ROOT / "tests" / "live" / "dags" / "roles.py")]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])["roles"]

    assert told["state"] == "success", done.stdout + done.stderr
    assert told["tasks"]["train"]["xcom"]["return_value"]["result"] == {name: {"role": name} for name in ("trainer", "judge")}
    summary, page = (told["tasks"]["train"]["xcom"][key] for key in ("roles", "rallypoint_page"))
    launched = {"trainer": "elastic", "judge": "simple", "rollout": "simple"}
    assert {name: role["launch"] for name, role in summary.items()} == launched
    assert [(role["name"], role["state"]) for role in page["roles"]][:2] == [("trainer", "succeeded"), ("judge", "succeeded")]
    both = {name: {"role": name} for name in ("trainer", "judge")}
    assert told["tasks"]["chained"]["xcom"]["return_value"]["result"] == both, "a builder is a document"
    built = told["tasks"]["decorated"]["xcom"]
    assert built["return_value"] == both, "a function that returns a builder is a job"
    assert {name: built[name] for name in both} == both, "each driver role has an XCom of its own"
    met = told["tasks"]["met"]["xcom"]["return_value"]
    assert (met["role"], met["phase"]) == ("judge", "Succeeded"), "a sensor waits for one role"
    assert told["tasks"]["late"]["state"] == "skipped", "the role has ended without a step"
    assert told["tasks"]["take"]["xcom"]["return_value"] == ["judge", "trainer"]
