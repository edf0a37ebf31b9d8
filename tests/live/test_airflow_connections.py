"""A DAG as Airflow runs it, whose connection says where its job is: nothing of Airflow's own holds the secrets afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rallypoint.backends.kubernetes.rbac import rbac
from tests.emulator.options import Options
from tests.emulator.running import kubeconfig, running
from tests.kube.stage import KubernetesStage

pytest.importorskip("kubernetes")

ROOT = Path(__file__).parents[2]
DAG = Path(__file__).parent / "dags" / "connected.py"

#: What stands in the kubeconfig beside the token that counts.
INLINE = "canary-kubeconfig-9c0e"

BUILT = """
import sys
from rallypoint.job.builder import JobBuilder

job = JobBuilder().device_type("CPU")
for role in ("judge", "other"):
    job.role(role).run("gc.collect").resource(cpu=1)
sys.exit(job.build().submit("built", blocking=False, conn_id="train"))
"""

pytestmark = [pytest.mark.airflow, pytest.mark.live, pytest.mark.extended, pytest.mark.timeout(3600)]


def connected(stage, cluster, folder):
    """Create the service accounts of a namespace; return an environment with connections to its cluster."""
    for manifest in rbac(stage.namespace):
        group = manifest["apiVersion"]
        root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
        stage.ask("POST", f"{root}/namespaces/{stage.namespace}/{manifest['kind'].lower()}s", manifest, fine=(409,))
    extra = {"platform": "kubernetes", "kubernetes_conn_id": "prod", "namespace": stage.namespace, "image": "train:1"}
    inline = {"kube_config": kubeconfig(cluster.url, INLINE)}
    return {
        **os.environ,
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW_CONN_TRAIN": json.dumps({"conn_type": "rallypoint", "password": cluster.admin_token, "extra": extra}),
        "AIRFLOW_CONN_PROD": json.dumps({"conn_type": "kubernetes", "extra": inline}),
    }


def test_a_dag_runs_where_its_connection_says(tmp_path, home):
    """In the worker and deferred; neither the metadata database nor a log, an XCom or an object of the cluster has a secret."""
    with running(Options()) as cluster:
        stage = KubernetesStage(tmp_path, cluster)
        environment = {
            **connected(stage, cluster, tmp_path),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "tests.live.airflow_runs", "{}", str(DAG)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads(done.stdout.splitlines()[-1])["connected"]
        objects = [stage.ask("GET", stage.path(kind)) for kind in ("configmaps", "secrets", "pods", "events")]

    assert told["state"] == "success", done.stdout + done.stderr
    phases = {name: task["xcom"]["return_value"]["phase"] for name, task in told["tasks"].items()}
    assert phases == {"in_the_worker": "Succeeded", "deferred": "Succeeded"}
    assert (done.stdout + done.stderr).count("running trigger in line") == 1
    kept = {path: path.read_bytes() for path in (tmp_path / "airflow").rglob("*") if path.is_file()}
    assert any(path.suffix == ".db" for path in kept)
    everything = {**kept, "output": (done.stdout + done.stderr).encode(), "objects": repr(objects).encode()}
    found = [
        (str(where), word)
        for where, text in everything.items()
        for word in (cluster.admin_token, INLINE)
        if word.encode() in text
    ]
    assert found == []


@pytest.mark.extended
def test_a_builder_submits_through_a_connection(tmp_path, home):
    """`submit(conn_id=...)` runs the job in the cluster of a connection; its credentials are in no file and no output."""
    with running(Options()) as cluster:
        stage = KubernetesStage(tmp_path, cluster)
        environment = connected(stage, cluster, tmp_path)
        command = [sys.executable, "-c", BUILT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
        objects = [stage.ask("GET", stage.path(kind)) for kind in ("configmaps", "secrets", "pods")]

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Record: ConfigMap" in done.stdout
    kept = {str(path): path.read_bytes() for folder in (tmp_path, home) for path in folder.rglob("*") if path.is_file()}
    everything = {**kept, "output": (done.stdout + done.stderr).encode(), "objects": repr(objects).encode()}
    words = (cluster.admin_token, INLINE)
    assert [where for where, text in everything.items() for word in words if word.encode() in text] == []
