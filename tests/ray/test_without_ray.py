"""Airflow's processes need no package `ray`: a DAG runs its tasks on a cluster where `import ray` fails."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.ray.sites import RaySite

pytestmark = [pytest.mark.extended, pytest.mark.may_block("the hands of a test read /proc")]

ROOT = Path(__file__).parents[2]

DAG = """\
import pytest
from airflow.sdk import dag
from rallypoint.operators import ElasticTrainingOperator

with pytest.raises(ImportError, match="blocked"):
    import ray

SCRIPT = "from rallypoint.training import report_progress, report_result; report_progress(3); report_result(dict(loss=0.5))"
JOB = {{"entrypoint": {{"command": [{python!r}, "-c", SCRIPT]}}, "resources": {{"cpu": "1"}}}}


@dag(schedule=None)
def blocked():
    waits = ElasticTrainingOperator(task_id="waits", conn_id="ray", name="waits", job=JOB)
    defers = ElasticTrainingOperator(task_id="defers", conn_id="ray", name="defers", job=JOB, deferrable=True)
    waits >> defers


blocked()
"""


async def test_a_dag_runs_on_ray_without_the_package(site: RaySite, tmp_path: Path) -> None:
    """A task that waits and one that defers train on the cluster, and return what their jobs reported."""
    (tmp_path / "blocker" / "ray").mkdir(parents=True)
    (tmp_path / "blocker" / "ray" / "__init__.py").write_text("raise ImportError('the package ray is blocked')\n")
    file = tmp_path / "blocked.py"
    file.write_text(DAG.format(python=site.python))
    extra = {"platform": "ray", "address": site.cluster.url, "namespace": site.namespace, "storage": str(site.storage)}

    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.live.airflow_runs", "{}", str(file)),
        cwd=ROOT,
        env={
            **os.environ,
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "AIRFLOW_CONN_RAY": json.dumps({"conn_type": "rallypoint", "extra": extra}),
            "PYTHONPATH": str(tmp_path / "blocker"),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    told = out.decode()

    assert process.returncode == 0, told
    found = json.loads(told.splitlines()[-1])["blocked"]
    assert found["state"] == "success", told
    returned = {name: task["xcom"]["return_value"]["result"] for name, task in found["tasks"].items()}
    assert returned == {"waits": {"loss": 0.5}, "defers": {"loss": 0.5}}
