"""The example DAGs that need a cluster, as Airflow runs them, on the emulated one: its pods are processes of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.backends.kubernetes.rbac import rbac
from tests.emulator.controllers.api import Api
from tests.emulator.controllers.kueue import Queues
from tests.emulator.options import Options
from tests.emulator.running import Running, running

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "dags_examples"
NAMESPACE = "training"

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Running]:
    """A cluster as the examples want it, whose images hold their scripts."""
    options = Options(
        controllers=("appwrapper", "kueue", "pytorchjob"),
        namespaces=(NAMESPACE,),
        image_files={"/opt/train": EXAMPLES},
        image_env={"PYTHONPATH": str(ROOT)},
        speed=100.0,
    )
    with running(options) as emulator:
        for manifest in rbac(NAMESPACE, wrappers=True):
            group = manifest["apiVersion"]
            root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
            create(emulator, f"{root}/namespaces/{NAMESPACE}/{manifest['kind'].lower()}s", manifest)
        claim = {"metadata": {"name": "checkpoints"}, "spec": {"accessModes": ["ReadWriteMany"]}}
        create(emulator, f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims", claim)
        yield emulator


def create(emulator: Running, path: str, body: Any) -> None:
    """Create an object as the cluster's administrator."""
    code, answer = emulator.request("POST", path, body, token=emulator.admin_token)
    assert code < 300, (path, answer)


def run(cluster: Running, folder: Path, example: str, dags: Path = EXAMPLES) -> dict[str, dict[str, Any]]:
    """Run a DAG by `dag.test()` in a process of its own, as somebody who has a kubeconfig; what became of its tasks."""
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "KUBECONFIG": str(cluster.kubeconfig(folder / "kubeconfig")),
        "PYTHONPATH": str(ROOT),
        "FOLDER": str(folder),
    }
    conf = json.dumps({"image": "registry.example/train:1", "namespace": NAMESPACE})
    command = [sys.executable, "-m", "tests.live.airflow_runs", conf, str(dags / f"{example}.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])[example]
    assert told["state"] == "success", done.stdout + done.stderr
    tasks: dict[str, dict[str, Any]] = told["tasks"]
    return tasks


@pytest.mark.extended
def test_an_elastic_job_on_kubernetes(cluster: Running, tmp_path: Path) -> None:
    """Its pods train to the last step and leave a checkpoint in the claim."""
    train = run(cluster, tmp_path, "kubernetes_elastic")["train"]["xcom"]["return_value"]

    assert (train["phase"], train["step"], train["attempts"]) == ("Succeeded", 300, 1)


@pytest.mark.extended
async def test_an_appwrapper_from_settings(cluster: Running, tmp_path: Path) -> None:
    """Its queue admits it, torchrun's pods meet and train, and its controller says that it has succeeded."""
    async with Api(cluster.url, cluster.admin_token) as api:
        queues = Queues(api)
        await queues.ready()
        await queues.quota("default-queue", pods=2)
    train = run(cluster, tmp_path, "appwrapper_settings")["train"]["xcom"]["return_value"]

    assert (train["phase"], train["attempts"]) == ("Succeeded", 1)


@pytest.mark.extended
def test_a_job_with_several_roles(cluster: Running, tmp_path: Path) -> None:
    """As pods of each role: the results of the drivers, a section of the page and an XCom for each role, and its sensor."""
    tasks = run(cluster, tmp_path, "roles_cluster", ROOT / "tests" / "live" / "dags")

    both = {name: {"role": name} for name in ("trainer", "judge")}
    train = tasks["train"]["xcom"]
    assert train["return_value"]["result"] == both
    assert {name: role["launch"] for name, role in train["roles"].items()} == {
        "trainer": "elastic",
        "judge": "simple",
        "rollout": "simple",
    }
    assert [role["name"] for role in train["rallypoint_page"]["roles"]] == ["trainer", "judge", "rollout"]
    assert {name: tasks["decorated"]["xcom"][name] for name in both} == both, "a function that returns a builder"
    met = tasks["met"]["xcom"]["return_value"]
    assert (met["role"], met["phase"]) == ("judge", "Succeeded")
